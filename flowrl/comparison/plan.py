"""What is compared: recipes resolved under one budget, and seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flowrl.comparison.agreement import NEW_POLICY, require_agreement
from flowrl.comparison.place import Place
from flowrl.config import find_recipe, load_recipe, show
from flowrl.errors import UsageError
from flowrl.learner.config import InterleavedConfig, RunConfig

FORMAT = 1
PERIODIC_EPISODES = 20
DriverChoice = Literal["interleaved", "recipe"]


@dataclass(frozen=True)
class Contender:
    """A recipe of a comparison, resolved. ``name`` is unique in it and names the run directories."""

    name: str
    config: RunConfig


@dataclass(frozen=True)
class Plan:
    """Recipes, seeds, and what every seed starts from.

    Attributes:
        contenders: the first is the one the others are compared with.
        seeds: of runs, and of bases that are cloned.
        policy: a base policy for every seed; None clones one for each.
        replay: demonstrations; None lets the environment's scripted expert give them.
    """

    contenders: tuple[Contender, ...]
    seeds: tuple[int, ...]
    policy: Path | None = None
    replay: Path | None = None

    def contender(self, name: str) -> Contender:
        """A contender by name."""
        return next(contender for contender in self.contenders if contender.name == name)

    def config(self, name: str, seed: int) -> RunConfig:
        """The configuration of one run: the recipe with run and base of this seed."""
        config = self.contender(name).config
        return replace(config, name=name, seed=seed, pretrain=replace(config.pretrain, seed=seed))

    def base_config(self, seed: int) -> RunConfig:
        """The configuration that makes a seed's base: any contender's, they agree in what matters."""
        return self.config(self.contenders[0].name, seed)

    def write(self, place: Place) -> None:
        """Store the plan in the comparison's directory."""
        place.recipes.mkdir(parents=True, exist_ok=True)
        for contender in self.contenders:
            (place.recipes / f"{contender.name}.yaml").write_text(show(contender.config))
        data = {
            "format": FORMAT,
            "recipes": [contender.name for contender in self.contenders],
            "seeds": list(self.seeds),
            "policy": None if self.policy is None else str(self.policy),
            "replay": None if self.replay is None else str(self.replay),
        }
        aside = place.plan.with_name(f".{place.plan.name}")
        aside.write_text(json.dumps(data, indent=2) + "\n")
        aside.replace(place.plan)

    @classmethod
    def read(cls, place: Place) -> Plan:
        """Read what `write` stored. Raises UsageError when there is none, or one of a newer format."""
        if not place.plan.is_file():
            raise UsageError(f"no comparison in {place.directory} (it has no {place.plan.name})")
        data = json.loads(place.plan.read_text())
        if data["format"] > FORMAT:
            raise UsageError(f"{place.plan}: format {data['format']} is newer than {FORMAT}; upgrade flowrl")
        contenders = tuple(
            Contender(name, load_recipe(RunConfig, str(place.recipes / f"{name}.yaml")))
            for name in data["recipes"]
        )
        paths = (None if data[key] is None else Path(data[key]) for key in ("policy", "replay"))
        return cls(contenders, tuple(data["seeds"]), *paths)


def make_plan(
    recipes: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str] = (),
    *,
    driver: DriverChoice = "interleaved",
    points: int = 8,
    policy: Path | None = None,
    replay: Path | None = None,
) -> Plan:
    """Resolve recipes under common overrides and check that they may be compared.

    Args:
        recipes: names or YAML files.
        seeds: at least one; none twice.
        overrides: dotted overrides for every recipe.
        driver: ``interleaved`` for all, deterministic and with equal updates per step; ``recipe`` keeps
            each recipe's own.
        points: periodic evaluations of each run, where the recipes ask for none and the number of
            updates is known beforehand.
        policy: see `Plan`.
        replay: see `Plan`.

    Raises:
        ConfigError: an unknown recipe (naming the nearest) or setting.
        UsageError: a recipe or seed twice, too few of them, or recipes that differ in task or budget.
    """
    if len(recipes) < 1 or not seeds:
        raise UsageError("a comparison needs recipes and seeds: flowrl compare lift_sqam my_recipe --seeds 3")
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds {', '.join(map(str, seeds))}: one is there twice")
    kind = ["driver.kind=interleaved"] if driver == "interleaved" else []
    configs: dict[str, RunConfig] = {}
    for recipe in recipes:
        path = find_recipe(recipe)
        if path.stem in configs:
            raise UsageError(
                f"recipe {path.stem!r} is there twice; to compare settings of one recipe, write a second that "
                f"extends it (extends: {path.stem}) under another name"
            )
        configs[path.stem] = load_recipe(RunConfig, str(path), [*kind, *overrides])
    given = [*(NEW_POLICY if policy else ()), *(("demonstrations",) if replay else ())]
    require_agreement(configs, given, same_driver=driver == "interleaved")
    contenders = tuple(Contender(name, with_points(config, points)) for name, config in configs.items())
    given_paths = (None if path is None else path.resolve() for path in (policy, replay))
    return Plan(contenders, tuple(seeds), *given_paths)


def with_points(config: RunConfig, points: int) -> RunConfig:
    """The configuration with about ``points`` periodic evaluations, unless it has its own.

    Without a known number of updates (only seconds limit the run, or workers collect) it stays as it is.
    """
    updates = expected_updates(config)
    if config.evaluation.periodic_episodes or updates is None or points < 1:
        return config
    every = math.ceil(updates / (points + 1))
    evaluation = replace(config.evaluation, periodic_episodes=PERIODIC_EPISODES, every_updates=every)
    return replace(config, evaluation=evaluation)


def expected_updates(config: RunConfig) -> int | None:
    """Updates that the budget allows, seconds left aside; None where that is not known beforehand."""
    limits = list[int]()
    if config.budget.updates is not None:
        limits.append(config.budget.updates)
    if config.budget.env_steps is not None and isinstance(config.driver, InterleavedConfig):
        limits.append(math.ceil(config.budget.env_steps * config.driver.updates_per_step))
    return max(min(limits), 1) if limits else None


def budget_overrides(
    env_steps: int | None = None,
    updates: int | None = None,
    wall_s: float | None = None,
    updates_per_step: float | None = None,
) -> list[str]:
    """Overrides that give every recipe this budget.

    A limit that is given replaces the recipe's whole budget, so that no other one ends a run earlier.
    """
    limits: dict[str, Any] = {"env_steps": env_steps, "updates": updates, "wall_s": wall_s}
    found: list[str] = []
    if any(limit is not None for limit in limits.values()):
        found += [f"budget.{key}={'null' if value is None else value}" for key, value in limits.items()]
    if updates_per_step is not None:
        found.append(f"driver.updates_per_step={updates_per_step}")
    return found
