"""Importers: demonstrations recorded elsewhere become streams of a replay. docs/import.md explains them."""
