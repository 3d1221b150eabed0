"""Critics: ensembles over action chunks, their targets and losses."""
