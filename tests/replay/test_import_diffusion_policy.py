"""Importing replay buffers of diffusion_policy: exact values and counts, the spec, and every refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from PIL import Image

from flowrl.errors import DataError, FlowRLError, ReplayError, SpecMismatch, UsageError
from flowrl.replay import storage
from flowrl.replay.frames import FrameCodec
from flowrl.replay.importers.diffusion_policy import BufferOptions, import_diffusion_policy
from flowrl.replay.importers.episodes import DemonstrationDone
from flowrl.replay.importers.provenance import source_digest
from flowrl.replay.importers.report import ImportReport, read_report
from flowrl.replay.importers.target import Target
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Kind, Outcome, OutcomeBy, Source
from flowrl.replay.verify import verify
from flowrl.spec import ActionSpec, Feature, Spec
from tests.replay.buffer_files import arrays, change_metadata, write_buffer, zipped

IMG = "observation.images.img"
TARGET = Target(
    "pushing",
    Spec(
        (Feature(IMG, (3, 3, 4), "uint8"), Feature("observation.state", (5,))),
        ActionSpec(("x", "y"), (-10.0, -10.0), (100.0, 100.0)),
        control_hz=10.0,
    ),
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_buffer(tmp_path / "push.zarr")


def run(
    path: Path, replay: Path, stream: str = "push", target: Target | None = None, **options: Any
) -> ImportReport:
    rate = {} if target else {"control_hz": 10.0}
    return import_diffusion_policy(
        path, replay, stream, target, BufferOptions(codec=FrameCodec("png"), **{**rate, **options})
    )


def refuse(
    source: Path, replay: Path, error: type[FlowRLError], match: str, stream: str = "push", **options: Any
) -> None:
    """An import fails with a message and leaves the replay as it was, or absent."""
    before = sorted(replay.rglob("*")) if replay.exists() else None
    with pytest.raises(error, match=match):
        run(source, replay, stream, **options)
    assert (sorted(replay.rglob("*")) if replay.exists() else None) == before


def spec_of(replay: Path, stream: str = "push") -> Spec:
    session = storage.open_repository(replay / stream).readonly_session(storage.BRANCH)
    return storage.read_header(replay / stream, session).spec


@pytest.mark.parametrize("form", [lambda path: path, zipped], ids=["directory", "zip"])
def test_counts_values_and_frames(source: Path, tmp_path: Path, form: Callable[[Path], Path]) -> None:
    report = run(form(source), tmp_path / "r")
    assert (report.episodes, report.steps, report.successes) == (2, 7, 0)
    assert (report.format, report.environment, report.dropped) == ("diffusion_policy", "", ())
    assert report.demonstrations == ("episode_0", "episode_1")
    reader, held = ReplayReader(tmp_path / "r"), arrays()
    assert reader.streams == {"push": Kind.IMPORT}
    np.testing.assert_array_equal(reader.action, held["action"])
    state = np.concatenate([held["keypoint"].reshape(7, 6), held["n_contacts"], held["state"]], axis=1)
    np.testing.assert_array_equal(reader.state, state.astype(np.float32))
    np.testing.assert_array_equal(
        reader.frames.pixels(IMG, range(7)).numpy().transpose(0, 2, 3, 1), held["img"].astype(np.uint8)
    )
    assert [len(reader.episode(index).action) for index in range(2)] == [3, 4]
    assert verify(tmp_path / "r").ok


def test_the_spec_describes_the_arrays(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "r")
    spec = spec_of(tmp_path / "r")
    assert [(each.name, each.shape, each.dtype) for each in spec.observation] == [
        (IMG, (3, 6, 8), "uint8"),
        ("observation.keypoint", (3, 2), "float32"),
        ("observation.n_contacts", (1,), "float32"),
        ("observation.state", (5,), "float32"),
    ]
    # Extremes 0..60 and -1..5, moved out by 5% of 60 and of 6.
    assert spec.action.low == pytest.approx((-3.0, -1.3))
    assert spec.action.high == pytest.approx((63.0, 5.3))
    assert (spec.action.names, spec.control_hz) == (("action_0", "action_1"), 10.0)


def test_a_dimension_that_never_moves_has_bounds_too(tmp_path: Path) -> None:
    still = np.tile(np.float32([0.0, -8.0]), (7, 1))
    run(write_buffer(tmp_path / "a.zarr", {"action": still}), tmp_path / "r")
    action = spec_of(tmp_path / "r").action
    assert (action.low, action.high) == (pytest.approx((-0.05, -8.4)), pytest.approx((0.05, -7.6)))


def test_nobody_says_how_an_episode_ended(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r")
    reader = ReplayReader(tmp_path / "r")
    assert (reader.table[:, EPISODE["outcome"]] == Outcome.UNKNOWN).all()
    assert not reader.reward.any()
    assert reader.column("truncated").tolist() == [0, 0, 1, 0, 0, 0, 1]
    assert not reader.column("terminated").any()
    assert reader.episode(0).final is None
    assert any("outcome unknown" in warning for warning in report.warnings)


def test_success_is_said_by_a_person(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r", success=True, source=Source.SCRIPTED)
    reader = ReplayReader(tmp_path / "r")
    assert report.successes == 2
    assert (reader.table[:, EPISODE["outcome"]] == Outcome.SUCCESS).all()
    assert (reader.table[:, EPISODE["outcome_by"]] == OutcomeBy.HUMAN).all()
    assert reader.reward.tolist() == [0, 0, 1, 0, 0, 0, 1]
    assert reader.column("terminated").tolist() == [0, 0, 1, 0, 0, 0, 1]
    assert (reader.column("source") == Source.SCRIPTED).all()
    assert not any("unknown" in warning for warning in report.warnings)


def test_obs_is_the_state_where_there_is_no_state(tmp_path: Path) -> None:
    values = np.arange(14.0).reshape(7, 2)
    only = {"state": None, "img": None, "keypoint": None, "n_contacts": None, "obs": values}
    run(write_buffer(tmp_path / "a.zarr", only), tmp_path / "r")
    assert [each.name for each in spec_of(tmp_path / "r").observation] == ["observation.state"]
    np.testing.assert_array_equal(ReplayReader(tmp_path / "r").state, values)
    both = write_buffer(tmp_path / "b.zarr", {**only, "state": values})
    run(both, tmp_path / "q")
    assert [each.name for each in spec_of(tmp_path / "q").observation] == [
        "observation.obs",
        "observation.state",
    ]


def test_named_arrays_alone_are_imported(source: Path, tmp_path: Path) -> None:
    named = {"state": "observation.state", "img": "observation.images.camera"}
    report = run(source, tmp_path / "r", features=named)
    assert {each.name for each in spec_of(tmp_path / "r").observation} == set(named.values())
    assert [(each.what, each.reason) for each in report.dropped] == [
        ("array keypoint", "not named by --feature"),
        ("array n_contacts", "not named by --feature"),
    ]


def test_cameras_are_chosen_and_resized(tmp_path: Path) -> None:
    wrist = np.random.default_rng(1).integers(0, 256, (7, 4, 4, 3), np.uint8)
    source = write_buffer(tmp_path / "a.zarr", {"wrist": wrist})
    report = run(source, tmp_path / "r", cameras=["wrist"], image_size=2)
    seen = ReplayReader(tmp_path / "r").frames.pixels("observation.images.wrist", range(7)).numpy()
    expected = [np.asarray(Image.fromarray(each).resize((2, 2), Image.Resampling.BILINEAR)) for each in wrist]
    np.testing.assert_array_equal(seen.transpose(0, 2, 3, 1), expected)
    assert [each.what for each in report.dropped] == ["array img"]
    assert "observation.images.wrist is resized from 4 x 4 to 2 x 2 pixels" in report.warnings
    refuse(
        source,
        tmp_path / "q",
        UsageError,
        "no camera 'top'; its arrays of images are img, wrist",
        cameras=["top"],
    )


def test_what_is_no_observation_is_dropped_and_said(tmp_path: Path) -> None:
    more = {
        "timestamp": np.arange(7.0),
        "depth": np.zeros((7, 40, 40), np.uint16),
        "text": np.array([b"a"] * 7),
    }
    source = write_buffer(tmp_path / "a.zarr", more)
    zarr.open_group(source, mode="r+", zarr_format=2).create_group("data/nested")
    dropped = {each.what: each.reason for each in run(source, tmp_path / "r").dropped}
    assert sorted(dropped) == ["array depth", "array text", "array timestamp", "group nested"]
    assert "neither low-dimensional nor RGB images" in dropped["array depth"]
    run(source, tmp_path / "q", features={"timestamp": "observation.clock"})
    assert ReplayReader(tmp_path / "q").state[:, 0].tolist() == list(range(7))


def test_a_limit_takes_the_first_and_keeps_the_spec(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r", limit=1)
    assert (report.demonstrations, report.steps) == (("episode_0",), 3)
    assert [(each.count, each.reason) for each in report.dropped] == [(1, "beyond the limit of 1")]
    assert report.ranges[0].maximum == 20.0, "of what was imported"
    whole = tmp_path / "whole"
    run(source, whole)
    assert spec_of(tmp_path / "r") == spec_of(whole)
    refuse(source, tmp_path / "q", UsageError, "at least 1", limit=0)


# For an environment.


def test_a_target_takes_its_features_by_name(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "r", target=TARGET)
    assert spec_of(tmp_path / "r") == TARGET.interface
    assert [each.what for each in report.dropped] == ["array keypoint", "array n_contacts"]
    assert f"{IMG} is resized from 6 x 8 to 3 x 4 pixels" in report.warnings
    reader = ReplayReader(tmp_path / "r")
    np.testing.assert_array_equal(reader.state, arrays()["state"].astype(np.float32))
    assert reader.tasks == ["pushing", "pushing"]
    assert verify(tmp_path / "r").ok


def test_every_difference_from_a_target_is_named(source: Path, tmp_path: Path) -> None:
    spec = replace(
        TARGET.interface,
        observation=(
            Feature("observation.state", (2,)),
            Feature("observation.images.top", (3, 3, 4), "uint8"),
        ),
        action=ActionSpec(("x",), (-1.0,), (1.0,)),
    )
    with pytest.raises(SpecMismatch) as caught:
        run(source, tmp_path / "r", target=replace(TARGET, interface=spec))
    for line in (
        "data/action has 2 dimensions, the environment's actions 1",
        "observation.state: a row of data/state has shape (5,), not (2,)",
        "observation.images.top: no array becomes it",
        "img (7, 6, 8, 3)",
    ):
        assert line in str(caught.value)
    named = {"state": "observation.state", "img": "observation.images.img"}
    assert run(source, tmp_path / "q", target=TARGET, features=named).steps == 7


def test_actions_outside_a_target_need_a_rule(source: Path, tmp_path: Path) -> None:
    narrow = replace(
        TARGET, interface=replace(TARGET.interface, action=ActionSpec(("x", "y"), (-1.0, -9.0), (30.0, 9.0)))
    )
    refuse(source, tmp_path / "r", DataError, r"x +0 .. 60, allowed -1 .. 30, 42.9% of", target=narrow)
    run(source, tmp_path / "r", target=narrow, actions="clip")
    assert ReplayReader(tmp_path / "r").action[:, 0].tolist() == [0, 10, 20, 30, 30, 30, 30]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"control_hz": None}, UsageError, "does not state its control rate; give it with --control-hz"),
        ({"control_hz": 0.0}, UsageError, "control rate is 0.0 Hz"),
        ({"target": TARGET, "control_hz": 5.0}, SpecMismatch, "--control-hz is 5.0, .* runs at 10.0 Hz"),
        ({"target": TARGET, "cameras": ["img"]}, UsageError, "leave out --camera and --image-size"),
        ({"target": TARGET, "image_size": 4}, UsageError, "leave out --camera and --image-size"),
        ({"image_size": 0}, UsageError, "image size is 0"),
        ({"features": {"pose": "observation.pose"}}, UsageError, "no array data/pose; it has img"),
        ({"features": {"action": "observation.action"}}, UsageError, "no array data/action"),
        ({"features": {"state": "state"}}, UsageError, "cannot be the feature 'state'"),
        (
            {"features": {"state": "observation.images.x"}},
            UsageError,
            r"float64 of shape \(7, 5\), cannot be",
        ),
        ({"features": {"img": "observation.picture"}}, UsageError, "cannot be the feature 'observation.pic"),
        ({"features": {"img": "observation.images.a"}}, DataError, "no low-dimensional observation"),
        (
            {"features": {"state": "observation.state", "keypoint": "observation.state"}},
            UsageError,
            "two arrays would be the same feature",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    source: Path, tmp_path: Path, options: dict[str, Any], error: type[FlowRLError], match: str
) -> None:
    refuse(source, tmp_path / "r", error, match, **options)


# Buffers that cannot be used.


def with_value(key: str, row: int, value: float) -> dict[str, Any]:
    values = arrays()[key].copy()
    values[row].flat[1] = value
    return {key: values}


@pytest.mark.parametrize(
    ("data", "ends", "error", "match"),
    [
        ({"action": None}, [3, 7], UsageError, "no replay buffer.*no array data/action; data holds img, key"),
        ({}, None, UsageError, "no array meta/episode_ends"),
        ({}, [3, 8], DataError, r"ends at row 8, but data/action has 7 rows"),
        ({}, [3, 6], DataError, r"ends at row 6, but data/action has 7 rows"),
        ({}, [3, 3, 7], DataError, r"episode_ends\[1\] is 3, expected more than 3"),
        ({}, [0, 7], DataError, r"episode_ends\[0\] is 0, expected more than 0"),
        ({}, [3.0, 7.0], DataError, r"episode_ends is float64 of shape \(2,\), expected integers"),
        ({}, [[3, 7]], DataError, r"episode_ends is int64 of shape \(1, 2\)"),
        ({"state": np.zeros((6, 5))}, [3, 7], DataError, r"data/state has shape \(6, 5\), .* has 7 rows"),
        ({"img": np.zeros((6, 4, 4, 3), np.uint8)}, [3, 7], DataError, r"data/img has shape \(6, 4, 4, 3\)"),
        (with_value("action", 4, np.nan), [3, 7], DataError, r"episode_1, step 1: data/action\[1\] is nan"),
        (with_value("state", 2, np.inf), [3, 7], DataError, r"episode_0, step 2: data/state\[1\] is inf"),
        (with_value("state", 2, 1e300), [3, 7], DataError, r"episode_0, step 2: data/state\[1\] is inf"),
        (with_value("img", 5, np.nan), [3, 7], DataError, r"data/img, row 5 holds values from nan to nan"),
        (with_value("img", 5, -1), [3, 7], DataError, r"data/img, row 5 holds values from -1 to"),
        ({"img": arrays()["img"] / 255}, [3, 7], DataError, r"data/img, row 0 .*multiply the images by 255"),
        ({"action": np.zeros((7, 2, 2))}, [3, 7], DataError, r"data/action has shape \(7, 2, 2\)"),
        ({"action": np.array([b"a"] * 7)}, [3, 7], DataError, r"data/action holds \|S1 of shape \(7,\)"),
        ({"action": np.zeros((0, 2))}, np.zeros(0, int), DataError, "no demonstration to import"),
    ],
)
def test_bad_buffers_are_refused_by_array_and_row(
    tmp_path: Path, data: dict[str, Any], ends: Any, error: type[FlowRLError], match: str
) -> None:
    refuse(write_buffer(tmp_path / "bad.zarr", data, ends), tmp_path / "r", error, match)


def test_other_places_are_refused_with_what_is_missing(source: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    refuse(
        empty, tmp_path / "r", UsageError, "no array data/action and no meta/episode_ends; it holds nothing"
    )
    refuse(tmp_path / "none", tmp_path / "r", UsageError, "there is nothing at")
    refuse(tmp_path, tmp_path / "r", UsageError, r"import '.*push\.zarr'")
    inside = zipped(source, prefix="pusht/")
    refuse(inside, tmp_path / "r", UsageError, "the buffer lies in 'pusht' of the archive")
    text = tmp_path / "a.zip"
    text.write_text("hello")
    refuse(text, tmp_path / "r", DataError, "a.zip is no readable .zip")
    newer = tmp_path / "newer.zarr"
    zarr.open_group(newer, mode="w", zarr_format=3).create_array("data/action", data=np.zeros((7, 2)))
    refuse(newer, tmp_path / "r", UsageError, "zarr's format 3; write it in format 2")


def test_a_missing_codec_is_named_and_the_array_can_be_left_out(source: Path, tmp_path: Path) -> None:
    change_metadata(source, "data/img", compressor={"id": "imagecodecs_jpegxl", "level": 99})
    refuse(source, tmp_path / "r", DataError, "data/img .*codec 'imagecodecs_jpegxl', which is not installed")
    run(source, tmp_path / "r", features={"state": "observation.state"})


@pytest.mark.parametrize("where", ["compressor", "filters"])
def test_pickled_arrays_are_never_loaded(source: Path, tmp_path: Path, where: str) -> None:
    pickle = {"id": "pickle", "protocol": 5}
    change_metadata(source, "data/state", **{where: [pickle] if where == "filters" else pickle})
    refuse(source, tmp_path / "r", DataError, "data/state stores Python objects, .*never loaded")
    change_metadata(source, "data/state", dtype="|O")
    refuse(source, tmp_path / "r", UsageError, "cannot be", features={"state": "observation.state"})


def test_damage_is_named(source: Path, tmp_path: Path) -> None:
    chunk = source / "data/action/1.0"
    content = chunk.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:12] + b"\xff" * (len(content) - 12)):
        chunk.write_bytes(damaged)
        refuse(source, tmp_path / "r", DataError, r"data/action.*truncated or damaged")
    chunk.write_bytes(content)
    archive = zipped(source)
    whole = bytearray(archive.read_bytes())
    place = whole.index(content)
    whole[place + 20] ^= 0xFF
    archive.write_bytes(whole)
    refuse(archive, tmp_path / "r", DataError, r"data/action cannot be read")
    archive.write_bytes(whole[: len(whole) // 2])
    refuse(archive, tmp_path / "r", DataError, r"no readable \.zip")
    (source / "data/state/.zarray").write_text("{")
    refuse(source, tmp_path / "r", DataError, r"data/state/\.zarray cannot be read")


def test_absent_chunks_are_warned_of(source: Path, tmp_path: Path) -> None:
    (source / "data/state/1.0").unlink()
    warning = next(w for w in run(source, tmp_path / "r").warnings if "chunks" in w)
    assert warning.startswith("data/state lacks 1 of its 4 chunks; zarr takes 0.0 there")


# Streams: never twice, never half.


def test_a_second_import_is_refused_by_stream_and_by_content(source: Path, tmp_path: Path) -> None:
    replay = tmp_path / "r"
    report = run(source, replay)
    assert read_report(replay / "push") == report
    refuse(source, replay, ReplayError, "'push' already exists.*--replace")
    refuse(source, replay, ReplayError, "stream 'push' holds 2 of these.*--allow-duplicate", "other")
    run(source, replay, "other", allow_duplicate=True)
    assert run(source, replay, limit=1, replace=True, allow_duplicate=True).steps == 3
    assert storage.stream_names(replay) == ["other", "push"]


def test_the_digest_of_a_directory_tells_contents_and_names(source: Path, tmp_path: Path) -> None:
    same = write_buffer(tmp_path / "copy.zarr")
    digest = source_digest(source)
    assert source_digest(same) == digest
    (same / "data/state/1.0").rename(same / "data/state/1.9")
    assert source_digest(same) != digest
    (same / "data/state/1.9").rename(same / "data/state/1.0")
    assert source_digest(same) == digest
    (same / ".zattrs").write_text("{ }")
    assert source_digest(same) != digest


def test_an_interrupt_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def interrupt(done: DemonstrationDone) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_diffusion_policy(
            source, tmp_path / "r", "push", None, BufferOptions(control_hz=10.0), interrupt
        )
    assert not (tmp_path / "r").exists()
    assert run(source, tmp_path / "r").steps == 7
