"""A LeRobotDataset v3 becomes a stream: every number at its row, every frame with its step, every fault named."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.cli import import_lerobot as command
from flowrl.errors import DataError, MissingExtra, ReplayError, SpecMismatch, UsageError
from flowrl.replay.importers.lerobot import LeRobotOptions, import_lerobot
from flowrl.replay.importers.lerobot_features import Choice
from flowrl.replay.importers.lerobot_files import VideoPlace
from flowrl.replay.importers.lerobot_video import VideoCursor
from flowrl.replay.importers.report import Dropped, read_report
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import INT, Outcome, Source
from flowrl.replay.verify import verify
from flowrl.spec import ActionSpec, Feature, Spec
from tests.replay import lerobot_files as made
from tests.replay.lerobot_files import FPS, FRONT, HEIGHT, LENGTHS, TASKS, WRIST, write_dataset

ROWS = sum(LENGTHS)
# A flat grey through H.264 at crf 10 and JPEG at quality 95 stays within a few levels.
CLOSE = 4
TARGET = Spec(
    observation=(
        Feature("observation.environment_state", (1,), names=("gap",), unit="m"),
        Feature("observation.state", (2,), names=("x", "y"), unit="m"),
    ),
    action=ActionSpec(("push", "grip"), (-1.0, 0.0), (1.0, 2.0), "m"),
    control_hz=FPS,
    settings={"task": "Toy"},
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default dataset, which tests only read."""
    return write_dataset(tmp_path_factory.mktemp("datasets") / "toy")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without cameras."""
    return write_dataset(tmp_path_factory.mktemp("datasets") / "numbers", without=(FRONT, WRIST))


def options(**choice: Any) -> LeRobotOptions:
    return LeRobotOptions(choice=Choice(**choice))


def brightness(reader: ReplayReader, camera: str) -> list[float]:
    """The mean of the lower half of every frame, which `lerobot_files.shade` chose."""
    pixels = reader.frames.pixels(camera, range(reader.rows)).float()
    return pixels[:, :, HEIGHT // 2 + 2 :].mean(dim=(1, 2, 3)).tolist()


def test_numbers_and_frames_arrive_at_their_rows(dataset: Path, tmp_path: Path) -> None:
    report = import_lerobot(dataset, tmp_path, "toy")
    reader = ReplayReader(tmp_path)
    assert (report.episodes, report.steps, report.successes) == (3, ROWS, 1)
    assert read_report(tmp_path / "toy") == report
    spec = reader.spec
    assert [each.name for each in spec.observation] == [
        "observation.state", "observation.environment_state", FRONT, WRIST,
    ]  # fmt: skip
    assert spec.observation[0].names == ("x", "y")
    assert spec.control_hz == FPS
    counted = np.arange(ROWS, dtype=np.float32)
    np.testing.assert_array_equal(reader.state[:, 0], counted)
    np.testing.assert_array_equal(reader.state[:, 1], -counted)
    np.testing.assert_array_equal(reader.state[:, 2], np.repeat([0, 1, 2], LENGTHS))
    np.testing.assert_array_equal(reader.action[:, 0], np.arange(ROWS, dtype=np.float32) / np.float32(100))
    assert reader.tasks == list(TASKS)
    assert [len(reader.episode(e).action) for e in range(3)] == list(LENGTHS)
    shades = [made.shade(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]
    for camera in (FRONT, WRIST):
        np.testing.assert_allclose(brightness(reader, camera), shades, atol=CLOSE)
    assert verify(tmp_path).ok


@pytest.mark.parametrize("file_of", [(0, 1, 1), (1, 0, 1)], ids=["in order", "back and forth"])
def test_episodes_in_several_files_keep_their_frames(tmp_path: Path, file_of: tuple[int, ...]) -> None:
    root = write_dataset(tmp_path / "toy", file_of=file_of)
    import_lerobot(root, tmp_path / "replay", "toy")
    reader = ReplayReader(tmp_path / "replay")
    np.testing.assert_array_equal(reader.state[:, 0], np.arange(ROWS))
    shades = [made.shade(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]
    for camera in (FRONT, WRIST):
        np.testing.assert_allclose(brightness(reader, camera), shades, atol=CLOSE)


def test_going_back_in_a_video_starts_it_again(dataset: Path) -> None:
    path = dataset / f"videos/{FRONT}/chunk-000/file-000.mp4"
    cursor, seen = VideoCursor(dataset, FPS), list[float]()
    for first in (12, 0, 5):
        frames = cursor.frames(VideoPlace(path, first / FPS), 2, "toy")
        seen += [float(pixels[:, HEIGHT // 2 + 2 :].mean()) for pixels in frames]
    cursor.close()
    wanted = [made.shade(e, t) for e, t in ((2, 0), (2, 1), (0, 0), (0, 1), (1, 0), (1, 1))]
    np.testing.assert_allclose(seen, wanted, atol=CLOSE)


def test_images_are_kept_byte_for_byte(dataset: Path, tmp_path: Path) -> None:
    import_lerobot(dataset, tmp_path, "toy")
    stored = ReplayReader(tmp_path).frames.encoded(WRIST, range(ROWS))
    assert stored == [each["bytes"] for each in made.columns()[WRIST]]


def test_endings_and_rewards(numbers: Path, tmp_path: Path) -> None:
    report = import_lerobot(numbers, tmp_path, "toy")
    reader = ReplayReader(tmp_path)
    outcomes = [reader.episode(e).outcome for e in range(3)]
    assert outcomes == [Outcome.SUCCESS, Outcome.FAILURE, Outcome.FAILURE]
    ends = np.cumsum(LENGTHS) - 1
    assert np.flatnonzero(reader.reward).tolist() == [ends[0]]
    # next.done alone does not say that a failure is terminal.
    assert np.flatnonzero(reader.column("terminated")).tolist() == [ends[0]]
    assert np.flatnonzero(reader.column("truncated")).tolist() == ends[1:].tolist()
    assert (reader.column("source") == Source.HUMAN).all()
    np.testing.assert_array_equal(
        reader.integers[: LENGTHS[0], INT["stamp_ns"]], np.arange(LENGTHS[0]) * 50_000_000
    )
    assert any("2 of 3 episodes never succeed" in each for each in report.warnings)


def test_truncated_tells_a_terminal_failure(tmp_path: Path) -> None:
    described = {**made.features(), "next.truncated": {"dtype": "bool", "shape": [1], "names": None}}
    ends = np.cumsum(LENGTHS) - 1
    cut = [row == ends[2] for row in range(ROWS)]
    root = write_dataset(tmp_path / "toy", without=(FRONT, WRIST))
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] = {name: each for name, each in described.items() if name not in (FRONT, WRIST)}
    (root / "meta/info.json").write_text(json.dumps(info))
    values = {name: each for name, each in made.columns().items() if name != WRIST}
    made.write_parquet(root / "data/chunk-000/file-000.parquet", {**values, "next.truncated": cut})
    import_lerobot(root, tmp_path / "replay", "toy")
    reader = ReplayReader(tmp_path / "replay")
    assert np.flatnonzero(reader.column("terminated")).tolist() == ends[:2].tolist()
    assert np.flatnonzero(reader.column("truncated")).tolist() == [ends[2]]


def test_without_success_the_outcome_is_unknown(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "toy", without=(FRONT, WRIST, "next.success", "next.reward"))
    report = import_lerobot(root, tmp_path / "replay", "toy")
    reader = ReplayReader(tmp_path / "replay")
    assert {reader.episode(e).outcome for e in range(3)} == {Outcome.UNKNOWN}
    assert (reader.reward == 0).all()
    assert any("does not say whether its 3 episodes succeed" in each for each in report.warnings)


def test_a_reward_under_another_name_is_renamed(numbers: Path, tmp_path: Path) -> None:
    rename = {"observation.environment_state": "next.reward", "next.reward": "unused"}
    import_lerobot(numbers, tmp_path, "toy", options(rename=rename))
    np.testing.assert_array_equal(ReplayReader(tmp_path).reward, np.repeat([0, 1, 2], LENGTHS))


def test_done_inside_an_episode_is_warned_of(tmp_path: Path) -> None:
    done = [row == 2 for row in range(ROWS)]
    root = write_dataset(tmp_path / "toy", without=(FRONT, WRIST), change={"next.done": done})
    report = import_lerobot(root, tmp_path / "replay", "toy")
    assert any("next.done is set before the last step of 1 episodes" in each for each in report.warnings)


def test_bounds_are_the_extremes_and_a_little_more(numbers: Path, tmp_path: Path) -> None:
    report = import_lerobot(numbers, tmp_path, "toy")
    action = ReplayReader(tmp_path).spec.action
    most = (ROWS - 1) / 100
    assert action.names == ("push", "grip")
    np.testing.assert_allclose(action.low, (-0.01 * most, 0.0))
    np.testing.assert_allclose(action.high, (1.01 * most, 2.0))
    assert any("grip never changes" in each for each in report.warnings)


def test_cameras_are_chosen_resized_and_renamed(dataset: Path, tmp_path: Path) -> None:
    chosen = options(cameras=("top",), image_size=(12, 16), rename={FRONT: "observation.images.top"})
    report = import_lerobot(dataset, tmp_path, "toy", chosen)
    reader = ReplayReader(tmp_path)
    assert [each.name for each in reader.frames.features] == ["observation.images.top"]
    pixels = reader.frames.pixels("observation.images.top", range(ROWS))
    assert pixels.shape == (ROWS, 3, 12, 16)
    shades = [made.shade(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]
    np.testing.assert_allclose(pixels[:, :, 8:].float().mean(dim=(1, 2, 3)), shades, atol=CLOSE)
    assert Dropped(f"feature {WRIST}", ROWS, "a camera that was not chosen") in report.dropped


def test_images_of_another_size_are_resized(dataset: Path, tmp_path: Path) -> None:
    import_lerobot(dataset, tmp_path, "toy", options(cameras=("wrist",), image_size=(12, 16)))
    assert ReplayReader(tmp_path).frames.pixels(WRIST, [0]).shape == (1, 3, 12, 16)


def test_a_target_gives_order_bounds_and_what_is_not_stated(numbers: Path, tmp_path: Path) -> None:
    import_lerobot(numbers, tmp_path, "toy", options(target=TARGET))
    reader = ReplayReader(tmp_path, spec=TARGET)
    np.testing.assert_array_equal(reader.state[:, 0], np.repeat([0, 1, 2], LENGTHS))
    np.testing.assert_array_equal(reader.state[:, 1], np.arange(ROWS))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (replace(TARGET, control_hz=10.0), "control_hz: 20.0 against 10.0"),
        (
            replace(TARGET, action=ActionSpec(("push", "turn"), (-1.0, 0.0), (1.0, 2.0))),
            r"action.names: \('push', 'grip'\) against \('push', 'turn'\)",
        ),
        (
            replace(TARGET, observation=(*TARGET.observation, Feature("observation.images.left", (3, 8, 8), "uint8"))),
            "observation.images.left: 'missing' against 'present'",
        ),
        (
            replace(TARGET, observation=(Feature("observation.state", (2,), names=("y", "x")),)),
            r"observation.state.names: \('x', 'y'\) against \('y', 'x'\)",
        ),
    ],
)  # fmt: skip
def test_differences_to_a_target_are_listed(
    numbers: Path, tmp_path: Path, target: Spec, message: str
) -> None:
    with pytest.raises(SpecMismatch, match=message):
        import_lerobot(numbers, tmp_path / "replay", "toy", options(target=target))
    assert not (tmp_path / "replay").exists()


def test_actions_outside_the_targets_bounds_need_a_rule(numbers: Path, tmp_path: Path) -> None:
    narrow = replace(TARGET, action=replace(TARGET.action, high=(0.1, 2.0)))
    with pytest.raises(
        DataError, match=r"1 of 2 action dimensions leave .*\n  push  0 .. 0.15, allowed -1 .. 0.1"
    ):
        import_lerobot(numbers, tmp_path, "toy", options(target=narrow))
    import_lerobot(numbers, tmp_path, "toy", replace(options(target=narrow), actions="clip"))
    assert ReplayReader(tmp_path).action[:, 0].max() == np.float32(0.1)


def test_limit_and_duplicates(numbers: Path, tmp_path: Path) -> None:
    report = import_lerobot(numbers, tmp_path, "one", LeRobotOptions(limit=1))
    assert (report.episodes, report.steps) == (1, LENGTHS[0])
    assert Dropped("episodes", 2, "beyond the limit of 1") in report.dropped
    with pytest.raises(ReplayError, match=r"already in replay .*stream 'one' holds 1 of these"):
        import_lerobot(numbers, tmp_path, "two")
    with pytest.raises(ReplayError, match=r"stream 'one' already exists .*replace it"):
        import_lerobot(numbers, tmp_path, "one")
    import_lerobot(numbers, tmp_path, "one", LeRobotOptions(replace=True))
    assert ReplayReader(tmp_path).episodes == 3
    import_lerobot(numbers, tmp_path, "two", LeRobotOptions(allow_duplicate=True))
    assert ReplayReader(tmp_path).episodes == 6


def test_a_short_video_is_refused_or_its_episodes_dropped(tmp_path: Path) -> None:
    # The second episode has frames 5 to 11; the video ends after frame 8.
    root = write_dataset(tmp_path / "toy", video_frames=9)
    with pytest.raises(
        DataError, match=r"toy, episode 1: .*file-000.mp4 shows 4 of its 7 frames, none at 0.450 s.*--salvage"
    ):
        import_lerobot(root, tmp_path / "replay", "toy")
    assert not (tmp_path / "replay").exists()
    report = import_lerobot(root, tmp_path / "replay", "toy", LeRobotOptions(salvage=True))
    assert report.demonstrations == ("episode 0",)
    assert Dropped("episodes", 2, "their videos lack frames (11 steps; --salvage)") in report.dropped
    assert ReplayReader(tmp_path / "replay").rows == LENGTHS[0]


def test_a_video_without_a_whole_episode_leaves_nothing(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "toy", video_frames=2)
    with pytest.raises(DataError, match="no episode has all its frames"):
        import_lerobot(root, tmp_path / "replay", "toy", LeRobotOptions(salvage=True))
    assert not (tmp_path / "replay").exists()


def not_finite() -> list[list[float]]:
    actions = made.columns()["action"]
    actions[LENGTHS[0] + 2] = [float("nan"), 1.0]
    return actions


def out_of_order() -> list[int]:
    numbers = made.columns()["frame_index"]
    numbers[1], numbers[2] = numbers[2], numbers[1]
    return numbers


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"codebase_version": "v2.1"}, UsageError, r"is a LeRobotDataset v2.1; .*convert_dataset_v21_to_v30"),
        ({"without": ("action",)}, DataError, "no feature 'action'.*--feature NAME=action"),
        ({"change": {"action": not_finite()}}, DataError, r"bad, episode 1, step 2: action\[0\] \(push\) is nan"),
        ({"change": {"frame_index": out_of_order()}}, DataError, "row 1 of episode 0 has frame_index 2"),
        ({"change": {"episode_index": [0] * ROWS}}, DataError, "holds 16 rows of episode 0, .* says 5"),
        ({"change": {"task_index": [7] * ROWS}}, DataError, "task 7 is not in meta/tasks.parquet"),
        ({"change": {"action": [[0.0]] * ROWS}}, DataError, r"min and max of 'action'|column action has 16 values"),
        ({"data_path": "../{chunk_index}/{file_index}"}, DataError, "leaves the dataset"),
        ({"fps": "fast"}, DataError, "info.json cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    without = (FRONT, WRIST, *arguments.pop("without", ()))
    root = write_dataset(tmp_path / "bad", without=without, **arguments)
    with pytest.raises(error, match=message):
        import_lerobot(root, tmp_path / "replay", "bad")
    assert not (tmp_path / "replay").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("path", "damage", "message"),
    [
        ("meta/tasks.parquet", Path.unlink, "toy/meta/tasks.parquet is missing"),
        ("meta/episodes", shutil.rmtree, "no file in meta/episodes"),
        ("meta/stats.json", Path.unlink, "meta/stats.json has no min and max of 'action'"),
        ("data/chunk-000/file-000.parquet", Path.unlink, "data/chunk-000/file-000.parquet is missing"),
        ("data/chunk-000/file-000.parquet", cut, "data/chunk-000/file-000.parquet cannot be read: .*damaged"),
        (f"videos/{FRONT}/chunk-000/file-000.mp4", Path.unlink, "episode 0: .*file-000.mp4 is missing"),
        (f"videos/{FRONT}/chunk-000/file-000.mp4", cut, "file-000.mp4 is no video that can be opened"),
    ],
)
def test_missing_and_damaged_files_are_named(
    dataset: Path, tmp_path: Path, path: str, damage: Callable[[Path], None], message: str
) -> None:
    root = shutil.copytree(dataset, tmp_path / "toy")
    damage(root / path)
    with pytest.raises(DataError, match=message):
        import_lerobot(root, tmp_path / "replay", "toy")
    assert not (tmp_path / "replay").exists()


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no directory"):
        import_lerobot(tmp_path / "nothing", tmp_path / "replay", "toy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no LeRobotDataset: it has no meta/info.json"):
        import_lerobot(tmp_path / "empty", tmp_path / "replay", "toy")


def test_wrong_choices_name_what_there_is(dataset: Path, tmp_path: Path) -> None:
    for choice, message in (
        ({"cameras": ("left",)}, f"no camera left; it has {FRONT}, {WRIST}"),
        ({"rename": {"state": "observation.state"}}, "no feature state to rename; it has observation"),
        ({"rename": {FRONT: WRIST}}, "two features would have one name"),
    ):
        with pytest.raises(UsageError, match=message):
            import_lerobot(dataset, tmp_path, "toy", options(**choice))
    with pytest.raises(DataError, match=r"'image' needs a name .*--feature image=observation.images.image"):
        import_lerobot(dataset, tmp_path, "toy", options(rename={FRONT: "image"}))


def test_an_image_that_is_not_as_stated_is_named(dataset: Path, tmp_path: Path) -> None:
    frames = made.columns()[WRIST]
    small = {"bytes": made.png(np.zeros((4, 4, 3), np.uint8)), "path": None}
    for bad, message in (
        (small, r"episode 1, step 1: observation.images.wrist is 4 x 4 pixels, .*24 x 32; .*--image-size"),
        ({"bytes": b"GIF89a", "path": None}, "episode 1, step 1: .*neither a JPEG nor a PNG"),
        ({"bytes": None, "path": "a.png"}, "episode 1, step 1 has no bytes of observation.images.wrist"),
    ):
        changed = [*frames[: LENGTHS[0] + 1], bad, *frames[LENGTHS[0] + 2 :]]
        root = write_dataset(tmp_path / "toy", without=(FRONT,), change={WRIST: changed})
        with pytest.raises(DataError, match=message):
            import_lerobot(root, tmp_path / "replay", "toy")
        shutil.rmtree(root)


def test_a_damaged_sidecar_is_named(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "toy", without=(FRONT, WRIST))
    (root / "meta/flowrl.json").write_text("{}")
    with pytest.raises(DataError, match=r"toy/meta/flowrl.json: 'spec'; remove the file"):
        import_lerobot(root, tmp_path / "replay", "toy")


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["a", "b"], ("a", "b")),
        ({"motors": ["a", "b"]}, ("a", "b")),
        ({"left": ["a"], "right": ["b"]}, ("a", "b")),
        ({"b": 1, "a": 0}, ("a", "b")),
        (["a"], ("action_0", "action_1")),
        (None, ("action_0", "action_1")),
    ],
)
def test_every_way_of_naming_dimensions_is_read(tmp_path: Path, names: Any, read: tuple[str, ...]) -> None:
    described = {name: each for name, each in made.features().items() if name not in (FRONT, WRIST)}
    described["action"]["names"] = names
    root = write_dataset(tmp_path / "toy", without=(FRONT, WRIST), features=described)
    import_lerobot(root, tmp_path / "replay", "toy")
    assert ReplayReader(tmp_path / "replay").spec.action.names == read


def test_a_foreign_feature_named_like_ours_is_dropped(tmp_path: Path) -> None:
    described = {name: each for name, each in made.features().items() if name not in (FRONT, WRIST)}
    described["source"] = {"dtype": "string", "shape": [1], "names": None}
    root = write_dataset(tmp_path / "toy", without=(FRONT, WRIST), features=described)
    report = import_lerobot(root, tmp_path / "replay", "toy")
    assert Dropped("feature source", ROWS, "a stream has no column for it") in report.dropped
    assert (ReplayReader(tmp_path / "replay").column("source") == Source.HUMAN).all()


@pytest.mark.parametrize("package", ["pyarrow", "av"])
def test_a_missing_package_names_its_extra(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    real = importlib.import_module

    def without(name: str) -> Any:
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name)

    monkeypatch.setattr("flowrl.replay.extras.import_module", without)
    with pytest.raises(MissingExtra, match=rf"{package}.*flowrl\[data\]"):
        import_lerobot(dataset, tmp_path / "replay", "toy")
    assert not (tmp_path / "replay").exists()


def test_the_command_imports_a_directory(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.run(
        dataset,
        tmp_path / "replay",
        cameras=["front"],
        image_size=(12, 16),
        rename=["observation.environment_state=observation.object"],
    )
    said = capsys.readouterr().out
    assert "LeRobotDataset v3.0" in said
    assert "stream 'toy' is in" in said
    reader = ReplayReader(tmp_path / "replay")
    assert [each.shape for each in reader.frames.features] == [(3, 12, 16)]
    assert [each.name for each in reader.spec.state_features] == ["observation.state", "observation.object"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rename": ["a"]}, "--feature 'a': expected KEY=NAME"),
    ],
)
def test_malformed_options_are_named(
    dataset: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        command.run(dataset, tmp_path / "replay", **options)
