"""Learner: the loop, drivers and metrics of a run; knows no network by name."""
