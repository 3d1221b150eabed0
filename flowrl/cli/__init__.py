"""The command line. The composition root: the one place that may import every package, lazily."""

from flowrl.cli.app import main

__all__ = ["main"]
