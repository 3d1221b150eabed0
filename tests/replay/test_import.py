"""Importing demonstrations, with a toy simulator: counts, rules, judgement, and every refusal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from rich.console import Console

from flowrl.errors import DataError, FlowRLError, ReplayError, SpecMismatch, UsageError
from flowrl.replay import storage
from flowrl.replay.importers.hdf5 import DemonstrationDone, ImportOptions, import_hdf5
from flowrl.replay.importers.report import ImportReport, read_report, render_import
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, NO_INTERVENTION, Kind, Outcome, OutcomeBy, Source
from flowrl.replay.verify import verify
from flowrl.replay.writer import StreamWriter
from tests.replay.import_files import (
    ENV_INFO,
    SPEC,
    actions,
    demonstration,
    recorded,
    states,
    target,
    write_file,
)

SOLVED = [0.0, 0.4, 0.8, 1.2, 1.3]
"""Solved by the action of step 2: the state before step 3 is the first that solves the task."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    demos = {"demo_10": demonstration([0.0, 0.1]), "demo_2": demonstration(SOLVED)}
    return write_file(tmp_path / "toy.hdf5", demos)


def run(source: Path, replay: Path, stream: str = "toy", **options: Any) -> ImportReport:
    return import_hdf5(source, replay, stream, target(), ImportOptions(**options))


def refuse(
    source: Path, replay: Path, error: type[FlowRLError], match: str, stream: str = "toy", **options: Any
) -> None:
    """An import fails with a message and leaves the replay as it was, or absent."""
    before = sorted(replay.rglob("*")) if replay.exists() else None
    with pytest.raises(error, match=match):
        run(source, replay, stream, **options)
    assert (sorted(replay.rglob("*")) if replay.exists() else None) == before


def test_counts_order_and_columns(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r")
    assert (report.episodes, report.steps, report.successes) == (2, 7, 1)
    assert report.demonstrations == ("demo_2", "demo_10"), "by number"
    reader = ReplayReader(tmp_path / "r")
    assert reader.streams == {"toy": Kind.IMPORT}
    first, second = reader.episode(0), reader.episode(1)
    np.testing.assert_array_equal(first.state[:, 0], np.float32(SOLVED))
    np.testing.assert_array_equal(first.action, actions(5).astype(np.float32))
    assert (reader.column("source") == Source.HUMAN).all()
    assert (reader.column("intervention_id") == NO_INTERVENTION).all()
    assert np.isnan(reader.policy_action).all()
    np.testing.assert_array_equal(first.reward, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(second.reward, [0, 0])
    np.testing.assert_array_equal(reader.column("terminated"), [0, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(reader.column("truncated"), [0, 0, 0, 0, 0, 0, 1])
    assert (first.outcome, second.outcome) == (Outcome.SUCCESS, Outcome.FAILURE)
    assert (reader.table[:, EPISODE["outcome_by"]] == OutcomeBy.ENVIRONMENT).all()
    assert verify(tmp_path / "r").ok


def test_the_last_action_is_simulated_unless_the_state_after_it_is_recorded(tmp_path: Path) -> None:
    one_more = demonstration([0.0, 0.1]) | {"states": states([0.0, 0.1, 0.7])}
    run(write_file(tmp_path / "a.hdf5", {"d_1": demonstration([0.0, 0.1]), "d_2": one_more}), tmp_path / "r")
    reader = ReplayReader(tmp_path / "r")
    np.testing.assert_allclose(reader.final[:, 0], [0.1 + 0.1, 0.7], rtol=1e-6)


def test_a_success_that_only_the_last_action_reaches_counts(tmp_path: Path) -> None:
    report = run(write_file(tmp_path / "a.hdf5", {"demo_1": demonstration([0.0, 0.95])}), tmp_path / "r")
    assert report.successes == 1
    np.testing.assert_array_equal(ReplayReader(tmp_path / "r").reward, [0, 1])


def test_until_success_cuts_there_and_says_how_much(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r", until_success=True)
    assert (report.episodes, report.steps) == (2, 5)
    assert [(d.what, d.count) for d in report.dropped] == [("steps after the first success", 2)]
    episode = ReplayReader(tmp_path / "r").episode(0)
    np.testing.assert_array_equal(episode.reward, [0, 0, 1])
    assert episode.final is not None
    assert episode.final[0] == np.float32(1.2), "the recorded state after the cut"
    assert verify(tmp_path / "r").ok


def test_doubtful_demonstrations_are_named(tmp_path: Path) -> None:
    demos = {"demo_1": demonstration([0.0, 0.1]), "demo_2": demonstration([0.0, 1.5, 0.2])}
    report = run(write_file(tmp_path / "a.hdf5", demos), tmp_path / "r")
    assert any("demo_1 never solves the task" in warning for warning in report.warnings)
    assert any("demo_2 solves the task at step 0, but not at its end" in w for w in report.warnings)
    assert [ReplayReader(tmp_path / "r").episode(i).outcome for i in (0, 1)] == [
        Outcome.FAILURE,
        Outcome.SUCCESS,
    ]


def test_the_report_is_kept_and_shown(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r")
    assert read_report(tmp_path / "r" / "toy") == report
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_import(report))
    text = console.export_text()
    for word in ("toy.hdf5", report.sha256[:12], "push", "-2 .. 1", "demo_10 never solves"):
        assert word in text


# Actions outside the controller's range.


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    demo = demonstration(SOLVED) | {"actions": actions(5, extreme=-4.0)}
    return write_file(tmp_path / "wide.hdf5", {"demo_1": demo, "demo_2": demonstration(SOLVED)})


def test_refuse_lists_each_dimension_outside(wide: Path, tmp_path: Path) -> None:
    match = r"1 of 2 action.*\n +push +-4 .. 0.5, allowed -1 .. 1, 10.0% of steps outside\n.*--actions clip"
    refuse(wide, tmp_path / "r", DataError, match)


def test_clip_cuts_only_what_is_outside(wide: Path, tmp_path: Path) -> None:
    report = run(wide, tmp_path / "r", actions="clip")
    action = ReplayReader(tmp_path / "r").action
    assert action[:, 0].min() == -1.0
    np.testing.assert_array_equal(action[1:], np.concatenate([actions(5)[1:], actions(5)]).astype(np.float32))
    assert (report.rule, report.ranges[0].minimum, report.ranges[0].scale) == ("clip", -4.0, 1.0)


def test_rescale_keeps_proportions_over_the_whole_file(wide: Path, tmp_path: Path) -> None:
    report = run(wide, tmp_path / "r", actions="rescale")
    action = ReplayReader(tmp_path / "r").action
    np.testing.assert_allclose(action[:6, 0], [-1, 0.025, 0.025, 0.025, 0.025, 0.125], rtol=1e-6)
    np.testing.assert_allclose(action[:, 1], 0.1, rtol=1e-6)
    assert [each.scale for each in report.ranges] == [0.25, 1.0]


# Data that cannot be used: the message names it, nothing is left.


def broken(tmp_path: Path, **changes: Any) -> Path:
    """A good demonstration, then one with some datasets changed (None leaves one out)."""
    demo = {key: value for key, value in (demonstration(SOLVED) | changes).items() if value is not None}
    return write_file(tmp_path / "bad.hdf5", {"demo_1": demonstration(SOLVED), "demo_2": demo})


def with_nan(values: np.ndarray, step: int, column: int) -> np.ndarray:
    values[step, column] = np.nan
    return values


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"actions": with_nan(actions(5), 3, 1)}, r"demo_2, step 3: action\[1\] \(grip\) is nan"),
        ({"states": with_nan(states(SOLVED), 2, 3)}, r"demo_2, step 2: states\[3\] is nan"),
        ({"actions": None}, r"demo_2 has no dataset 'actions'; it holds states"),
        ({"states": None}, r"demo_2 has no dataset 'states'"),
        ({"states": states(SOLVED)[:3]}, r"demo_2: 3 states for 5 actions"),
        ({"states": np.zeros((5, 6))}, r"demo_2: toy: a simulator state has shape \(4,\), got \(6,\)"),
        ({"actions": np.zeros((5, 7))}, r"demo_2: actions have 7 dimensions, environment 'toy' has 2"),
        ({"actions": np.zeros(5)}, r"demo_2: dataset 'actions' has shape \(5,\)"),
        ({"actions": np.full((5, 2), b"x")}, r"demo_2: dataset 'actions' holds \|S1, expected numbers"),
    ],
)
def test_bad_data_is_refused_by_demonstration_and_step(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    refuse(broken(tmp_path, **changes), tmp_path / "r", DataError, match)


def test_a_demonstration_without_steps_is_dropped_and_said(tmp_path: Path) -> None:
    source = broken(tmp_path, actions=np.zeros((0, 2)), states=np.zeros((0, 4)))
    report = run(source, tmp_path / "r")
    assert report.demonstrations == ("demo_1",)
    assert [(d.what, d.count, d.reason) for d in report.dropped] == [("demonstrations", 1, "has no steps")]


def test_a_truncated_file_is_refused(source: Path, tmp_path: Path) -> None:
    content = source.read_bytes()
    source.write_bytes(content[: len(content) // 2])
    refuse(
        source, tmp_path / "r", DataError, r"toy.hdf5 cannot be read: .*truncated or damaged.*copy it again"
    )


def test_damage_anywhere_in_the_file_is_an_error_of_ours_or_harmless(source: Path, tmp_path: Path) -> None:
    content = source.read_bytes()
    random = np.random.default_rng(0)
    for index in range(25):
        start = int(random.integers(8, len(content) - 64))
        source.write_bytes(content[:start] + b"\xff" * 64 + content[start + 64 :])
        replay = tmp_path / f"r{index}"
        # A damaged member must not pass for a missing one, nor leave h5py's lock held by a generator.
        try:
            run(source, replay)
        except FlowRLError:
            assert not replay.exists()
        else:
            assert verify(replay).ok


def test_other_files_are_refused_with_what_is_supported(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("hello")
    empty = tmp_path / "b.hdf5"
    empty.touch()
    other = tmp_path / "c.hdf5"
    with h5py.File(other, "w") as file:
        file.create_dataset("episodes", data=[1])
    for path, match in (
        (text, "a.txt is not an HDF5 file.*Supported are: robosuite"),
        (empty, "b.hdf5 is an empty file"),
        (other, "c.hdf5 is an HDF5 file without demonstrations under 'data'; it holds episodes"),
        (tmp_path, "is a directory.*Supported are"),
        (tmp_path / "none.hdf5", "there is no file"),
    ):
        refuse(path, tmp_path / "r", UsageError, match)


def test_attributes_that_are_no_json_are_named(source: Path, tmp_path: Path) -> None:
    with h5py.File(source, "a") as file:
        file["data"].attrs["env_info"] = "{"
    refuse(source, tmp_path / "r", DataError, "toy.hdf5: attribute 'env_info' is not JSON")


# Recorded elsewhere.


def recorded_with(tmp_path: Path, **changes: Any) -> Path:
    return write_file(tmp_path / "a.hdf5", {"demo_1": demonstration(SOLVED)}, ENV_INFO | changes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"control_freq": 10}, "control_freq: the file says 10.0, environment 'toy' has 20.0"),
        ({"robots": ["Other"]}, "robots: the file says"),
        ({"controller_configs": {"type": "JOINT_VELOCITY"}}, "controller.type: the file says JOINT_VELOCITY"),
        ({"controller_configs": {"control_delta": False}}, "controller.input_type: the file says absolute"),
        (
            {"controller_configs": {"type": "BASIC", "body_parts": {"right": {"type": "IK_POSE"}}}},
            "controller.type: the file says IK_POSE",
        ),
    ],
)
def test_another_control_is_refused_unless_allowed(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    source = recorded_with(tmp_path, **changes)
    refuse(source, tmp_path / "r", SpecMismatch, match)
    report = run(source, tmp_path / "r", allow_mismatch=True)
    assert match.split(":")[0] in report.warnings[0]


def test_another_task_is_refused_even_then(tmp_path: Path) -> None:
    source = recorded_with(tmp_path, env_name="Wipe")
    refuse(source, tmp_path / "r", SpecMismatch, "recorded in 'Wipe', environment 'toy' is 'Toy'")
    refuse(source, tmp_path / "r", SpecMismatch, "'Wipe'", allow_mismatch=True)


def test_other_gains_and_an_unknown_origin_are_warned_of(tmp_path: Path) -> None:
    source = recorded_with(tmp_path, controller_configs={"kp": 300, "output_max": [0.05, 0.5]})
    assert run(source, tmp_path / "r").warnings == (
        "controller.kp: the file says 300, environment 'toy' has 150",
    )
    anonymous = write_file(tmp_path / "b.hdf5", {"demo_1": demonstration(SOLVED)}, None)
    assert "does not say where it was recorded" in run(anonymous, tmp_path / "q").warnings[0]


def test_a_decimated_environment_is_warned_of(source: Path, tmp_path: Path) -> None:
    decimated = replace(SPEC, settings={**SPEC.settings, "control_decimation": 5})
    report = import_hdf5(source, tmp_path / "r", "toy", replace(target(), interface=decimated))
    assert "imported for control_decimation 5" in report.warnings[0]
    assert "--set decimation=none" in report.warnings[0]


def test_the_clock_of_the_states_stands_in_for_a_missing_control_rate(tmp_path: Path) -> None:
    info = {key: value for key, value in ENV_INFO.items() if key != "control_freq"}
    demo = demonstration(SOLVED) | {"states": states(SOLVED, hz=10.0)}
    source = write_file(tmp_path / "a.hdf5", {"demo_1": demo}, info)
    refuse(source, tmp_path / "r", SpecMismatch, "control_freq: the file says 10")


# Streams: never twice, never half.


def test_a_second_import_is_refused_by_stream_and_by_content(source: Path, tmp_path: Path) -> None:
    replay = tmp_path / "r"
    run(source, replay)
    refuse(source, replay, ReplayError, "'toy' already exists.*--replace")
    refuse(source, replay, ReplayError, "stream 'toy' holds 2 of these.*--allow-duplicate", "other")
    run(source, replay, "other", allow_duplicate=True)
    assert storage.stream_names(replay) == ["other", "toy"]


def test_disjoint_parts_of_one_file_are_no_duplicates(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {f"demo_{i}": demonstration(SOLVED) for i in range(3)})
    with h5py.File(source, "a") as file:
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
        file["mask/valid"] = np.array([b"demo_1"])
    replay = tmp_path / "r"
    assert run(source, replay, "train", filter_key="train").demonstrations == ("demo_0", "demo_2")
    assert run(source, replay, "valid", filter_key="valid").demonstrations == ("demo_1",)
    refuse(source, replay, UsageError, "no filter key 'test'; it has train, valid", "t", filter_key="test")


def test_a_limit_takes_the_first_and_says_what_it_left(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r", limit=1)
    assert report.demonstrations == ("demo_2",)
    assert [(d.count, d.reason) for d in report.dropped] == [(1, "beyond the limit of 1")]
    refuse(source, tmp_path / "q", UsageError, "at least 1", limit=0)


def test_replace_takes_the_place_of_an_import_and_of_nothing_else(source: Path, tmp_path: Path) -> None:
    replay = tmp_path / "r"
    run(source, replay)
    assert run(source, replay, until_success=True, replace=True).steps == 5
    assert ReplayReader(replay).rows == 5
    with StreamWriter.open(replay, "toy", SPEC):
        refuse(source, replay, ReplayError, "'toy'.*already has a writer", replace=True)
    StreamWriter.create(replay, "own", SPEC, Kind.POLICY).close()
    refuse(source, replay, ReplayError, "was not imported", "own", replace=True, allow_duplicate=True)
    refuse(source, replay, ReplayError, "use letters", "../x")


def test_a_failed_replacement_keeps_the_former_stream(source: Path, wide: Path, tmp_path: Path) -> None:
    replay = tmp_path / "r"
    run(source, replay)
    refuse(wide, replay, DataError, "leave the controller's range", replace=True)
    assert ReplayReader(replay).rows == 7


def test_an_interrupt_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def interrupt(done: DemonstrationDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_hdf5(source, tmp_path / "r", "toy", target(), ImportOptions(), interrupt)
    assert not (tmp_path / "r").exists()
    assert run(source, tmp_path / "r").steps == 7


def test_a_kill_leaves_no_stream_and_the_next_import_is_complete(tmp_path: Path) -> None:
    source = write_file(tmp_path / "a.hdf5", {f"demo_{i}": demonstration(SOLVED) for i in range(4)})
    replay = tmp_path / "r"
    code = "import sys; from tests.replay.import_files import import_and_die; import_and_die(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(replay)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "killing" in done.stdout, done.stderr
    assert storage.stream_names(replay) == []
    assert [path.name for path in replay.iterdir()] == [".import-toy"]
    assert run(source, replay).steps == 20
    assert [path.name for path in replay.iterdir()] == ["toy"]
    assert verify(replay).ok


def test_a_kill_between_the_two_renames_of_a_replacement_is_mended(source: Path, tmp_path: Path) -> None:
    replay = tmp_path / "r"
    run(source, replay)
    (replay / ".import-toy").mkdir()
    (replay / "toy").rename(replay / ".import-toy" / ".former")
    with pytest.raises(ReplayError, match="already exists"):
        run(source, replay)
    assert ReplayReader(replay).rows == 7
    assert [path.name for path in replay.iterdir()] == ["toy"]


def test_a_damaged_report_is_named(source: Path, tmp_path: Path) -> None:
    replay = tmp_path / "r"
    run(source, replay)
    file = replay / "toy" / "import.json"
    for text in (
        "{",
        json.dumps({**json.loads(file.read_text()), "report_format": 9}),
        '{"report_format": 1}',
    ):
        file.write_text(text)
        refuse(source, replay, ReplayError, "stream 'toy'.*import.json cannot be read", "other")


# robomimic's layout.


def robomimic(path: Path, xs: list[float], **changes: Any) -> Path:
    solved = np.array([*(x >= 1 for x in xs[1:]), xs[-1] >= 1], float)
    demo = demonstration(xs, rewards=solved, dones=solved, obs=recorded(xs)) | changes
    write_file(path, {"demo_0": {key: value for key, value in demo.items() if value is not None}}, None)
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Toy", "type": 1, "env_kwargs": ENV_INFO})
    return path


def test_recorded_observations_are_used_without_a_simulator(tmp_path: Path) -> None:
    source = robomimic(tmp_path / "a.hdf5", SOLVED, states=None)
    report = import_hdf5(source, tmp_path / "r", "toy", target(simulator=False))
    assert (report.format, report.observations) == ("robomimic", "file")
    assert (report.steps, report.successes) == (5, 1)
    episode = ReplayReader(tmp_path / "r").episode(0)
    np.testing.assert_array_equal(episode.state[:, 0], np.float32(SOLVED))
    np.testing.assert_array_equal(episode.reward, [0, 0, 1, 0, 0])
    assert episode.final is None, "not recorded"
    assert verify(tmp_path / "r").ok


def test_next_obs_gives_the_observation_after_the_last_step(tmp_path: Path) -> None:
    after = recorded([*SOLVED[1:], 9.0])
    source = robomimic(tmp_path / "a.hdf5", SOLVED, next_obs=after)
    assert run(source, tmp_path / "r").observations == "file"
    final = ReplayReader(tmp_path / "r").episode(0).final
    assert final is not None
    assert final[0] == 9.0


def test_recorded_and_replayed_observations_give_the_same_rows(tmp_path: Path) -> None:
    source = robomimic(tmp_path / "a.hdf5", SOLVED)
    for name in ("file", "states"):
        assert run(source, tmp_path / name, observations=name).observations == name
    readers = [ReplayReader(tmp_path / name) for name in ("file", "states")]
    for column in ("state", "action", "reward", "integers"):
        np.testing.assert_array_equal(*(getattr(reader, column) for reader in readers))


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (lambda obs: obs | {"object": obs["object"] + 0.5}, "differ: demo_0, step 0: .*gap.* by 0.5"),
        (lambda obs: {key: value for key, value in obs.items() if key != "object"}, ""),
    ],
    ids=["disagreeing", "incomplete"],
)
def test_recorded_observations_that_will_not_do_are_replayed(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], warning: str
) -> None:
    source = robomimic(tmp_path / "a.hdf5", SOLVED, obs=change(recorded(SOLVED)))
    report = run(source, tmp_path / "r")
    assert report.observations == "states"
    assert any(d.what == "dataset obs" for d in report.dropped)
    if warning:
        assert any(re.search(warning, text) for text in report.warnings)


def test_what_is_missing_without_states_is_named(tmp_path: Path) -> None:
    obs = {key: value for key, value in recorded(SOLVED).items() if key != "object"}
    source = robomimic(tmp_path / "a.hdf5", SOLVED, obs=obs, states=None)
    refuse(
        source, tmp_path / "r", DataError, "demo_0: observations of 'toy' cannot be recovered.*lacks object"
    )
    refuse(source, tmp_path / "r", DataError, "obs lacks object", observations="file")


def test_a_wrong_observation_names_key_and_step(tmp_path: Path) -> None:
    obs = recorded(SOLVED)
    wide = obs | {"object": np.zeros((5, 14))}
    source = robomimic(tmp_path / "a.hdf5", SOLVED, obs=wide, states=None)
    refuse(source, tmp_path / "r", DataError, "obs/object has 14 values, .* needs 2")
    with_hole = obs | {"object": with_nan(obs["object"].copy(), 4, 1)}
    source = robomimic(tmp_path / "a.hdf5", SOLVED, obs=with_hole, states=None)
    refuse(
        source, tmp_path / "r", DataError, r"demo_0, step 4: observation.environment_state\[1\] \(speed\) is"
    )


def test_shaped_rewards_do_not_tell_success(tmp_path: Path) -> None:
    shaped = np.linspace(0, 0.9, 5)
    source = robomimic(tmp_path / "a.hdf5", SOLVED, rewards=shaped)
    report = run(source, tmp_path / "r")
    assert (report.observations, report.successes) == ("states", 1)
    source = robomimic(tmp_path / "b.hdf5", SOLVED, rewards=shaped, states=None)
    report = run(source, tmp_path / "q")
    assert report.successes == 0
    assert "outcome unknown" in report.warnings[0]
    assert ReplayReader(tmp_path / "q").episode(0).outcome is Outcome.UNKNOWN
    assert verify(tmp_path / "q").ok
