"""Rewards said afterwards: a success classifier on camera frames, and labels of a human (docs/rewards.md)."""
