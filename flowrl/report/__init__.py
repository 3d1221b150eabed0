"""Reports: what a run leaves for people to look at."""
