"""Outcomes, sources and copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.preflight import check
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Kind, Outcome
from tests.preflight.replays import SPEC, clean, episode, faults, message, write


def test_a_replay_without_a_success_is_warned_of(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", clean(outcome=Outcome.FAILURE)))
    assert faults(checked) == [("warning", "replay")]
    assert "5 episodes, 300 steps, 0 successes" in message(checked, "replay")


def test_a_replay_of_discarded_episodes_is_an_error(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", clean(outcome=Outcome.DISCARDED)))
    assert faults(checked) == [("warning", "replay"), ("error", "discarded")]


def test_copies_are_named_by_stream_and_number(tmp_path: Path) -> None:
    write(tmp_path / "r", clean(3), stream="a")
    write(tmp_path / "r", [episode(7), episode(2)], stream="b")
    checked = check(reader=ReplayReader(tmp_path / "r"))
    assert faults(checked) == [("warning", "copies")]
    assert "1 of 5 episodes are copies" in message(checked, "copies")
    assert "b/1 of a/2" in message(checked, "copies")


def test_sources_and_streams_are_summarised(tmp_path: Path) -> None:
    write(tmp_path / "r", clean(1), stream="a")
    write(tmp_path / "r", [episode(5)], SPEC, "b", Kind.POLICY)
    checked = check(reader=ReplayReader(tmp_path / "r"))
    assert message(checked, "sources") == "scripted 100% of the steps; 1 of 2 streams hold demonstrations"
    (found,) = [f for f in checked.findings if f.name == "sources"]
    assert found.numbers == {"scripted": pytest.approx(1.0)}
