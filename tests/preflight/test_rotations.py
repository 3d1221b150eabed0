"""Rotations by name: unit quaternions, radians, right angles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flowrl.preflight import check
from flowrl.preflight.rotations import rotations
from flowrl.replay.reader import ReplayReader
from flowrl.spec import Feature
from tests.preflight.replays import SPEC, STATE, clean, faults, message, write

QUATERNION = ("quat_x", "quat_y", "quat_z", "quat_w")
SIX = tuple(f"rot6d_{i}" for i in range(6))
TURN = ("axis_angle_x", "axis_angle_y", "axis_angle_z")


def with_rotation(path: Path, names: tuple[str, ...], values: NDArray[np.floating]) -> ReplayReader:
    """A clean replay with a rotation in its state: the same ``values`` (61, N) in every episode."""
    feature = Feature("observation.state", (3 + len(names),), names=(*STATE.names, *names), unit="m, rad")
    episodes = [replace(each, state=np.column_stack([each.state, values])) for each in clean()]
    return write(path, episodes, replace(SPEC, observation=(feature,)))


def quaternions() -> NDArray[np.floating]:
    half = 0.3 + np.linspace(0, 1.2, 61)
    axis = np.array([0.6, 0.0, 0.8]) + 0.1 * np.sin(np.linspace(0, 3, 61))[:, None] * np.array([0, 1.0, 0])
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    return np.column_stack([axis * np.sin(half)[:, None], np.cos(half)])


def six() -> NDArray[np.floating]:
    """First two columns of rotations about z and then x."""
    a, b = np.linspace(0.1, 2.0, 61), np.linspace(-0.4, 0.5, 61)
    first = np.stack([np.cos(a), np.sin(a) * np.cos(b), np.sin(a) * np.sin(b)], axis=1)
    second = np.stack([-np.sin(a), np.cos(a) * np.cos(b), np.cos(a) * np.sin(b)], axis=1)
    return np.concatenate([first, second], axis=1)


def turns() -> NDArray[np.floating]:
    return np.linspace(-1, 1, 61)[:, None] * np.array([2.0, 1.0, 0.5])


@pytest.mark.parametrize(
    ("names", "values", "form"),
    [(QUATERNION, quaternions(), "quaternion"), (SIX, six(), "6D rotation"), (TURN, turns(), "axis-angle")],
)
def test_well_formed_rotations_are_listed(
    tmp_path: Path, names: tuple[str, ...], values: NDArray[np.floating], form: str
) -> None:
    checked = check(reader=with_rotation(tmp_path / "r", names, values))
    assert faults(checked) == []
    assert f"({form})" in message(checked, "rotations")


@pytest.mark.parametrize(
    ("names", "values", "name", "text"),
    [
        (QUATERNION, 0.9 * quaternions(), "state quat", "100.0% of the quaternions have no norm of 1 (0.9"),
        (SIX, six()[:, [0, 3, 1, 4, 2, 5]], "state rot6d", "are no two unit columns at right angles"),
        (TURN, np.rad2deg(turns()), "state axis_angle", "are they degrees?"),
    ],
)
def test_malformed_rotations_are_warned_of(
    tmp_path: Path, names: tuple[str, ...], values: NDArray[np.floating], name: str, text: str
) -> None:
    checked = check(reader=with_rotation(tmp_path / "r", names, values))
    assert faults(checked) == [("warning", name)]
    assert text in message(checked, name)


def test_only_whole_and_absolute_rotations_are_looked_at() -> None:
    names = ["eef_quat_x", "eef_quat_y", "eef_quat_z", "gripper", "cube_to_eef_quat_x"]
    assert rotations(names) == []
    both = [f"robot{arm}_eef_quat_{axis}" for arm in (0, 1) for axis in "xyzw"]
    assert [(r.name, r.columns.start) for r in rotations(both)] == [
        ("robot0_eef_quat", 0),
        ("robot1_eef_quat", 4),
    ]
    assert rotations([f"delta_{name}" for name in TURN]) == []
    assert rotations([f"target_quat_to_cube_{axis}" for axis in "xyzw"]) == []
