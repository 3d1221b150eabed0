"""What is in order raises no warning; the command, its page and its JSON; a run that is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flowrl.cli.app import build
from flowrl.errors import EXIT_FAILED, EXIT_USAGE, FlowRLError, SpecMismatch
from flowrl.policies.io import create_policy, save_policy
from flowrl.preflight import check, preflight
from flowrl.preflight.findings import SUBJECTS, Checked
from flowrl.preflight.page import drawings, write_page
from flowrl.preflight.rows import BEFORE_A_RUN, Limits, Rows
from flowrl.replay.schema import Outcome
from tests.preflight.replays import SEEING, SPEC, clean, clean_seeing, episode, faults, policy_for, write


def test_a_clean_replay_and_its_policy_raise_no_warning(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean())
    checked = check(policy_for(reader), reader, SPEC, tmp_path, interface=SPEC)
    assert faults(checked) == []
    assert checked.verdict == "Nothing speaks against a run."
    assert list(checked.compared) == ["policy", "replay", "environment", "interface"]
    assert {finding.subject for finding in checked.findings} == set(SUBJECTS) - {"cameras"}


def test_a_clean_replay_with_cameras_raises_no_warning(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean_seeing(), SEEING)
    checked = check(policy_for(reader), reader)
    assert faults(checked) == []
    assert {finding.subject for finding in checked.findings} == set(SUBJECTS) - {"machine"}


def test_an_empty_replay_is_an_error(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", [])
    assert faults(check(reader=reader)) == [("error", "replay")]


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.preflight.checks.MIN_FREE_BYTES", 1 << 70)
    assert faults(check(directory=tmp_path)) == [("error", "disk")]


def test_a_run_is_refused_by_errors_alone(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean(outcome=Outcome.FAILURE))
    policy = policy_for(reader)
    assert [f.name for f in preflight(policy, reader, tmp_path) if f.level == "warning"] == ["replay"]
    reader.action[7, 1] = 3.0
    with pytest.raises(FlowRLError, match=r"preflight refused the run:\n  action delta_y: 0.3% of the steps"):
        preflight(policy, reader, tmp_path)
    other = replace(policy.spec, control_hz=10.0)
    with pytest.raises(SpecMismatch, match=r"control_hz: policy 10.0, replay 20.0"):
        preflight(type(policy)(other), reader, tmp_path)


def test_a_large_replay_is_sampled_the_same_at_every_check(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean(8))
    first, second = (Rows(reader, Limits(rows=100)) for _ in range(2))
    np.testing.assert_array_equal(first.index, second.index)
    assert len(first.index) == 100
    assert (np.diff(first.index) > 0).all()
    # A row that is not the last of its episode is followed by the next row.
    here = first.index[first.going_on]
    np.testing.assert_array_equal(first.following, reader.state[here + 1])
    last = {60 * (i + 1) - 1 for i in range(8)}
    assert set(first.index) - set(here) == last & set(first.index)
    checked = check(reader=reader, limits=Limits(rows=100))
    assert checked.rows == (100, 480)


def test_discarded_episodes_are_not_looked_at(tmp_path: Path) -> None:
    gone = episode(9, outcome=Outcome.DISCARDED)
    reader = write(tmp_path / "r", [*clean(), replace(gone, state=gone.state + 100)])
    rows = Rows(reader, Limits())
    assert len(rows.index) == 300
    assert rows.state.max() < 50


def test_the_checks_before_a_run_take_bounded_time(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean(45, length=500))
    policy = policy_for(reader)
    started = time.process_time()
    found = preflight(policy, reader, tmp_path)
    # 0.2 s where it was measured; generous for a slow machine.
    assert time.process_time() - started < 5.0
    assert check(policy, reader, limits=BEFORE_A_RUN).rows == (20_000, 22_500)
    assert {f.level for f in found} == {"ok"}


# The command, its page and its JSON.


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """A replay and a real policy for it in ``tmp_path``; returns the command."""
    reader = write(tmp_path / "replay", clean())
    spec = policy_for(reader).spec
    save_policy(
        create_policy("flow_mlp", spec, {"width": 16, "depth": 1, "flow_steps": 2}), tmp_path / "policy"
    )
    write(tmp_path / "wide", [replace(episode(1), action=np.full((60, 2), 1.5))])

    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(build(), ["check", *map(str, arguments)], env={"COLUMNS": "200"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return run


def test_the_command_shows_one_page_and_writes_it(
    prepared: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    page, data = tmp_path / "check.html", tmp_path / "check.json"
    sides = ("--policy", tmp_path / "policy", "--replay", tmp_path / "replay")
    code, output = prepared(*sides, "--json", data, "--html", page)
    assert code == 0
    assert "Nothing speaks against a run." in output
    assert "error" not in output
    for title in ("Values per dimension", "Normalisation, trained and served"):
        assert title in output
    found = json.loads(data.read_text())
    assert (found["ok"], found["rows"], found["compared"]) == (True, 300, ["policy", "replay"])
    assert {finding["level"] for finding in found["findings"]} == {"ok"}
    names = [each["name"] for each in found["dimensions"]]
    assert names == [*SPEC.state_dimension_names(), "delta_x", "delta_y"]
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "http" not in text.replace("http://www.w3.org", "")


def test_the_command_fails_on_an_error_alone(
    prepared: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, output = prepared("--replay", tmp_path / "wide")
    assert code == EXIT_FAILED
    assert "100.0% of the steps lie outside the bounds" in output
    assert "A run would be refused: 2 errors" in output


def test_a_second_replay_needs_a_first(prepared: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    with pytest.raises(FlowRLError, match="--against") as caught:
        prepared("--against", tmp_path / "replay", "--policy", tmp_path / "policy")
    assert caught.value.exit_code == EXIT_USAGE
    code, _ = prepared("--replay", tmp_path / "replay", "--against", tmp_path / "replay")
    assert code == 0


def test_a_drawing_says_what_lies_outside(tmp_path: Path) -> None:
    reader = write(tmp_path / "r", clean())
    policy = policy_for(reader, state_q01=(0.0, -9.0, 0.0), state_q99=(0.1, 9.0, 1.0))
    checked = check(policy, reader)
    state, action = drawings(checked)
    assert "observation.state[0] (x) " in state.svg
    assert "share outside: none" in action.svg
    write_page(checked, tmp_path / "check.html")
    assert 'data-level="warning"' in (tmp_path / "check.html").read_text()
    assert drawings(Checked([], [])) == []
