"""Stamps against the control rate, and chunks against the lengths of episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowrl.preflight import check
from flowrl.replay.schema import Outcome
from tests.preflight.replays import clean, episode, faults, message, policy_for, write

STEPS = np.arange(60)


def test_another_rate_than_the_specs_is_warned_of(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", clean(stamps=STEPS / 15)))
    assert faults(checked) == [("warning", "control rate")]
    assert "the stamps show 15 Hz, the spec says 20 Hz" in message(checked, "control rate")


def test_jitter_is_the_share_of_late_steps(tmp_path: Path) -> None:
    gaps = np.full(60, 1 / 20)
    # 6 of 59 intervals of twice the period.
    gaps[[5, 15, 25, 35, 45, 55]] = 2 / 20
    checked = check(reader=write(tmp_path / "r", clean(stamps=gaps.cumsum())))
    assert faults(checked) == [("warning", "jitter")]
    assert f"{6 / 59:.1%} of the steps come later" in message(checked, "jitter")


def test_old_observations_are_warned_of(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", clean(age_s=0.12)))
    assert faults(checked) == [("warning", "age")]
    assert "0.12 s old, more than a step (0.05 s)" in message(checked, "age")


def test_missing_stamps_are_said_not_warned_of(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", clean(stamps=0.0 * STEPS)))
    assert faults(checked) == []
    assert "no time stamps" in message(checked, "control rate")


def test_stamps_that_stand_still_are_warned_of(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", clean(stamps=STEPS // 4 / 5)))
    assert faults(checked) == [("warning", "control rate")]
    assert "most steps have the time stamp of the step before" in message(checked, "control rate")


def test_episodes_shorter_than_a_chunk(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", [*clean(3), episode(8, 4), episode(9, 9, outcome=Outcome.TIMEOUT)])
    some = check(policy_for(reader, length=10), reader)
    assert faults(some) == [("warning", "chunk length")]
    assert "2 episodes (40%) are shorter than a chunk (10)" in message(some, "chunk length")
    padded = check(policy_for(reader, length=10), reader, end_rule="padded")
    assert "1 episodes (20%)" in message(padded, "chunk length"), "a success goes on with its last action"
    every = check(policy_for(reader, length=61), reader)
    assert faults(every) == [("error", "chunk length")]
    assert "the longest has 60" in message(every, "chunk length")
