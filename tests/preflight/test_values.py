"""Quantiles and shares against those counted by hand, one defect at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flowrl.preflight import check
from tests.preflight.replays import Recorded, clean, episode, faults, message, policy_for, write


def spoiled(column: int, values: NDArray[np.floating], part: str = "action") -> list[Recorded]:
    """Clean episodes with one column of ``state`` or ``action`` replaced by values, repeated as needed."""
    out: list[Recorded] = []
    for each in clean():
        array = getattr(each, part).copy()
        array[:, column] = np.resize(values, len(array))
        out.append(replace(each, **{part: array}))
    return out


def test_quantiles_are_those_of_the_rows(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean())
    checked = check(reader=reader)
    for index in range(3):
        each = checked.dimensions[index]
        column = reader.state[:, index].astype(np.float64)
        assert (each.q01, each.median, each.q99) == pytest.approx(np.quantile(column, [0.01, 0.5, 0.99]))
        assert (each.minimum, each.maximum) == (column.min(), column.max())
    assert checked.dimensions[3].low == -1.0


def test_the_share_outside_the_policys_range_is_counted(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean())
    x = reader.state[:, 0]
    # The policy knows only the upper half of what x takes here.
    policy = policy_for(reader, state_q01=(float(np.median(x)), -9.0, -9.0), state_q99=(9.0, 9.0, 9.0))
    checked = check(policy, reader)
    assert faults(checked) == [("warning", "observation range")]
    assert "observation.state[0] (x) 50%" in message(checked, "observation range")
    assert checked.dimensions[0].outside == pytest.approx(0.5, abs=0.01)


def test_actions_outside_their_bounds_are_an_error_that_names_them(tmp_path: Path) -> None:
    values = np.linspace(-0.9, 0.9, 60)
    values[:6] = 1.25
    checked = check(reader=write(tmp_path / "r", spoiled(1, values)))
    assert faults(checked) == [("error", "action delta_y")]
    found = message(checked, "action delta_y")
    assert "10.0% of the steps lie outside the bounds (-0.717 .. 1.25, allowed -1 .. 1)" in found


def test_actions_clipped_to_their_bounds_are_warned_of_but_a_gripper_is_not(tmp_path: Path) -> None:
    # 59 of 60 at a bound, one between.
    values = np.array([-1.0, 1.0, 1.0] * 20)
    values[30] = 0.2
    checked = check(reader=write(tmp_path / "a", spoiled(0, values)))
    assert faults(checked) == [("warning", "actions at bounds")]
    assert "delta_x 98%" in message(checked, "actions at bounds")
    binary = check(reader=write(tmp_path / "b", spoiled(0, np.array([-1.0, 1.0, 1.0]))))
    assert faults(binary) == []


def test_actions_in_another_unit_use_hardly_any_of_their_bounds(tmp_path: Path) -> None:
    values = 0.004 * np.sin(np.arange(60.0))
    checked = check(reader=write(tmp_path / "r", spoiled(1, values)))
    assert faults(checked) == [("warning", "use of bounds")]
    assert "delta_y 0.40%" in message(checked, "use of bounds")


@pytest.mark.parametrize(
    ("part", "column", "name", "finding"),
    [
        ("state", 2, "observation.state[2] (grip)", "constant state"),
        ("action", 0, "delta_x", "constant action"),
    ],
)
def test_a_constant_dimension_is_named(
    tmp_path: Path, part: str, column: int, name: str, finding: str
) -> None:
    checked = check(reader=write(tmp_path / "r", spoiled(column, np.array([0.25]), part)))
    assert faults(checked) == [("warning", finding)]
    assert name in message(checked, finding)


def test_a_value_that_is_not_finite_is_an_error_and_the_only_one(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean())
    policy = policy_for(reader)
    # No writer stores such a value: this is what a damaged chunk could give.
    reader.state[3, 1] = np.nan
    checked = check(policy, reader)
    assert faults(checked) == [("error", "state finite")]
    assert "observation.state[1] (y) (1 steps)" in message(checked, "state finite")
    assert checked.dimensions == []


def test_actions_that_the_policy_cannot_make_are_warned_of(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean())
    share = float((np.abs(reader.action[:, 0]) > 0.3).mean())
    checked = check(policy_for(reader, action_half_range=(0.3, 1.0)), reader)
    assert faults(checked) == [("warning", "policy's action range")]
    assert f"delta_x {share:.1%} (policy -0.3 .. 0.3)" in message(checked, "policy's action range")


def test_one_episode_is_enough(tmp_path: Path) -> None:
    assert faults(check(reader=write(tmp_path / "r", [episode(0, 2)]))) == []


def test_an_axis_that_is_rarely_used_is_in_no_other_unit(tmp_path: Path) -> None:
    """As in human Lift: y is 0 but for a few steps, at which it goes to its bound."""
    checked = check(reader=write(tmp_path / "r", spoiled(1, np.eye(1, 60, 30)[0])))
    assert faults(checked) == []
