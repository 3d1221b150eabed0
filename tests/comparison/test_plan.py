"""What may be compared: equal tasks and budgets, told by name before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.comparison import Place, Plan, make_plan
from flowrl.comparison.plan import budget_overrides, expected_updates, with_points
from flowrl.errors import ConfigError, UsageError
from tests.comparison.conftest import paths


def variant(recipes: Path, where: Path, text: str, name: str = "variant") -> list[str]:
    """The first recipe and one that extends it."""
    base = recipes / "reach_sqam.yaml"
    path = where / f"{name}.yaml"
    path.write_text(f"extends: {base}\nname: {name}\n{text}\n")
    return [str(base), str(path)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "chunk: {length: 4}",
            r"chunk\.length is 3 in reach_sqam and 4 in variant; .*--set chunk\.length=3 \(or 4\)",
        ),
        ("policy: {width: 16}", r"policy\.width is 32 .* and 16"),
        ("policy: {kind: flow_transformer}", r"policy\.kind is flow_mlp .* and flow_transformer"),
        ("environment: {name: lift}", r"environment\.name is reach .* and lift"),
        ("demonstrations: {episodes: 9}", r"demonstrations\.episodes is 4 .* and 9"),
        ("pretrain: {steps: 7}", r"pretrain\.steps is 120 .* and 7"),
        ("evaluation: {offset: 10}", r"evaluation\.offset is 0 .* and 10"),
        ("sampling: {end_rule: strict}", r"sampling\.end_rule is padded .* and strict"),
        (
            "budget: {env_steps: 200}",
            r"budget differs: budget\.env_steps is 100 .* and 200 .*--env-steps 100",
        ),
        ("budget: {wall_s: 5.0}", r"budget\.wall_s is null .* and 5\.0 .*--wall S"),
        ("warm_up: {env_steps: 90}", r"warm_up\.env_steps is 60 .* and 90"),
        ("driver: {updates_per_step: 2.0}", r"driver\.updates_per_step is 0\.5 .*--updates-per-step 0\.5"),
    ],
)
def test_a_difference_is_refused_by_key_with_both_values(
    recipes: Path, tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        make_plan(variant(recipes, tmp_path, text), [0])


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("chunk: {length: 4}", ["chunk.length=4"]),
        ("budget: {wall_s: 5.0}", budget_overrides(updates=50)),
        ("driver: {updates_per_step: 2.0}", budget_overrides(updates_per_step=1.0)),
        ("algorithm: {kind: imitation}\nwarm_up: {updates: 0}", []),
    ],
)
def test_what_the_message_proposes_aligns_them(
    recipes: Path, tmp_path: Path, text: str, overrides: list[str]
) -> None:
    plan = make_plan(variant(recipes, tmp_path, text), [0], overrides)
    assert [contender.name for contender in plan.contenders] == ["reach_sqam", "variant"]


def test_a_given_policy_makes_the_settings_of_new_ones_irrelevant(recipes: Path, tmp_path: Path) -> None:
    words = variant(recipes, tmp_path, "chunk: {length: 4}\npretrain: {steps: 7}")
    assert make_plan(words, [0], policy=tmp_path).policy == tmp_path
    with pytest.raises(UsageError, match=r"chunk\.length"):
        make_plan(words, [0], replay=tmp_path)


def test_the_same_recipe_twice_is_refused(recipes: Path) -> None:
    with pytest.raises(UsageError, match=r"'reach_sqam' is there twice.*extends: reach_sqam"):
        make_plan(paths(recipes, "reach_sqam", "reach_imitation", "reach_sqam"), [0])


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'lift_sqm': the nearest is 'lift_sqam'"):
        make_plan(["lift_sqm"], [0])


@pytest.mark.parametrize("seeds", [[], [0, 1, 0]])
def test_seeds_are_needed_once_each(recipes: Path, seeds: list[int]) -> None:
    with pytest.raises(UsageError, match="seeds"):
        make_plan(paths(recipes, "reach_sqam"), seeds)


def test_asynchronous_recipes_are_interleaved_unless_they_keep_their_driver() -> None:
    (own,) = make_plan(["lift_sqam"], [0], driver="recipe").contenders
    (common,) = make_plan(["lift_sqam"], [0]).contenders
    assert (own.config.driver.kind, common.config.driver.kind) == ("asynchronous", "interleaved")


def test_a_limit_replaces_the_whole_budget() -> None:
    (contender,) = make_plan(["lift_sqam"], [0], budget_overrides(updates=100)).contenders
    budget = contender.config.budget
    assert (budget.env_steps, budget.updates, budget.wall_s) == (None, 100, None)
    assert budget_overrides() == []


def test_points_divide_the_known_updates_and_leave_recipes_that_have_their_own(recipes: Path) -> None:
    (bare,) = make_plan(
        paths(recipes, "reach_sqam"), [0], ["evaluation.periodic_episodes=0"], points=4
    ).contenders
    # 100 steps at 0.5 updates each: 50 updates, evaluated after 10, 20, 30 and 40, then at the end.
    assert expected_updates(bare.config) == 50
    assert (bare.config.evaluation.every_updates, bare.config.evaluation.periodic_episodes) == (10, 20)
    assert with_points(bare.config, 9) == bare.config
    (timed,) = make_plan(["lift_sqam"], [0], budget_overrides(wall_s=9.0)).contenders
    assert expected_updates(timed.config) is None
    assert timed.config.evaluation.periodic_episodes == 0


def test_a_plan_is_read_as_it_was_written(plan: Plan, tmp_path: Path) -> None:
    place = Place(tmp_path)
    plan.write(place)
    assert Plan.read(place) == plan
    with pytest.raises(UsageError, match="no comparison"):
        Plan.read(Place(tmp_path / "elsewhere"))


def test_a_seed_changes_run_and_base_and_nothing_else(plan: Plan) -> None:
    config, other = plan.config("reach_sqam", 0), plan.config("reach_sqam", 5)
    assert (other.seed, other.pretrain.seed, other.name) == (5, 5, "reach_sqam")
    assert other.demonstrations == config.demonstrations
    assert other.evaluation == config.evaluation
