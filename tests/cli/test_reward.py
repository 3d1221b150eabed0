"""``flowrl reward``: from a replay to a classifier, to a column, to a list; and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flowrl.cli.app import build
from flowrl.errors import ConfigError, UsageError
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Outcome
from flowrl.replay.writer import StreamWriter
from tests.replay.streams import ONLY_BY_HAND
from tests.rewards.conftest import Trained
from tests.rewards.conftest import trained as trained
from tests.rewards.scenes import SPEC, write_episode

SMALL = ["width=16", "queries=1", "heads=2", "shift=1", "positives=1", "margin=0", "validation=0.4"]
SMALL += ["steps=100", "batch_size=16", "learning_rate=5e-3"]


def invoke(*arguments: object) -> str:
    words = ["reward", *map(str, arguments)]
    result = CliRunner().invoke(build(), words, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_from_a_replay_to_a_column(trained: Trained, tmp_path: Path) -> None:
    replay, to = tmp_path / "replay", tmp_path / "classifier"
    shutil.copytree(trained.replay, replay)
    said = invoke("train", "--replay", replay, "--to", to, *(f"--set={setting}" for setting in SMALL))
    assert "1.0000" in said
    assert "found 0 steps before the end of their episode (median)" in said
    assert (to / "figures" / "scores.png").is_file()
    said = invoke("apply", to, "--replay", replay)
    assert "choose it in a recipe: sampling.reward=success@1" in said
    assert ReplayReader(replay, reward="success@1").reward.sum() == 10
    with StreamWriter.open(replay, "bad", SPEC, ONLY_BY_HAND) as writer:
        write_episode(writer, np.random.default_rng(0), 4, [], Outcome.TIMEOUT)
    assert "20 of 21" in invoke("list", "--replay", replay)
    assert "bad" in invoke("complete", "success@1", "--replay", replay)
    assert "labels every closed episode already" in invoke("complete", "success@1", "--replay", replay)
    said = invoke("list", "--replay", replay)
    assert "success@1" in said
    assert "20 of 21" not in said


def test_a_label_by_hand(trained: Trained, tmp_path: Path) -> None:
    replay = tmp_path / "replay"
    shutil.copytree(trained.replay, replay)
    assert "only the recorded reward" in invoke("list", "--replay", replay)
    words = ["label", "--replay", replay, "--episode", 0, "--episode", 2, "--success"]
    with pytest.raises(UsageError, match="has the streams bad, good; name one with --stream"):
        invoke(*words)
    said = invoke(*words, "--stream", "bad")
    assert "human@1" in said
    assert ReplayReader(replay, reward="human@1").reward.sum() == 12
    invoke("label", "--replay", replay, "--stream", "good", "--episode", 9, "--failure")
    assert ReplayReader(replay, reward="human@2").reward.sum() == 11


def test_wrong_words_are_refused(trained: Trained, tmp_path: Path) -> None:
    replay = trained.replay
    with pytest.raises(UsageError, match="there is no replay at"):
        invoke("list", "--replay", tmp_path / "none")
    with pytest.raises(UsageError, match="exists already"):
        invoke("train", "--replay", replay, "--to", trained.directory)
    with pytest.raises(ConfigError, match="'stepz'; the nearest valid key is 'steps'"):
        invoke("train", "--replay", replay, "--to", tmp_path / "c", "--set", "stepz=3")
    with pytest.raises(UsageError, match="there is no classifier at"):
        invoke("apply", tmp_path / "none", "--replay", replay)
    with pytest.raises(ConfigError, match="no reward column 'success@1'; it has recorded"):
        invoke("complete", "success@1", "--replay", replay)
    assert not (tmp_path / "c").exists()
