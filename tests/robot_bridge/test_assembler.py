"""Rows out of the newest messages: exact values and ages, and a refusal for everything that is stale."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flowrl.errors import DataError
from flowrl.replay.frames import FrameCodec, decode
from robot_bridge.assembler import Assembler, Observed, Refusal, Row
from robot_bridge.messages import MessageFault
from tests.robot_bridge.scripted import CAMERA, COMMANDS, JOINTS, MS, STATES, contract, jpeg

WRIST = "observation.images.wrist"


def state(first: float, **changed: Any) -> SimpleNamespace:
    fields = {"name": list(JOINTS), "position": [first, 0.0, 0.0], "velocity": [0.0] * 3, "effort": []}
    return SimpleNamespace(**{**fields, **changed})


def picture(number: int, size: tuple[int, int] = (8, 12)) -> SimpleNamespace:
    return SimpleNamespace(format="jpeg", data=jpeg(number, size))


def commanded(first: float) -> SimpleNamespace:
    return SimpleNamespace(data=[first, 0.0, 0.0])


@pytest.fixture
def assembler(tmp_path: Path) -> Assembler:
    """Limits: joints 50 ms, camera 100 ms and 200 ms frozen, commands 200 ms, skew 100 ms."""
    return Assembler(contract(tmp_path, "cameras.wrist.max_frozen_ms=200"))


def fill(assembler: Assembler, at_ms: int = 0) -> None:
    assembler.put(STATES, state(1.0), at_ms * MS)
    assembler.put(CAMERA, picture(1), at_ms * MS)
    assembler.put(COMMANDS, commanded(2.0), at_ms * MS)


def reason(found: object) -> tuple[str, str]:
    assert isinstance(found, Refusal)
    return found.stream, found.reason


def test_a_row_holds_the_newest_messages_and_their_ages(assembler: Assembler) -> None:
    fill(assembler)
    assembler.put(STATES, state(5.0), 30 * MS)
    assembler.put(COMMANDS, commanded(6.0), 10 * MS)
    row = assembler.row(40 * MS)
    assert isinstance(row, Row)
    assert row.time_ns == 40 * MS
    np.testing.assert_array_equal(row.observed.observation["observation.state"], [5, 0, 0, 0, 0, 0])
    assert row.observed.observation[WRIST] == jpeg(1)
    np.testing.assert_array_equal(row.commanded.action, [6, 0, 0])
    assert row.observed.ages_ns == {"observation.state": 10 * MS, WRIST: 40 * MS}
    assert row.observed.age_ns == 40 * MS
    assert row.commanded.ages_ns == {"action": 30 * MS}


def test_the_row_and_the_policy_see_the_same(assembler: Assembler) -> None:
    fill(assembler)
    row, observed = assembler.row(20 * MS), assembler.observe(20 * MS)
    assert isinstance(row, Row)
    assert isinstance(observed, Observed)
    assert observed.ages_ns == row.observed.ages_ns
    assert observed.observation[WRIST] is row.observed.observation[WRIST], "encoded once"


def test_every_stream_is_needed(assembler: Assembler) -> None:
    assert reason(assembler.row(0)) == ("observation.state", "no message yet")
    assembler.put(STATES, state(1.0), 0)
    assert reason(assembler.row(0)) == (WRIST, "no message yet")
    assembler.put(CAMERA, picture(1), 0)
    assert isinstance(assembler.observe(0), Observed)
    assert reason(assembler.row(0)) == ("action", "no message yet")


def test_an_age_at_its_limit_is_allowed_and_one_beyond_is_not(assembler: Assembler) -> None:
    fill(assembler)
    assert isinstance(assembler.row(50 * MS), Row)
    assert reason(assembler.row(50 * MS + 1)) == ("observation.state", "older than 50 ms")
    assembler.put(STATES, state(1.0), 90 * MS)
    assert isinstance(assembler.row(100 * MS), Row)
    assert reason(assembler.row(100 * MS + 1)) == (WRIST, "older than 100 ms")


def test_a_command_is_needed_for_a_row_only(assembler: Assembler) -> None:
    fill(assembler)
    assembler.put(STATES, state(1.0), 200 * MS)
    assembler.put(CAMERA, picture(2), 200 * MS)
    assert isinstance(assembler.row(200 * MS), Row)
    assert reason(assembler.row(200 * MS + 1)) == ("action", "older than 200 ms")
    assert isinstance(assembler.observe(200 * MS + 1), Observed)


def test_a_command_without_an_age_limit_stays_in_force(tmp_path: Path) -> None:
    text = (tmp_path / "contract.yaml", contract(tmp_path))[0].read_text()
    lasting = contract(
        tmp_path, text=text.replace("topic: /arm/commands", "topic: /arm/commands\n    max_age_ms: null")
    )
    assembler = Assembler(lasting)
    fill(assembler)
    assembler.put(STATES, state(1.0), 10_000 * MS)
    assembler.put(CAMERA, picture(2), 10_000 * MS)
    row = assembler.row(10_000 * MS)
    assert isinstance(row, Row)
    assert row.commanded.ages_ns == {"action": 10_000 * MS}


def test_streams_too_far_apart_make_no_row(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path, "max_skew_ms=30"))
    fill(assembler)
    assembler.put(STATES, state(1.0), 30 * MS)
    assert isinstance(assembler.row(30 * MS), Row)
    assembler.put(STATES, state(1.0), 31 * MS)
    assert reason(assembler.row(31 * MS)) == (WRIST, "more than 30 ms behind another stream")


def test_a_frozen_camera_is_refused_though_it_is_fresh(assembler: Assembler) -> None:
    for ms in range(0, 260, 20):
        assembler.put(STATES, state(1.0), ms * MS)
        assembler.put(COMMANDS, commanded(1.0), ms * MS)
        assembler.put(CAMERA, picture(1), ms * MS)
        found = assembler.row(ms * MS)
        assert isinstance(found, Row) == (ms <= 200)
    assert reason(assembler.row(240 * MS)) == (WRIST, "frozen: the same frame for more than 200 ms")
    assembler.put(CAMERA, picture(2), 241 * MS)
    assert isinstance(assembler.row(241 * MS), Row)


def test_an_older_message_never_replaces_a_newer_one(assembler: Assembler) -> None:
    fill(assembler, at_ms=10)
    assert not assembler.put(STATES, state(7.0), 9 * MS)
    assert assembler.put(STATES, state(8.0), 10 * MS), "equal times: the later one"
    row = assembler.row(10 * MS)
    assert isinstance(row, Row)
    np.testing.assert_array_equal(row.observed.observation["observation.state"][:1], [8.0])


def test_a_useless_message_changes_nothing(assembler: Assembler) -> None:
    fill(assembler)
    with pytest.raises(MessageFault):
        assembler.put(STATES, state(float("nan")), 10 * MS)
    row = assembler.row(20 * MS)
    assert isinstance(row, Row)
    assert row.observed.ages_ns["observation.state"] == 20 * MS


def test_messages_of_other_joints_do_not_refresh(assembler: Assembler) -> None:
    fill(assembler)
    assert not assembler.put(STATES, state(7.0, name=["x", "y", "z"]), 10 * MS)
    with pytest.raises(DataError, match="lacks joint 'wrist'"):
        assembler.put(STATES, state(7.0, name=["shoulder", "elbow", "z"]), 10 * MS)


def test_frames_of_another_size_are_resized_and_their_sizes_noted(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), FrameCodec("png"))
    fill(assembler)
    assembler.put(CAMERA, picture(90, (16, 24)), 5 * MS)
    row = assembler.row(5 * MS)
    assert isinstance(row, Row)
    frame = row.observed.observation[WRIST]
    assert isinstance(frame, bytes)
    pixels = decode(frame)
    assert pixels.shape == (3, 8, 12)
    assert np.abs(pixels.astype(int) - 90).max() <= 1, "JPEG loses a little"
    assert assembler.sizes == {WRIST: {(16, 24)}}


def test_a_frame_that_turns_out_to_be_damaged_makes_no_row(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path))
    fill(assembler)
    png = bytearray(
        FrameCodec("png").encode(np.random.default_rng(0).integers(0, 256, (3, 16, 24), np.uint8))
    )
    png[len(png) // 2] ^= 255
    assembler.put(CAMERA, SimpleNamespace(format="png", data=bytes(png)), 5 * MS)
    assert reason(assembler.row(5 * MS)) == (WRIST, "a frame that cannot be decoded")


def test_nothing_is_remembered_after_the_clock_jumped(assembler: Assembler) -> None:
    fill(assembler, at_ms=1000)
    assembler.clear()
    assert reason(assembler.row(1000 * MS)) == ("observation.state", "no message yet")
    fill(assembler, at_ms=0)
    assert isinstance(assembler.row(0), Row)
