"""Frames that are dark, plain, frozen, or exchanged between streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowrl.preflight import check
from flowrl.replay.reader import ReplayReader
from tests.preflight.replays import LEFT, SEEING, WRIST, Array, Recorded, clean_seeing, faults, message, write


def changed(change: Callable[[Array], Array], camera: str = LEFT) -> list[Recorded]:
    """Clean episodes whose frames (T + 1, 3, 16, 16) of one camera are changed."""
    return [
        replace(each, frames={**each.frames, camera: change(each.frames[camera])}) for each in clean_seeing()
    ]


def test_a_black_camera_is_warned_of(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", changed(np.zeros_like), SEEING))
    assert faults(checked) == [("warning", LEFT)]
    assert "100% of 48 frames of stream demos are black" in message(checked, LEFT)


def test_some_black_frames_are_counted(tmp_path: Path) -> None:
    def dark(frames: Array) -> Array:
        out = frames.copy()
        out[20:] = 0
        return out

    checked = check(reader=write(tmp_path / "r", changed(dark), SEEING))
    assert faults(checked) == [("warning", LEFT)]
    (found,) = [f for f in checked.findings if f.name == LEFT]
    # 20 of the 40 rows; 48 frames are spread over them.
    assert found.numbers["dark_share"] == pytest.approx(0.5, abs=0.05)


def test_fractions_stored_as_integers_are_told_from_black(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", changed(lambda f: (f > 127).astype(np.uint8)), SEEING))
    assert faults(checked) == [("warning", LEFT)]
    assert "fractions of 0 to 1" in message(checked, LEFT)
    assert "multiply the images by 255" in message(checked, LEFT)


def test_a_plain_colour_is_warned_of(tmp_path: Path) -> None:
    checked = check(reader=write(tmp_path / "r", changed(lambda f: np.full_like(f, 90)), SEEING))
    assert faults(checked) == [("warning", LEFT)]
    assert "one plain colour" in message(checked, LEFT)


def test_a_frozen_camera_is_warned_of_and_one_at_half_the_rate_is_not(tmp_path: Path) -> None:
    frozen = check(reader=write(tmp_path / "a", changed(lambda f: np.repeat(f[:1], len(f), axis=0)), SEEING))
    assert faults(frozen) == [("warning", LEFT)]
    assert "100% of consecutive frames of stream demos are identical" in message(frozen, LEFT)
    half = changed(lambda f: np.repeat(f[::2], 2, axis=0)[: len(f)])
    assert faults(check(reader=write(tmp_path / "b", half, SEEING))) == []


def test_a_camera_may_stand_still_with_the_robot(tmp_path: Path) -> None:
    still = [
        replace(
            each,
            state=np.concatenate([each.state[:20], np.repeat(each.state[20:21], 21, axis=0)]),
            frames={
                name: np.concatenate([f[:20], np.repeat(f[20:21], 21, axis=0)])
                for name, f in each.frames.items()
            },
        )
        for each in clean_seeing()
    ]
    assert faults(check(reader=write(tmp_path / "r", still, SEEING))) == []


def two_streams(path: Path, second: Callable[[Recorded], Recorded]) -> ReplayReader:
    recorded = clean_seeing(8)
    write(path, recorded[:4], SEEING, "a")
    return write(path, [second(each) for each in recorded[4:]], SEEING, "b")


def exchanged(each: Recorded) -> Recorded:
    return replace(each, frames={LEFT: each.frames[WRIST], WRIST: each.frames[LEFT]})


def bgr(each: Recorded) -> Recorded:
    return replace(each, frames={**each.frames, WRIST: each.frames[WRIST][:, ::-1]})


def test_streams_alike_are_not_warned_of(tmp_path: Path) -> None:
    assert faults(check(reader=two_streams(tmp_path / "r", lambda each: each))) == []


def test_exchanged_cameras_of_two_streams_are_named(tmp_path: Path) -> None:
    checked = check(reader=two_streams(tmp_path / "r", exchanged))
    assert faults(checked) == [("warning", "exchanged cameras")]
    assert f"{LEFT} of stream a looks like {WRIST} of stream b" in message(checked, "exchanged cameras")


def test_exchanged_colours_of_two_streams_are_named(tmp_path: Path) -> None:
    checked = check(reader=two_streams(tmp_path / "r", bgr))
    assert faults(checked) == [("warning", WRIST)]
    (found,) = checked.at("warning")
    assert "red and blue seem exchanged between streams a and b" in found.message


def test_two_replays_are_compared_too(tmp_path: Path) -> None:
    first = write(tmp_path / "first", clean_seeing(), SEEING)
    second = write(tmp_path / "second", [exchanged(each) for each in clean_seeing()], SEEING)
    checked = check(reader=first, other=second)
    assert faults(checked) == [("warning", "exchanged cameras")]
    assert "of stream second/demos" in message(checked, "exchanged cameras")
