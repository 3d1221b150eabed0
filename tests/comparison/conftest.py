"""A small comparison on the reach task: recipes in files, and one comparison that ran to its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowrl.cli import compare as command
from flowrl.comparison import Outcome, Place, Plan, compare, make_plan
from flowrl.comparison.work import work
from sim import experts, registry
from tests.comparison import reach_flowrl

SQAM = """# Reach with SQAM.
name: reach_sqam
environment: {name: reach}
demonstrations: {episodes: 4, noise: 0.0}
chunk: {length: 3}
policy: {kind: flow_mlp, width: 32, depth: 2, flow_steps: 4}
pretrain: {steps: 120, batch_size: 32}
sampling: {batch_size: 16, end_rule: padded, reward_scale: 0.1, reward_shift: -1.0}
algorithm: {kind: sqam, discount: 0.95, critic: {heads: 2, width: 32, depth: 2}, average_actor: 0.05}
warm_up: {env_steps: 60, updates: 10}
driver: {kind: interleaved, updates_per_step: 0.5}
budget: {env_steps: 100}
evaluation: {episodes: 6, periodic_episodes: 3, every_updates: 15}
log_every: 5
checkpoint_every: 10
"""
IMITATION = (
    "# Reach with self-imitation.\nextends: reach_sqam\nname: reach_imitation\nalgorithm: {kind: imitation}\n"
)
BROKEN = "# Diverges at once.\nextends: reach_sqam\nname: reach_broken\nalgorithm: {learning_rate: 1.0e+30}\n"
RECIPES = {"reach_sqam": SQAM, "reach_imitation": IMITATION, "reach_broken": BROKEN}


def write_recipes(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in RECIPES.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def paths(recipes: Path, *names: str) -> list[str]:
    return [str(recipes / f"{name}.yaml") for name in names]


@pytest.fixture(scope="session")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipes(tmp_path_factory.mktemp("recipes"))


@pytest.fixture(scope="session", autouse=True)
def reach() -> None:
    """The reach task among the environments of this process."""
    before = dict(registry._ENTRIES), dict(experts._EXPERTS), command.job_command
    reach_flowrl.install()
    yield
    registry._ENTRIES.clear(), registry._ENTRIES.update(before[0])
    experts._EXPERTS.clear(), experts._EXPERTS.update(before[1])
    command.job_command = before[2]


@pytest.fixture(scope="session")
def plan(recipes: Path) -> Plan:
    """SQAM against imitation, two seeds."""
    return make_plan(paths(recipes, "reach_sqam", "reach_imitation"), [0, 1])


def do_jobs(plan: Plan, place: Place) -> None:
    """Every job of a plan, in this process: what the processes of a comparison do, without their start."""
    plan.write(place)
    for seed in plan.seeds:
        work([str(place.directory), "base", str(seed)], command._Simulators())
        for contender in plan.contenders:
            work([str(place.directory), "run", contender.name, str(seed)], command._Simulators())


REFUSE = [sys.executable, "-c", "raise SystemExit('no process was expected')"]
"""A command for jobs where every job is done."""


@pytest.fixture(scope="session")
def finished(plan: Plan, tmp_path_factory: pytest.TempPathFactory, reach: None) -> Outcome:
    """A finished comparison; tests only read it, or copy its directory."""
    place = Place(tmp_path_factory.mktemp("comparison"))
    do_jobs(plan, place)
    return compare(plan, place, REFUSE)
