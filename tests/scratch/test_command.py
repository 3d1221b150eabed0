"""``flowrl train``: its messages, and a short run on a real task."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowrl.cli.app import build
from flowrl.config import find_recipe, load_recipe
from flowrl.errors import ConfigError, UsageError
from flowrl.learner.config import RunConfig
from flowrl.scratch.config import DeterministicActorConfig, FlowActorConfig, ScratchConfig, recipe_class


def invoke(*words: str) -> str:
    result = CliRunner().invoke(build(), ["train", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_trains_resumes_and_is_found_again(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    small = [
        "environment.name=half_cheetah",
        "environment.settings={max_steps: 25}",
        "environment.count=4",
        "update.start_steps=100",
        "update.batch_size=16",
        "critic.width=16",
        "actor.width=16",
        "evaluation={episodes: 2, every_steps: 200, final_episodes: 2}",
    ]
    output = invoke("go1_qf3", *small, "budget.env_steps=200", "--runs", str(tmp_path))
    assert "200 steps and 26 updates" in output
    assert "one ODE sample, zero noise, 5 Euler steps" in output
    run = tmp_path / "go1_qf3-1"
    assert (run / "policy" / "policy.json").is_file()
    resumed = invoke("--resume", "go1_qf3-1", "--runs", str(tmp_path))
    assert "resumed at step 200, 26 updates" in resumed


def test_the_environments_are_listed() -> None:
    assert "Go1 quadruped" in invoke("--environments")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"train needs a recipe"),
        (["lift_sqam"], r"'lift_sqam' fine-tunes a policy: use flowrl finetune"),
        (["go1_qf3", "environment.name=go2_joystick"], r"did you mean 'go1_joystick'"),
        (["go1_qf3", "--resume", "go1_qf3-1"], r"leave the recipe and overrides out"),
    ],
)
def test_a_wrong_use_is_explained(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        invoke(*words, "--runs", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_misspelt_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"actor.flow_weight"):
        invoke("go1_qf3", "actor.flow_wieght=0.1", "--runs", str(tmp_path))


@pytest.mark.parametrize("task", ["go1", "humanoid"])
def test_the_baseline_differs_in_its_actor_alone(task: str) -> None:
    flow, deterministic = (load_recipe(ScratchConfig, f"{task}_{actor}") for actor in ("qf3", "td3"))
    assert isinstance(flow.actor, FlowActorConfig)
    assert isinstance(deterministic.actor, DeterministicActorConfig)
    differing = [key for key, value in vars(flow).items() if value != vars(deterministic)[key]]
    assert differing == ["name", "actor"]
    for key in ("width", "depth", "activation", "layer_norm"):
        assert getattr(flow.actor, key) == getattr(deterministic.actor, key)


def test_a_recipe_says_which_command_it_is_for() -> None:
    assert recipe_class(find_recipe("go1_td3")) is ScratchConfig
    assert recipe_class(find_recipe("lift_sqam")) is RunConfig
