"""What every page of an algorithm must hold: its hyper-parameters with defaults, its metrics, live links."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from flowrl.config.classes import config_fields

DOCS = Path(__file__).parents[2] / "docs"


class Page:
    """A page under docs/, by its path there."""

    def __init__(self, path: str) -> None:
        self.path = DOCS / path
        self.text = self.path.read_text(encoding="utf-8")

    def section(self, title: str) -> list[str]:
        """The table rows of the section with this ``## title``."""
        body = self.text.split(f"\n## {title}", 1)[1].split("\n## ")[0]
        return [line for line in body.splitlines() if line.startswith("|")]

    def check_hyper_parameters(self, config: type, skip: Iterable[str] = ("kind", "critic")) -> None:
        """Every field has a row in "Hyper-parameters" with its default and a meaning."""
        rows = self.section("Hyper-parameters")
        for name, field in config_fields(config).items():
            if name in skip:
                continue
            names, default, meaning = _row(name, rows)[:3]
            assert meaning, name
            position = [part.strip(" `") for part in names.split(",")].index(name)
            said = [part.strip(" `") for part in default.split(",")]
            assert _same(said[position] if len(said) > 1 else said[0], field.default), (name, default)

    def check_metrics(self, metrics: Iterable[str]) -> None:
        """The metrics are those of the "Metrics" section, each with an explanation, and no others."""
        rows = self.section("Metrics")
        for name in metrics:
            assert _row(name, rows)[1], name
        assert set(re.findall(r"`(\w+/\w+)`", "\n".join(rows))) == set(metrics)

    def check_links(self) -> None:
        """Relative links and paths of code lead somewhere."""
        for target in re.findall(r"\]\(([^)#:]+)\)", self.text):
            assert (self.path.parent / target).exists(), target
        for path in re.findall(r"`((?:flowrl|tests|benchmarks|configs)/[\w/.]+\.(?:py|yaml))`", self.text):
            assert (DOCS.parent / path).exists(), path


def _row(name: str, rows: list[str]) -> list[str]:
    for row in rows:
        cells = [cell.strip() for cell in row.replace("\\|", "/").strip("|").split("|")]
        if f"`{name}`" in cells[0]:
            return cells
    raise AssertionError(f"no table row names {name}")


def _same(said: str, default: object) -> bool:
    if default is None or isinstance(default, bool):
        return said in {None: {"none", "K"}, True: {"on"}, False: {"off"}}[default]
    if isinstance(default, int | float):
        return float(said) == default
    return said == str(default)
