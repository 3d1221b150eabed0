"""Absolute targets and changes are told apart where they can be; names and streams that disagree are warned of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowrl.preflight import check
from flowrl.preflight.motion import motions, stated
from flowrl.preflight.rows import Limits, Rows
from flowrl.replay.reader import ReplayReader
from flowrl.spec import ActionSpec, Spec
from tests.preflight.replays import SPEC, Recorded, clean, episode, faults, message, write


def named(*names: str) -> Spec:
    return replace(SPEC, action=ActionSpec(names, (-3.0, -3.0), (3.0, 3.0)))


def absolute(each: Recorded) -> Recorded:
    """The same motion, commanded by where to go."""
    return replace(each, action=each.state[1:, :2])


def test_each_form_is_recognised(tmp_path: Path) -> None:
    relative = Rows(write(tmp_path / "a", clean()), Limits())
    assert [each.meaning for each in motions(relative)] == ["relative", "relative"]
    assert [each.change for each in motions(relative)] == pytest.approx([1.0, 1.0], abs=1e-4)
    targets = Rows(write(tmp_path / "b", [absolute(e) for e in clean()], named("x", "y")), Limits())
    assert [each.meaning for each in motions(targets)] == ["absolute", "absolute"]
    assert [each.level for each in motions(targets)] == pytest.approx([1.0, 1.0], abs=1e-4)


def test_a_proportional_controller_is_relative(tmp_path: Path) -> None:
    """Its actions fall with the state, which a target does not."""
    steered: list[Recorded] = []
    for each in clean():
        state = each.state.copy()
        action = np.empty_like(each.action)
        for t in range(len(action)):
            action[t] = -0.5 * state[t, :2]
            state[t + 1, :2] = state[t, :2] + 0.1 * action[t]
        steered.append(replace(each, state=state, action=action))
    rows = Rows(write(tmp_path / "r", steered), Limits())
    assert [each.meaning for each in motions(rows)] == ["relative", "relative"]


@pytest.mark.parametrize(
    "spec", [named("delta_x", "delta_y"), replace(named("x", "y"), settings={"action_space": "relative"})]
)
def test_targets_that_are_called_changes_are_warned_of(tmp_path: Path, spec: Spec) -> None:
    checked = check(reader=write(tmp_path / "r", [absolute(e) for e in clean()], spec))
    assert faults(checked) == [("warning", "absolute or relative")]
    assert "is relative, but looks absolute (correlation with the next state 1.00" in message(
        checked, "absolute or relative"
    )


def test_streams_of_both_forms_are_warned_of(tmp_path: Path) -> None:
    spec = named("x", "y")
    write(tmp_path / "r", clean(), spec, "a")
    write(tmp_path / "r", [absolute(episode(seed)) for seed in range(10, 15)], spec, "b")
    checked = check(reader=ReplayReader(tmp_path / "r"))
    assert faults(checked) == [("warning", "streams")]
    assert "x looks absolute in b and relative in a" in message(checked, "streams")


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("eef_delta_x", {}, "relative"),
        ("joint_1.vel", {}, "relative"),
        ("shoulder_pan.target", {}, "absolute"),
        ("x", {"control_mode": "abs_joint"}, "absolute"),
        ("elevation", {}, None),
    ],
)
def test_what_a_name_states(name: str, settings: dict[str, str], expected: str | None) -> None:
    assert stated(name, replace(SPEC, settings=settings)) == expected
