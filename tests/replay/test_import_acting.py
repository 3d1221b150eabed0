"""Flags of who acts in a recording become sources and numbered takeovers; the human Handover file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from flowrl.errors import DataError, SpecMismatch
from flowrl.replay.importers.acting import Flags, acting_of, shared_steps
from flowrl.replay.importers.hdf5 import ImportOptions, import_hdf5
from flowrl.replay.importers.recording import facts_of
from flowrl.replay.importers.report import ImportReport, read_report
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Outcome, Source
from flowrl.replay.verify import verify
from tests.replay.import_files import demonstration, target, write_file

HANDOVER = Path(__file__).parents[1] / "data" / "handover.hdf5"
P, H, HOLD = Source.POLICY, Source.HUMAN, Source.HOLD


def flags(*bits: int) -> Flags:
    return np.array(bits, bool)


MIXED = {
    "policy_acting": flags(1, 1, 0, 0, 1, 0, 1, 0),
    "user_acting": np.stack([flags(0, 0, 1, 1, 0, 1, 0, 0), flags(0, 0, 0, 1, 0, 0, 0, 0)], axis=1),
    "interventions": flags(0, 0, 1, 1, 0, 0, 0, 0)[:, None],
}
"""A policy with two takeovers, of which the file flags one; nobody acts in the last step."""


def run(tmp_path: Path, changes: dict[str, Any] | None = None, **options: Any) -> ImportReport:
    xs = [0.1 * i for i in range(8)]
    first = demonstration(xs, **(MIXED | (changes or {})))
    source = write_file(tmp_path / "toy.hdf5", {"demo_1": first, "demo_2": demonstration(xs[:3])})
    return import_hdf5(source, tmp_path / "r", "toy", target(), ImportOptions(**options))


def test_exactly_the_flagged_rows_are_the_persons(tmp_path: Path) -> None:
    report = run(tmp_path)
    reader = ReplayReader(tmp_path / "r")
    assert reader.column("source").tolist() == [P, P, H, H, P, H, P, HOLD, H, H, H]
    assert reader.column("intervention_id").tolist() == [-1, -1, 0, 0, -1, 1, -1, -1, -1, -1, -1]
    # What a policy did it also proposed; of a takeover the file does not hold the proposal.
    proposed = ~np.isnan(reader.policy_action).any(axis=1)
    assert (proposed == (reader.column("source") == P)).all()
    np.testing.assert_array_equal(reader.policy_action[proposed], reader.action[proposed])
    assert (report.episodes, report.steps, report.takeovers) == (2, 11, 2)
    assert report.acted == {"hold": 1, "human": 6, "policy": 4}
    dropped = {entry.what: entry.count for entry in report.dropped}
    assert dropped == {"which of the users acted": 2}, "steps 2 and 5"
    assert read_report(tmp_path / "r" / "toy") == report
    assert verify(tmp_path / "r").ok


def test_a_user_counts_as_the_option_says(tmp_path: Path) -> None:
    run(tmp_path, source=Source.SCRIPTED)
    sources = ReplayReader(tmp_path / "r").column("source")
    assert (sources == Source.SCRIPTED).sum() == 6
    assert not (sources == H).any()


@pytest.mark.parametrize(
    ("names", "sources", "takeovers"),
    [
        ((), [H] * 8, [-1] * 8),
        (("user_acting",), [HOLD, HOLD, H, H, HOLD, H, HOLD, HOLD], [-1] * 8),
        (("policy_acting",), [P, P, H, H, P, H, P, H], [-1, -1, 0, 0, -1, 1, -1, 2]),
        (("interventions",), [P, P, H, H, P, P, P, P], [-1, -1, 0, 0, -1, -1, -1, -1]),
        (
            ("user_acting", "interventions"),
            [HOLD, HOLD, H, H, HOLD, H, HOLD, HOLD],
            [-1, -1, 0, 0, -1, -1, -1, -1],
        ),
    ],
)
def test_flags_that_are_missing_are_the_opposite_of_the_others(
    names: tuple[str, ...], sources: list[int], takeovers: list[int]
) -> None:
    acting = acting_of({name: MIXED[name] for name in names}, H, 8)
    assert acting.source.tolist() == sources
    assert acting.takeover.tolist() == takeovers
    assert acting.takeovers == max(takeovers) + 1


def test_a_step_that_users_share_is_counted_only_where_some_rest() -> None:
    assert shared_steps(MIXED) == 2
    assert shared_steps({"user_acting": MIXED["user_acting"][:, 0]}) == 0


def test_a_cut_cuts_the_flags_too(tmp_path: Path) -> None:
    demo = demonstration([0.0, 0.4, 1.2, 1.3], policy_acting=flags(1, 0, 1, 0))
    source = write_file(tmp_path / "toy.hdf5", {"demo_1": demo})
    report = import_hdf5(source, tmp_path / "r", "toy", target(), ImportOptions(until_success=True))
    assert ReplayReader(tmp_path / "r").column("source").tolist() == [P, H]
    assert (report.acted, report.takeovers) == ({"human": 1, "policy": 1}, 1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"policy_acting": flags(1, 0)}, r"demo_1: policy_acting has shape \(2,\), expected one flag"),
        ({"user_acting": np.zeros((8, 1, 1))}, r"user_acting has shape \(8, 1, 1\)"),
        (
            {"interventions": np.array([0, 1, 2, 0, 0, 0, 0, 0])},
            r"interventions, step 2: 2.0, expected 0 or 1",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        run(tmp_path, changes)
    assert not (tmp_path / "r").exists()


# Two arms.


def test_deltas_of_two_arms_must_have_the_same_axes() -> None:
    before = {"robots": ["Panda", "Panda"], "controller_configs": {"type": "OSC_POSE"}}
    arm = {"type": "OSC_POSE", "input_ref_frame": "base"}
    since = {"robots": ["Panda", "Panda"], "controller_configs": {"body_parts": {"arms": {"right": arm}}}}
    key = "controller.input_ref_frame"
    assert (facts_of(before)[key], facts_of(since)[key]) == ("world", "base")
    assert key not in facts_of({**before, "robots": "Panda"}), "the base of one arm has the world's axes"


def test_the_human_handover_file_imports_with_exact_counts(tmp_path: Path) -> None:
    pytest.importorskip("robosuite")
    from flowrl.cli.import_hdf5 import environment_of, make_target

    assert environment_of(HANDOVER, None) == "handover"
    made = make_target("handover", {"decimation": None, "max_steps": 1000})
    report = import_hdf5(HANDOVER, tmp_path / "r", "human", made)
    reader = ReplayReader(tmp_path / "r")
    # The last action of demo_1 solves the task: the recording stopped there, before its state was written.
    assert (report.episodes, report.steps, report.successes) == (3, 1539, 3)
    assert reader.table[:, 1].tolist() == [641, 522, 376]
    assert {reader.episode(i).outcome for i in range(3)} == {Outcome.SUCCESS}
    # One of two users acts at every step, no policy ever does and no takeover is flagged.
    assert (report.acted, report.takeovers) == ({"human": 1539}, 0)
    assert (reader.column("source") == Source.HUMAN).all()
    assert (reader.column("intervention_id") == -1).all()
    assert {e.what: e.count for e in report.dropped} == {"which of the users acted": 148 + 209 + 185}
    with h5py.File(HANDOVER) as file:
        for index in range(3):
            recorded = np.asarray(file[f"data/demo_{index}/actions"], np.float32)
            np.testing.assert_array_equal(reader.episode(index).action, recorded)
    assert verify(tmp_path / "r").ok
    other = {**made.facts, "controller.input_ref_frame": "base"}
    with pytest.raises(SpecMismatch, match=r"input_ref_frame: the file says world, .* has base"):
        import_hdf5(HANDOVER, tmp_path / "s", "human", type(made)(made.name, made.interface, None, other))
