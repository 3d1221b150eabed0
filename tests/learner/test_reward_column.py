"""A recipe's reward column decides rewards and successes of what a run is given."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from flowrl.errors import ConfigError
from flowrl.learner.learner import WORKER_STREAM, Learner
from flowrl.learner.loop import create_run
from flowrl.learner.pretraining import clone
from flowrl.policies.io import load_flow_policy
from flowrl.replay.schema import EPISODE, Kind, Outcome, OutcomeBy, Step
from flowrl.replay.writer import StreamWriter
from flowrl.rewards.labelling import label
from tests.learner.conftest import settings
from tests.reach import ReachEnv


def test_a_run_learns_from_the_column_and_from_its_own_recorded_reward(
    prepared: tuple[Path, Path], tmp_path: Path
) -> None:
    replay, base = tmp_path / "replay", prepared[1]
    shutil.copytree(prepared[0], replay)
    label(replay, "demonstrations", {0: False})
    config = settings(sampling={"reward": "human@1"})
    run = create_run(config, tmp_path, base, [replay / "demonstrations"])
    spec = ReachEnv.interface
    with StreamWriter.create(run.replay, f"{WORKER_STREAM}0", spec, Kind.POLICY) as writer:
        writer.begin_episode()
        writer.append(Step(np.zeros(2, np.float32), np.zeros(2, np.float32), 1.0, terminated=True))
        writer.close_episode(Outcome.SUCCESS, OutcomeBy.ENVIRONMENT, np.zeros(2, np.float32))
    learner = Learner(run, config, load_flow_policy(run.base))
    assert learner.reader.rewarded_by == "human@1"
    assert learner.reader.reward.sum() == 4
    outcomes = learner.reader.table[:, EPISODE["outcome"]].tolist()
    assert outcomes == [Outcome.FAILURE, *[Outcome.SUCCESS] * 4]
    learner.close()


def test_an_unknown_column_is_refused_before_anything_is_learned(
    prepared: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no reward column 'success@3'; it has recorded"):
        clone(settings(sampling={"reward": "success@3"}), prepared[0], tmp_path / "policy")
    assert not (tmp_path / "policy").exists()
