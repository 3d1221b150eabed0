"""The interleaved driver: the order of a run, determinism, resume, and what stops it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.algorithms.sqam import SQAM
from flowrl.errors import (
    EXIT_RESUMABLE,
    DataError,
    Interrupted,
    NonFiniteLoss,
    SpecMismatch,
    Stopped,
    Terminated,
    UsageError,
)
from flowrl.learner.config import RunConfig
from flowrl.learner.drivers import Interleaved, Simulation
from flowrl.learner.learner import Learner
from flowrl.learner.loop import finetune, resolve_device
from flowrl.learner.metrics import read_metrics
from flowrl.learner.run import Run
from flowrl.policies.io import load_policy
from flowrl.replay.verify import verify
from tests.learner.conftest import settings, weights
from tests.reach import ReachEnv

MakeRun = Callable[[RunConfig], Run]


def test_a_run_leaves_everything_it_promises(new_run: MakeRun, simulation: Simulation) -> None:
    run = new_run(settings())
    result = finetune(run, run.config(), simulation)
    assert result.updates == 20
    assert result.changed
    assert len(result.base.episodes) == len(result.tuned.episodes) == 6
    assert [e.seed for e in result.base.episodes] == [e.seed for e in result.tuned.episodes]
    for name in ("config.yaml", "spec.json", "metrics.jsonl", "result.json", "log.txt", "policy", "base"):
        assert (run.directory / name).exists(), name
    assert list((run.directory / "tensorboard").iterdir())
    assert verify(run.replay).ok
    columns = read_metrics(run.metrics)
    assert {"critic/td_loss", "dual/lambda", "actor/flow_curvature", "evaluation/success"} <= set(columns)
    assert run.read_json("result.json")["warm_up_steps"] >= 60


def test_two_runs_of_one_seed_are_bit_equal(new_run: MakeRun, simulation: Simulation) -> None:
    config = settings()
    first, second = new_run(config), new_run(config)
    finetune(first, config, simulation)
    finetune(second, config, simulation)
    assert_equal(weights(first), weights(second))


def test_resume_after_an_interruption_equals_an_uninterrupted_run(
    new_run: MakeRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()
    whole = new_run(config)
    finetune(whole, config, simulation)

    halted = new_run(config)
    interrupt_at(monkeypatch, 13)
    with pytest.raises(Interrupted, match="resume"):
        finetune(halted, config, simulation)
    monkeypatch.undo()
    assert halted.checkpoints.latest() == 13
    finetune(halted, config, simulation)
    assert_equal(weights(whole), weights(halted))
    whole_state, halted_state = (run.checkpoints.load(20).state for run in (whole, halted))
    for key in ("algorithm", "sampler", "driver"):
        drop_snapshot(whole_state[key]), drop_snapshot(halted_state[key])
        assert_equal(whole_state[key], halted_state[key], key)


def test_a_terminated_run_is_saved_and_says_that_it_can_be_resumed(
    new_run: MakeRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()
    run = new_run(config)
    interrupt_at(monkeypatch, 12, Terminated)
    with pytest.raises(Stopped) as caught:
        finetune(run, config, simulation)
    assert caught.value.exit_code == EXIT_RESUMABLE
    assert run.checkpoints.latest() == 12


def test_a_signal_in_the_middle_of_an_update_stops_after_it(
    new_run: MakeRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()
    whole, halted = new_run(config), new_run(config)
    finetune(whole, config, simulation)
    original = SQAM.losses

    def signalled(self: SQAM, *arguments: Any) -> Any:
        if int(self.optimiser.state_dict()["state"].get(0, {}).get("step", 0)) == 10 + 13:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(SQAM, "losses", signalled)
    with pytest.raises(Interrupted, match="update 14"):
        finetune(halted, config, simulation)
    monkeypatch.undo()
    finetune(halted, config, simulation)
    assert_equal(weights(whole), weights(halted))


def test_a_stop_before_a_resume_is_restored_keeps_the_checkpoints(
    new_run: MakeRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(settings())
    finetune(run, run.config(), simulation)
    monkeypatch.setattr(Interleaved, "restore", raise_it(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        finetune(run, run.config(), simulation)
    assert run.checkpoints.latest() == 20


def test_a_longer_budget_is_evaluated_again(new_run: MakeRun, simulation: Simulation) -> None:
    run = new_run(settings())
    finetune(run, run.config(), simulation)
    stale = run.read_json("result.json")["tuned"]
    stale["rule"] = "an older policy"
    run.write_json("result.json", {**run.read_json("result.json"), "tuned": stale})
    longer = finetune(run, settings(budget={"updates": 26}), simulation)
    assert longer.updates == 26
    assert longer.tuned.rule != "an older policy"


def test_a_device_that_is_not_there_is_refused(new_run: MakeRun, simulation: Simulation) -> None:
    config = settings(device="cuda:7")
    if torch.cuda.is_available():
        assert resolve_device("auto") == "cuda"
        return
    with pytest.raises(UsageError, match="no CUDA device"):
        finetune(new_run(config), config, simulation)
    assert resolve_device("auto") == "cpu"


def test_resume_after_a_kill_repeats_what_came_after_the_checkpoint(
    new_run: MakeRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()
    whole = new_run(config)
    finetune(whole, config, simulation)
    killed = new_run(config)
    # A kill saves nothing: raise what no handler of the loop catches.
    interrupt_at(monkeypatch, 17, SystemExit)
    with pytest.raises(SystemExit):
        finetune(killed, config, simulation)
    monkeypatch.undo()
    assert killed.checkpoints.latest() == 10
    finetune(killed, config, simulation)
    assert_equal(weights(whole), weights(killed))
    steps = read_metrics(killed.metrics)["step"]
    assert list(steps[steps > 0]) == sorted(steps[steps > 0])


def test_a_finished_run_resumes_to_the_same_result(new_run: MakeRun, simulation: Simulation) -> None:
    run = new_run(settings())
    first = finetune(run, run.config(), simulation)
    again = finetune(run, run.config(), simulation)
    assert again.tuned == first.tuned
    assert again.updates == first.updates


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(
    new_run: MakeRun, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings()
    run = new_run(config)
    original = Learner.step

    def poisoned(self: Learner) -> None:
        if self.updates == 14:
            with torch.no_grad():
                self.algorithm.fast.network[0].weight[0, 0] = float("nan")  # type: ignore[attr-defined]
        original(self)

    monkeypatch.setattr(Learner, "step", poisoned)
    with pytest.raises(NonFiniteLoss, match=r"update 15.*checkpoint is that of update 10"):
        finetune(run, config, simulation)
    loaded = run.checkpoints.load_latest()
    assert loaded is not None
    assert loaded.step == 10
    policy = load_policy(loaded.directory / "policy")
    assert all(bool(torch.isfinite(p).all()) for p in policy.parameters())


def test_an_observation_that_is_not_finite_is_named_and_nothing_is_lost(
    new_run: MakeRun, simulation: Simulation
) -> None:
    config = settings(warm_up={"env_steps": 200})
    run = new_run(config)
    sick = Simulation(lambda: ReachEnv(poison_after=250), simulation.command, simulation.description)
    with pytest.raises(DataError, match=r"worker-0.*episode"):
        finetune(run, config, sick)
    assert verify(run.replay).ok


def test_a_policy_for_another_environment_is_refused_by_name(
    new_run: MakeRun, simulation: Simulation
) -> None:
    class Other(ReachEnv):
        interface = ReachEnv.interface.__class__(
            **{**vars(ReachEnv.interface), "settings": {"simulator": "other"}}
        )

    config = settings()
    with pytest.raises(SpecMismatch, match=r"settings\.simulator"):
        finetune(new_run(config), config, Simulation(Other, (), simulation.description))


def test_the_budget_counts_steps_after_the_warm_up(new_run: MakeRun, simulation: Simulation) -> None:
    config = settings(budget={"env_steps": 80, "updates": None})
    run = new_run(config)
    result = finetune(run, config, simulation)
    assert 80 <= result.steps < 80 + ReachEnv.max_steps
    assert abs(result.updates - 0.5 * result.steps) <= 0.5 * ReachEnv.max_steps


def test_evaluation_starts_are_never_collected(new_run: MakeRun, simulation: Simulation) -> None:
    run = new_run(settings())
    result = finetune(run, run.config(), simulation)
    learner = Learner(run, run.config(), load_policy(run.base))
    collected = {learner.reader.episode(i).seed for i in range(learner.reader.episodes)}
    assert collected.isdisjoint({e.seed for e in result.base.episodes})


def interrupt_at(
    monkeypatch: pytest.MonkeyPatch, update: int, kind: type[BaseException] = KeyboardInterrupt
) -> None:
    original = Learner.step

    def step(self: Learner) -> None:
        original(self)
        if self.updates == update:
            # After the driver has done its books for this update, as a signal would arrive in the next one.
            monkeypatch.setattr(Interleaved, "_collect", raise_it(kind))
            monkeypatch.setattr(Learner, "step", raise_it(kind))

    monkeypatch.setattr(Learner, "step", step)


def raise_it(kind: type[BaseException]) -> Callable[..., Any]:
    def raising(*arguments: Any) -> Any:
        raise kind

    return raising


def drop_snapshot(state: Any) -> None:
    if isinstance(state, dict):
        state.pop("snapshot", None)


def assert_equal(left: Any, right: Any, where: str = "") -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_equal(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_equal(a, b, f"{where}[{index}]")
    elif isinstance(left, torch.Tensor | np.ndarray):
        assert np.array_equal(np.asarray(left), np.asarray(right)), where
    else:
        assert left == right, where
