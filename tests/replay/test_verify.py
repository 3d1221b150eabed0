"""`verify` accepts what a writer wrote, and names each of a set of seeded corruptions."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from rich.console import Console

from flowrl.replay.schema import EPISODE, INT, Kind, Outcome, Source
from flowrl.replay.storage import BRANCH, open_repository
from flowrl.replay.verify import Violation, render_report, verify
from flowrl.replay.writer import StreamWriter
from tests.replay.streams import SPEC, new_stream, write_episode

# State in columns 0 and 1, then action, policy_action, reward.
ACTION, PROPOSED, REWARD = 2, 3, 4


@pytest.fixture
def replay(tmp_path: Path) -> Path:
    """Episode 0 (rows 0..4) succeeds; episode 1 (rows 5..12) times out with a takeover in steps 2 and 3."""
    with new_stream(tmp_path, "arm", Kind.ROBOT) as writer:
        write_episode(writer, range(5), final=5)
        sources = [Source.POLICY] * 2 + [Source.HUMAN] * 2 + [Source.POLICY] * 4
        write_episode(writer, range(10, 18), Outcome.TIMEOUT, final=18, sources=sources)
    return tmp_path


def corrupt(replay: Path, name: str, row: int, column: int, value: float) -> None:
    """Change one number behind the writer's back, in a commit of its own."""
    session = open_repository(replay / "arm").writable_session(BRANCH)
    array = zarr.open_array(session.store, path=name, mode="r+")
    array[row, column] = value
    session.commit("corruption")


FLOAT, INTEGER, TABLE, FINAL = "steps/float", "steps/int", "episodes/table", "episodes/final"


def test_what_a_writer_wrote_breaks_no_rule(replay: Path) -> None:
    report = verify(replay)
    assert report.ok
    assert (report.streams, report.episodes, report.rows) == (1, 2, 13)


@pytest.mark.parametrize(
    ("array", "row", "column", "value", "rule", "episode", "step"),
    [
        (FLOAT, 6, 1, np.nan, "finite", 1, 1),
        (FLOAT, 2, ACTION, np.inf, "finite", 0, 2),
        (FLOAT, 12, REWARD, np.nan, "finite", 1, 7),
        (FINAL, 1, 0, np.nan, "finite", 1, -1),
        (FLOAT, 3, PROPOSED, np.inf, "policy_action", 0, 3),
        (FLOAT, 3, PROPOSED, np.nan, "policy_action", 0, 3),
        (INTEGER, 4, INT["episode"], 1, "numbered", 0, 4),
        (INTEGER, 8, INT["step"], 4, "numbered", 1, 3),
        (INTEGER, 9, INT["stamp_ns"], 0, "stamps", 1, 4),
        (INTEGER, 7, INT["terminated"], 1, "end", 1, 2),
        (INTEGER, 7, INT["truncated"], 2, "end", 1, 2),
        (INTEGER, 12, INT["terminated"], 1, "outcome", 1, 7),
        (INTEGER, 1, INT["source"], 9, "source", 0, 1),
        (INTEGER, 7, INT["source"], 0, "intervention", 1, 2),
        (INTEGER, 10, INT["source"], 1, "intervention", 1, 5),
        (INTEGER, 10, INT["intervention_id"], -3, "intervention", 1, 5),
        (INTEGER, 11, INT["intervention_id"], 0, "intervention", 1, 6),
        (INTEGER, 6, INT["policy_version"], 77, "policy versions", 1, -1),
        (INTEGER, 13, INT["episode"], 2, "counts", -1, -1),
        (TABLE, 1, EPISODE["first_row"], 6, "contiguous", 1, -1),
        (TABLE, 0, EPISODE["length"], 4, "contiguous", 1, -1),
        (TABLE, 0, EPISODE["length"], 0, "counts", 0, -1),
        (TABLE, 0, EPISODE["outcome"], 42, "outcome", 0, -1),
        (TABLE, 0, EPISODE["outcome"], Outcome.OPEN, "outcome", 0, -1),
        (TABLE, 0, EPISODE["outcome_by"], 0, "outcome", 0, -1),
        (TABLE, 1, EPISODE["task"], 3, "task", 1, -1),
        (TABLE, 1, EPISODE["digest"], 3, "digest", 1, -1),
        (TABLE, 1, EPISODE["has_final"], 0, "counts", 1, -1),
    ],
)
def test_seeded_corruption_is_found_and_placed(
    replay: Path, array: str, row: int, column: int, value: float, rule: str, episode: int, step: int
) -> None:
    corrupt(replay, array, row, column, value)
    found = verify(replay).violations
    assert (rule, episode, step) in [(v.rule, v.episode, v.step) for v in found], found


def test_takeover_that_begins_twice_is_found(replay: Path) -> None:
    for row in (10, 11):
        corrupt(replay, INTEGER, row, INT["source"], Source.HUMAN)
        corrupt(replay, INTEGER, row, INT["intervention_id"], 0)
        corrupt(replay, INTEGER, row, INT["policy_version"], -1)
    (violation,) = verify(replay).violations
    assert violation == Violation(
        "arm", "intervention", "intervention 0 begins a second time or out of order", 1, 5
    )
    assert str(violation).startswith("stream 'arm', episode 1, step 5: intervention 0")


def _flip_a_bit(replay: Path) -> None:
    chunk = max((replay / "arm" / "chunks").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)


def _lose_chunks(replay: Path) -> None:
    for chunk in (replay / "arm" / "chunks").iterdir():
        chunk.unlink()


def _lose_snapshots(replay: Path) -> None:
    for snapshot in (replay / "arm" / "snapshots").iterdir():
        snapshot.unlink()


@pytest.mark.parametrize("damage", [_flip_a_bit, _lose_chunks, _lose_snapshots])
def test_damaged_files_are_found(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with new_stream(tmp_path, "arm") as writer:
        write_episode(writer, np.random.default_rng(0).standard_normal(2000).tolist(), final=0)
    damage(tmp_path)
    (violation,) = verify(tmp_path).violations
    assert (violation.stream, violation.rule) == ("arm", "readable")


def test_streams_of_different_specs_are_found(replay: Path) -> None:
    StreamWriter.create(replay, "other", replace(SPEC, control_hz=5.0), Kind.POLICY).close()
    (violation,) = verify(replay).violations
    assert (violation.stream, violation.rule) == ("other", "specs equal")
    assert "control_hz: 20.0 against 5.0" in violation.message


def test_report_is_rendered_for_people(replay: Path) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_report(verify(replay)))
    assert "ok: 1 streams, 2 episodes, 13 steps" in console.export_text()
    corrupt(replay, FLOAT, 6, 1, np.nan)
    console.print(render_report(verify(replay)))
    assert "observation.state[1] (y) is not finite" in console.export_text()
