"""The recipes for Lift differ in the algorithm alone: otherwise a comparison would compare something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flowrl.config import load_recipe
from flowrl.learner.config import RunConfig

RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "configs").glob("lift_*.yaml"))
SHARED = ("environment", "demonstrations", "chunk", "policy", "pretrain", "warm_up", "evaluation", "device")
CRITIC = ("heads", "width", "depth", "layer_norm", "activation", "polyak", "learning_rate")


def recipe(name: str) -> RunConfig:
    return load_recipe(RunConfig, name)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_shares_all_but_the_algorithm(name: str) -> None:
    reference, found = recipe("lift_sqam"), recipe(name)
    assert found.name == name
    for section in SHARED:
        assert getattr(found, section) == getattr(reference, section), section
    named = reference.sampling.named
    assert replace(found.sampling, named=named) == reference.sampling
    assert named.items() <= found.sampling.named.items()


@pytest.mark.parametrize("name", RECIPES)
def test_critics_are_of_one_size(name: str) -> None:
    critic, reference = (getattr(recipe(n).algorithm, "critic", None) for n in (name, "lift_sqam"))
    assert reference is not None
    if critic is not None:
        assert {k: getattr(critic, k) for k in CRITIC} == {k: getattr(reference, k) for k in CRITIC}
        assert (critic.target_low, critic.target_high) == (-10.0, 0.0)


@pytest.mark.parametrize("name", RECIPES)
def test_discount_and_named_sources_exist(name: str) -> None:
    config = recipe(name)
    known = {*config.sampling.mix, *config.sampling.named, "demonstrations", "successes", None}
    assert config.algorithm.discount == 0.99
    sources = [v for k, v in vars(config.algorithm).items() if k.endswith("source")]
    assert set(sources) <= known
