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
    return sorted(_ENTRIES)


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
    if name not in _ENTRIES:
        raise UsageError(
            f"unknown environment {name!r}{_nearest(name, _ENTRIES)}; known are {', '.join(names())}"
        )
    return _ENTRIES[name]


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def _robosuite_entry(summary: str, robosuite_name: str, max_steps: int, arms: int = 1) -> Entry:
    def build(name: str, max_steps: int, decimation: int | None, shadows: bool) -> SimEnv:
        from sim.robosuite_env import RobosuiteEnv, RobosuiteTask

        return RobosuiteEnv(name, RobosuiteTask(robosuite_name, arms), max_steps, decimation, shadows)

    settings = {"max_steps": max_steps, "decimation": 5, "shadows": False}
    return Entry(summary, "robosuite", settings, build)


def _ogbench_entry(summary: str, ogbench_name: str, max_steps: int) -> Entry:
    def build(name: str, max_steps: int, task_id: int, shadows: bool) -> SimEnv:
        from sim import ogbench_env

        parts = {
            "cube-single": ogbench_env.cubes(1),
            "cube-double": ogbench_env.cubes(2),
            "scene": {
                **ogbench_env.cubes(1),
                **ogbench_env.buttons(2),
                **ogbench_env.drawer_and_window(),
            },
            "puzzle-3x3": ogbench_env.buttons(9),
        }[ogbench_name]
        return ogbench_env.OGBenchEnv(name, ogbench_name, parts, task_id, max_steps, shadows)

    return Entry(summary, "ogbench", {"max_steps": max_steps, "task_id": 0, "shadows": False}, build)


def _fetch_entry(summary: str, module: str, class_name: str) -> Entry:
    def build(name: str, max_steps: int, shadows: bool) -> SimEnv:
        from sim.gymnasium_env import Fetch

        return Fetch(name, f"gymnasium_robotics.envs.fetch.{module}", class_name, max_steps, shadows)

    return Entry(summary, "gymnasium-robotics", {"max_steps": 50, "shadows": False}, build)


def _pusht_entry() -> Entry:
    def build(name: str, max_steps: int) -> SimEnv:
        from sim.gymnasium_env import PushT

        return PushT(name, max_steps)

    return Entry("PushT: push the T onto its target", "gym-pusht", {"max_steps": 300}, build)


def _metaworld_entry(summary: str, task: str) -> Entry:
    def build(name: str, max_steps: int) -> SimEnv:
        from sim.envpool_env import MetaWorldEnv

        return MetaWorldEnv(name, task, max_steps)

    return Entry(summary, "envpool", {"max_steps": 500}, build)


_ENTRIES: dict[str, Entry] = {
    "lift": _robosuite_entry("robosuite Lift: one arm lifts a cube", "Lift", 100),
    "can": _robosuite_entry("robosuite PickPlaceCan: one arm moves a can to its bin", "PickPlaceCan", 200),
    "square": _robosuite_entry(
        "robosuite NutAssemblySquare: one arm puts a square nut on its peg", "NutAssemblySquare", 400
    ),
    "transport": _robosuite_entry(
        "robosuite TwoArmTransport: two arms carry a hammer from bin to bin", "TwoArmTransport", 700, arms=2
    ),
    "cube_single": _ogbench_entry("OGBench cube-single: move a cube", "cube-single", 200),
    "cube_double": _ogbench_entry("OGBench cube-double: rearrange two cubes", "cube-double", 500),
    "scene": _ogbench_entry("OGBench scene: cube, buttons, drawer and window", "scene", 750),
    "puzzle_3x3": _ogbench_entry("OGBench puzzle-3x3: press buttons to switch lights", "puzzle-3x3", 500),
    "pusht": _pusht_entry(),
    "fetch_push": _fetch_entry("Fetch: push a puck to a goal", "push", "MujocoFetchPushEnv"),
    "fetch_pick_and_place": _fetch_entry(
        "Fetch: carry a block to a goal", "pick_and_place", "MujocoFetchPickAndPlaceEnv"
    ),
    "metaworld_push": _metaworld_entry("MetaWorld push: push a puck to a goal", "MetaWorld/Push-v3"),
}
