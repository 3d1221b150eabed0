"""Environments by name: ``make("lift")``. Simulators are imported only when one is made."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl.errors import UsageError
from sim.base import SimEnv, Views


@dataclass(frozen=True)
class Entry:
    """How one environment is made: its settings with defaults, and a builder that takes them all."""

    summary: str
    """What it is and, after a colon, the task in words."""
    package: str
    settings: Mapping[str, Any]
    build: Callable[..., SimEnv] = field(repr=False)

    @property
    def instruction(self) -> str:
        """The task in words: what a policy that reads is told."""
        return self.summary.partition(": ")[2]


_VIEWS = {"shadows": False, "cameras": "", "image_size": 84}


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
    env = entry.build(name, **{**entry.settings, **settings})
    env.instruction = entry.instruction
    return env


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
    def build(name: str, max_steps: int, decimation: int | None, object_state: bool, **views: Any) -> SimEnv:
        from sim.robosuite_env import RobosuiteEnv, RobosuiteTask

        task = RobosuiteTask(robosuite_name, arms)
        return RobosuiteEnv(name, task, max_steps, decimation, Views.from_settings(**views), object_state)

    settings = {"max_steps": max_steps, "decimation": 5, "object_state": True, **_VIEWS}
    return Entry(summary, "robosuite", settings, build)


def _ogbench_entry(summary: str, ogbench_name: str, max_steps: int) -> Entry:
    def build(name: str, max_steps: int, task_id: int, **views: Any) -> SimEnv:
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
        seen = Views.from_settings(**views)
        return ogbench_env.OGBenchEnv(name, ogbench_name, parts, task_id, max_steps, seen)

    return Entry(summary, "ogbench", {"max_steps": max_steps, "task_id": 0, **_VIEWS}, build)


def _fetch_entry(summary: str, module: str, class_name: str) -> Entry:
    def build(name: str, max_steps: int, **views: Any) -> SimEnv:
        from sim.gymnasium_env import Fetch

        seen = Views.from_settings(**views)
        return Fetch(name, f"gymnasium_robotics.envs.fetch.{module}", class_name, max_steps, seen)

    return Entry(summary, "gymnasium-robotics", {"max_steps": 50, **_VIEWS}, build)


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
    "lift": _robosuite_entry("robosuite Lift: lift the cube", "Lift", 100),
    "can": _robosuite_entry("robosuite PickPlaceCan: put the can into its bin", "PickPlaceCan", 200),
    "square": _robosuite_entry(
        "robosuite NutAssemblySquare: put the square nut on the peg", "NutAssemblySquare", 400
    ),
    "transport": _robosuite_entry(
        "robosuite TwoArmTransport: carry the hammer from bin to bin with both arms",
        "TwoArmTransport",
        700,
        arms=2,
    ),
    "handover": _robosuite_entry(
        "robosuite TwoArmHandover: hand the hammer over from one arm to the other",
        "TwoArmHandover",
        700,
        arms=2,
    ),
    "cube_single": _ogbench_entry("OGBench cube-single: move the cube to its goal", "cube-single", 200),
    "cube_double": _ogbench_entry("OGBench cube-double: move both cubes to their goals", "cube-double", 500),
    "scene": _ogbench_entry("OGBench scene: arrange cube, buttons, drawer and window", "scene", 750),
    "puzzle_3x3": _ogbench_entry(
        "OGBench puzzle-3x3: press buttons until the lights are as wanted", "puzzle-3x3", 500
    ),
    "pusht": _pusht_entry(),
    "fetch_push": _fetch_entry("Fetch: push the puck to its goal", "push", "MujocoFetchPushEnv"),
    "fetch_pick_and_place": _fetch_entry(
        "Fetch: carry the block to its goal", "pick_and_place", "MujocoFetchPickAndPlaceEnv"
    ),
    "metaworld_push": _metaworld_entry("MetaWorld push: push the puck to its goal", "MetaWorld/Push-v3"),
}
