"""Exporters: streams of a replay become datasets of other tools. docs/export.md explains them."""
