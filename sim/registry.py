"""Environments by name: ``make("lift")``. Simulators are imported only when one is made."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl.errors import UsageError
from sim.base import SimEnv


@dataclass(frozen=True)
class Entry:
    """How one environment is made: its settings with defaults, and a builder that takes them all."""

    summary: str
    package: str
    settings: Mapping[str, Any]
    build: Callable[..., SimEnv] = field(repr=False)


def names() -> list[str]:
    """The environments that `make` knows, sorted."""
    return sorted(_entries())


def describe(name: str) -> str:
    """One line: what the task is, the package it needs and its settings with defaults."""
    entry = _entry(name)
    settings = ", ".join(f"{key}={value}" for key, value in entry.settings.items())
    return f"{entry.summary} (package {entry.package}, extra 'sim'; settings {settings})"


def make(name: str, **settings: Any) -> SimEnv:
    """Make an environment by name.

    Raises UsageError for an unknown name or setting (naming the nearest valid one) and MissingExtra
    when the simulator's package is not installed.
    """
    entry = _entry(name)
    for key in settings:
        if key not in entry.settings:
            raise UsageError(
                f"environment {name!r} has no setting {key!r}{_nearest(key, entry.settings)}; "
                f"its settings are {', '.join(entry.settings)}"
            )
    return entry.build(name, **{**entry.settings, **settings})


def _entry(name: str) -> Entry:
    entries = _entries()
    if name not in entries:
        raise UsageError(
            f"unknown environment {name!r}{_nearest(name, entries)}; known are {', '.join(names())}"
        )
    return entries[name]


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def _entries() -> dict[str, Entry]:
    return dict(_ROBOSUITE)


def _robosuite_entry(summary: str, robosuite_name: str, max_steps: int, arms: int = 1) -> Entry:
    def build(name: str, max_steps: int, decimation: int | None, shadows: bool) -> SimEnv:
        from sim.robosuite_env import RobosuiteEnv, RobosuiteTask

        return RobosuiteEnv(name, RobosuiteTask(robosuite_name, arms), max_steps, decimation, shadows)

    settings = {"max_steps": max_steps, "decimation": 5, "shadows": False}
    return Entry(summary, "robosuite", settings, build)


_ROBOSUITE: dict[str, Entry] = {
    "lift": _robosuite_entry("robosuite Lift: one arm lifts a cube", "Lift", 100),
    "can": _robosuite_entry("robosuite PickPlaceCan: one arm moves a can to its bin", "PickPlaceCan", 200),
    "square": _robosuite_entry(
        "robosuite NutAssemblySquare: one arm puts a square nut on its peg", "NutAssemblySquare", 400
    ),
    "transport": _robosuite_entry(
        "robosuite TwoArmTransport: two arms carry a hammer from bin to bin", "TwoArmTransport", 700, arms=2
    ),
}
