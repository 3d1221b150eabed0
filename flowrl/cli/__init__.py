"""The command line. The composition root: the one place that may import every package, lazily."""
