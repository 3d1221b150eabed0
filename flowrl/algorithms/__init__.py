"""Algorithms: one file each, configuration on top, losses as functions that return (loss, info) (seam 4)."""
