"""Workers and learner as real processes: ratio, crashes on either side, evaluation, resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl import seeds
from flowrl.acting import Actor
from flowrl.evaluation import evaluate
from flowrl.learner.config import RunConfig
from flowrl.learner.control import Control, RatioLimiter, read_control, write_control
from flowrl.learner.drivers import Asynchronous, Simulation
from flowrl.learner.loop import finetune
from flowrl.learner.processes import EvaluatorPool, WorkerFailed
from flowrl.learner.run import Run
from flowrl.policies.io import load_policy
from flowrl.replay.reader import ReplayReader
from flowrl.replay.verify import verify
from tests.learner.conftest import settings
from tests.reach import ReachEnv
from tests.waiting import wait_for

MakeRun = Callable[[RunConfig], Run]
DEADLINE = 150.0
ASYNCHRONOUS = {
    "kind": "asynchronous",
    "workers": 1,
    "updates_per_step_low": 0.2,
    "updates_per_step_high": 1.0,
    "publish_every": 5,
}


def reach_simulation() -> Simulation:
    """The reach task in worker processes."""
    return Simulation(
        make=ReachEnv,
        command=[sys.executable, "-m", "tests.reach_worker"],
        description={"name": "reach", "settings": {}},
    )


def asynchronous(**changes: object) -> RunConfig:
    defaults: dict[str, object] = {"evaluation": {"workers": 1}, "budget": {"updates": 60}}
    return settings(driver=ASYNCHRONOUS, **{**defaults, **changes})


def test_workers_collect_with_new_weights_within_the_ratio(new_run: MakeRun) -> None:
    config = asynchronous()
    run = new_run(config)
    result = finetune(run, config, reach_simulation())
    assert result.updates == 60
    assert verify(run.replay).ok
    reader = ReplayReader(run.replay)
    versions = {int(v) for v in reader.column("policy_version") if v >= 0}
    assert len(versions) >= 2, "the weights never changed while collecting"
    limiter = RatioLimiter(0.2, 1.0, slack=200)
    # An episode that was running when the limit was reached is finished.
    assert result.steps <= limiter.step_limit(result.updates) + ReachEnv.max_steps
    assert result.updates <= 1.0 * (result.steps + 200)


def test_two_workers_fill_two_streams_from_different_starts(new_run: MakeRun) -> None:
    config = settings(
        driver={**ASYNCHRONOUS, "workers": 2},
        evaluation={"workers": 1, "episodes": 2, "periodic_episodes": 0},
        budget={"updates": 40},
    )
    run = new_run(config)
    result = finetune(run, config, reach_simulation())
    reader = ReplayReader(run.replay)
    assert {"worker-0", "worker-1"} <= set(reader.streams)
    episodes = [reader.episode(i) for i in range(reader.episodes)]
    starts = [episode.seed for episode in episodes]
    assert len(set(starts)) == len(starts)
    limiter = RatioLimiter(0.2, 1.0, slack=200)
    assert result.steps <= limiter.step_limit(result.updates) + 2 * ReachEnv.max_steps
    assert verify(run.replay).ok


def test_a_killed_worker_is_restarted_and_loses_no_committed_episode(
    new_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = asynchronous()
    run = new_run(config)
    seen: dict[str, int] = {}
    original = Asynchronous._look_around

    def look_and_kill(self: Asynchronous) -> None:
        original(self)
        child = self.collectors.children[0]
        if "rows" not in seen and self.learner.updates >= 20 and child.process is not None:
            seen["rows"] = self.learner.online_steps
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait()
        seen["restarts"] = self.collectors.restarts

    monkeypatch.setattr(Asynchronous, "_look_around", look_and_kill)
    result = finetune(run, config, reach_simulation())
    assert result.updates == 60
    assert seen["restarts"] == 1
    reader = ReplayReader(run.replay)
    assert int((reader.column("policy_version") >= 0).sum()) >= seen["rows"]
    assert verify(run.replay).ok
    starts = [reader.episode(i).seed for i in range(reader.episodes)]
    assert len(set(starts)) == len(starts), "a restarted worker repeated a start"


def test_children_stop_when_the_learner_is_killed_and_the_run_resumes(new_run: MakeRun) -> None:
    config = asynchronous(budget={"updates": 100_000}, warm_up={"env_steps": 60, "updates": 10})
    run = new_run(config)
    learner = subprocess.Popen([sys.executable, "-m", "tests.reach_learner", str(run.directory)])
    try:
        wait_for(lambda: (run.checkpoints.latest() or 0) >= 20, "a checkpoint", DEADLINE)
        children = children_of(learner.pid)
        assert len(children) == 2, "one worker and one evaluator"
    finally:
        learner.kill()
        learner.wait()
    wait_for(lambda: not any(alive(pid) for pid in children), "the children to stop", DEADLINE)
    done = run.checkpoints.latest()
    assert done is not None
    rows = ReplayReader(run.replay).rows
    short = asynchronous(budget={"updates": done + 30})
    result = finetune(run, short, reach_simulation())
    assert result.updates == done + 30
    assert ReplayReader(run.replay).rows >= rows
    assert verify(run.replay).ok


def test_a_worker_that_keeps_dying_fails_the_run_and_names_its_log(
    new_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = asynchronous(evaluation={"workers": 1, "episodes": 1})
    run = new_run(config)
    monkeypatch.setenv("REACH_WORKER_BROKEN", "1")
    with pytest.raises(WorkerFailed, match=r"broken on purpose.*logs"):
        finetune(run, config, reach_simulation())


def test_evaluators_give_the_same_episodes_as_this_process(new_run: MakeRun, tmp_path: Path) -> None:
    run = new_run(settings())
    actor = Actor(load_policy(run.base))
    starts = seeds.reported(7)
    here = evaluate(ReachEnv(), actor, starts)
    simulation = reach_simulation()
    pool = EvaluatorPool(simulation.command, simulation.description, 2, tmp_path / "logs")
    pool.start()
    try:
        pool.submit(actor, starts)
        there = pool.wait()
    finally:
        pool.stop()
    assert there == here


def test_the_ratio_limiter_keeps_its_bounds() -> None:
    limiter = RatioLimiter(low=0.1, high=0.5, slack=10)
    assert limiter.may_update(updates=4, steps=0)
    assert not limiter.may_update(updates=5, steps=0)
    assert limiter.may_update(updates=54, steps=100)
    assert limiter.step_limit(updates=0) == 10
    assert limiter.step_limit(updates=7) == 80
    with pytest.raises(ValueError, match="must be below"):
        RatioLimiter(low=0.5, high=0.5, slack=0)


def test_control_is_replaced_whole_and_absent_means_wait(tmp_path: Path) -> None:
    assert read_control(tmp_path) == Control("collect", 0)
    write_control(tmp_path, Control("collect", 500))
    write_control(tmp_path, Control("stop"))
    assert read_control(tmp_path) == Control("stop", 0)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
