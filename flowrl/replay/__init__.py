"""Replay: single-writer streams of episodes, snapshot readers, and chunk batches (seam 2)."""
