"""A replay becomes a LeRobotDataset that LeRobot opens, and comes back equal. Loading LeRobot takes seconds."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from flowrl.cli.app import build
from flowrl.errors import DataError, MissingExtra, ReplayError, UsageError
from flowrl.replay.exporters import lerobot as exporter
from flowrl.replay.exporters.lerobot import ExportOptions, export_lerobot
from flowrl.replay.frames import FrameCodec
from flowrl.replay.importers.lerobot import LeRobotOptions, import_lerobot
from flowrl.replay.importers.lerobot_features import Choice
from flowrl.replay.importers.report import Dropped
from flowrl.replay.lock import WriterLock
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, INT, Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.verify import verify
from flowrl.replay.writer import StreamWriter
from flowrl.spec import ActionSpec, Feature, Spec
from tests.replay.lerobot_files import HEIGHT, WIDTH, frame, shade
from tests.replay.streams import ONLY_BY_HAND

pytest.importorskip("datasets", reason="comes with lerobot[dataset]")
lerobot_dataset = pytest.importorskip(
    "lerobot.datasets.lerobot_dataset", reason="comes with lerobot[dataset]"
)

CAMERA = "observation.images.front"
SPEC = Spec(
    observation=(
        Feature("observation.environment_state", (1,), names=("gap",), unit="m"),
        Feature("observation.state", (2,), unit="m"),
        Feature("observation.grid", (2, 2)),
        Feature(CAMERA, (3, HEIGHT, WIDTH), "uint8"),
    ),
    action=ActionSpec(("push", "grip"), (-1.0, -2.0), (1.0, 2.0), "m"),
    control_hz=20.0,
    settings={"task": "Toy", "control_decimation": 1},
)
LENGTHS = (5, 6, 4, 3, 3)
# As in test_lerobot_import: LeRobot's AV1 at crf 30 is coarser than H.264 there.
CLOSE = 8


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach a network fails the test."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def observation(episode: int, step: int) -> dict[str, NDArray[np.generic]]:
    value = 10 * episode + step
    return {
        "observation.environment_state": np.array([value / 3], np.float32),
        "observation.state": np.array([value, 1 / (1 + value)], np.float32),
        "observation.grid": np.arange(4, dtype=np.float32).reshape(2, 2) + value,
        CAMERA: frame(episode % 3, step).transpose(2, 0, 1),
    }


def write_replay(replay: Path) -> None:
    """A stream of policy episodes, one with a takeover, and a stream of a demonstration.

    Their outcomes are success, failure (terminal), timeout with the takeover, discarded; unknown.
    """
    endings = (
        (Outcome.SUCCESS, OutcomeBy.HUMAN, True, False),
        (Outcome.FAILURE, OutcomeBy.ENVIRONMENT, True, False),
        (Outcome.TIMEOUT, OutcomeBy.ENVIRONMENT, False, True),
        (Outcome.DISCARDED, OutcomeBy.HUMAN, False, False),
        (Outcome.UNKNOWN, OutcomeBy.NONE, False, False),
    )
    codec = FrameCodec("png")
    policy = StreamWriter.create(replay, "policy", SPEC, Kind.POLICY, ONLY_BY_HAND, codec)
    shown = StreamWriter.create(replay, "shown", SPEC, Kind.DEMONSTRATION, ONLY_BY_HAND, codec)
    for episode, (outcome, by, terminated, truncated) in enumerate(endings):
        writer = shown if episode == 4 else policy
        writer.begin_episode(task=f"task {episode % 2}")
        for step in range(LENGTHS[episode]):
            last = step == LENGTHS[episode] - 1
            taken = episode == 2 and 1 <= step < 3
            action = np.array([step / 7, -1 / (1 + step)], np.float32)
            human = Source.HUMAN if taken or writer is shown else Source.POLICY
            writer.append(
                Step(
                    observation(episode, step),
                    action,
                    step / 10,
                    terminated=terminated and last,
                    truncated=truncated and last,
                    policy_action=action + 1 if taken else None,
                    source=human,
                    intervention_id=0 if taken else -1,
                )
            )
        final = observation(episode, LENGTHS[episode]) if episode != 1 else None
        writer.close_episode(outcome, by, final)
    policy.close()
    shown.close()


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replays") / "toy"
    write_replay(path)
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["images", "video"])
def exported(
    replay: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, exporter.ExportReport, bool]:
    to = tmp_path_factory.mktemp("datasets") / "toy"
    return to, export_lerobot(replay, to, ExportOptions(video=request.param)), request.param


def kept(reader: ReplayReader) -> list[int]:
    """The episodes that are exported."""
    return [e for e in range(reader.episodes) if reader.episode(e).outcome is not Outcome.DISCARDED]


def test_lerobot_opens_what_was_exported(
    replay: Path, exported: tuple[Path, exporter.ExportReport, bool]
) -> None:
    to, report, video = exported
    reader = ReplayReader(replay)
    dataset = lerobot_dataset.LeRobotDataset(report.repo_id, root=to, video_backend="pyav")
    steps = sum(LENGTHS) - LENGTHS[3]
    assert (report.episodes, report.steps, report.successes) == (4, steps, 1)
    assert (len(dataset), dataset.num_episodes, dataset.fps) == (steps, 4, 20)
    assert report.dropped == (
        Dropped("episodes", 1, "a person discarded them"),
        Dropped("final observations", 3, "LeRobot has one observation per action"),
    )
    number = 0
    for position, index in enumerate(kept(reader)):
        episode = reader.episode(index)
        for step in range(len(episode.action)):
            item = dataset[number]
            number += 1
            assert (int(item["episode_index"]), item["task"]) == (position, episode.task)
            state = [item["observation.environment_state"].reshape(1), item["observation.state"]]
            state.append(item["observation.grid"].reshape(4))
            np.testing.assert_array_equal(np.concatenate(state), episode.state[step])
            np.testing.assert_array_equal(item["action"], episode.action[step])
            assert item["next.reward"] == episode.reward[step]
            assert int(item["source"]) == episode.integers[step, INT["source"]]
            assert int(item["intervention_id"]) == episode.integers[step, INT["intervention_id"]]
            last = step == len(episode.action) - 1
            assert bool(item["next.success"]) == (last and episode.outcome is Outcome.SUCCESS)
            wanted = reader.frames.pixels(CAMERA, [episode.row + step])[0].numpy()
            seen = item[CAMERA].numpy() * 255
            np.testing.assert_allclose(seen, wanted, atol=1e-4 if not video else 100)
            lower = slice(HEIGHT // 2 + 2, None)
            assert abs(seen[:, lower].mean() - wanted[:, lower].mean()) < (CLOSE if video else 1e-4)


def test_an_export_comes_back_equal(
    replay: Path, exported: tuple[Path, exporter.ExportReport, bool], tmp_path: Path
) -> None:
    to, report, video = exported
    again = import_lerobot(to, tmp_path, "back")
    assert (again.episodes, again.steps, again.warnings) == (report.episodes, report.steps, ())
    before, after = ReplayReader(replay), ReplayReader(tmp_path)
    assert after.spec == before.spec
    assert verify(tmp_path).ok
    columns = [INT[name] for name in ("source", "intervention_id", "terminated", "truncated", "step")]
    said = [EPISODE[name] for name in ("length", "outcome", "outcome_by")]
    for position, index in enumerate(kept(before)):
        mine, theirs = before.episode(index), after.episode(position)
        for name in ("state", "action", "policy_action", "reward"):
            np.testing.assert_array_equal(getattr(theirs, name), getattr(mine, name))
        np.testing.assert_array_equal(theirs.integers[:, columns], mine.integers[:, columns])
        np.testing.assert_array_equal(after.table[position, said], before.table[index, said])
        assert (theirs.task, theirs.final) == (mine.task, None)
        rows = range(len(mine.action))
        wanted = before.frames.pixels(CAMERA, [mine.row + row for row in rows]).numpy().astype(float)
        seen = after.frames.pixels(CAMERA, [theirs.row + row for row in rows]).numpy()
        if not video:
            np.testing.assert_array_equal(seen, wanted)
        lower = (slice(None), slice(None), slice(HEIGHT // 2 + 2, None))
        np.testing.assert_allclose(
            seen[lower].mean(axis=(1, 2, 3)), wanted[lower].mean(axis=(1, 2, 3)), atol=CLOSE
        )
    assert not after.table[:, EPISODE["has_final"]].any()


def test_an_export_can_be_imported_for_the_spec_it_came_from(
    exported: tuple[Path, exporter.ExportReport, bool], tmp_path: Path
) -> None:
    (exported[0] / "meta/flowrl.json").rename(exported[0] / "meta/elsewhere")
    try:
        import_lerobot(exported[0], tmp_path, "back", LeRobotOptions(choice=Choice(target=SPEC)))
    finally:
        (exported[0] / "meta/elsewhere").rename(exported[0] / "meta/flowrl.json")
    assert ReplayReader(tmp_path, spec=SPEC).episodes == 4


def test_a_dataset_that_lerobot_wrote_is_imported_exactly(tmp_path: Path) -> None:
    camera = {"shape": (HEIGHT, WIDTH, 3), "names": ["height", "width", "channels"]}
    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "observation.images.video": {**camera, "dtype": "video"},
        "observation.images.image": {**camera, "dtype": "image"},
        "action": {"dtype": "float32", "shape": (1,), "names": ["push"]},
    }
    dataset = lerobot_dataset.LeRobotDataset.create(
        "local/own", 20, features, root=tmp_path / "own", use_videos=True, video_files_size_in_mb=1,
        data_files_size_in_mb=1,
    )  # fmt: skip
    lengths = (4, 6, 5)
    with exporter._quiet():
        for episode, length in enumerate(lengths):
            for step in range(length):
                value = np.array([10 * episode + step, -step], np.float32)
                seen = {name: frame(episode, step) for name in features if "images" in name}
                task = f"task {episode % 2}"
                dataset.add_frame(
                    {"observation.state": value, **seen, "action": value[:1] / 100, "task": task}
                )
            dataset.save_episode(parallel_encoding=False)
    dataset.finalize()
    report = import_lerobot(tmp_path / "own", tmp_path / "replay", "own")
    assert (report.episodes, report.steps) == (3, sum(lengths))
    reader = ReplayReader(tmp_path / "replay")
    pairs = [(e, t) for e, length in enumerate(lengths) for t in range(length)]
    wanted = np.array([(10 * e + t, -t) for e, t in pairs], np.float32)
    np.testing.assert_array_equal(reader.state, wanted)
    np.testing.assert_array_equal(reader.action, wanted[:, :1] / 100)
    assert reader.tasks == ["task 0", "task 1", "task 0"]
    shades = [shade(e, t) for e, t in pairs]
    for camera in ("observation.images.video", "observation.images.image"):
        pixels = reader.frames.pixels(camera, range(reader.rows)).float()
        means = pixels[:, :, HEIGHT // 2 + 2 :].mean(dim=(1, 2, 3))
        np.testing.assert_allclose(means, shades, atol=CLOSE)
    # The image is lossless and comes back so; the video is decoded as LeRobot decodes it.
    opened = lerobot_dataset.LeRobotDataset("local/own", root=tmp_path / "own", video_backend="pyav")
    for row in range(len(opened)):
        item = opened[row]
        exact = (item["observation.images.image"] * 255).round().byte()
        assert (reader.frames.pixels("observation.images.image", [row])[0] == exact).all()
        theirs = item["observation.images.video"] * 255
        mine = reader.frames.pixels("observation.images.video", [row])[0].float()
        assert float((mine - theirs).abs().mean()) < 2.0  # JPEG at quality 95


def test_streams_and_successes_are_chosen(replay: Path, tmp_path: Path) -> None:
    report = export_lerobot(replay, tmp_path / "one", ExportOptions(["policy"], successes_only=True))
    assert (report.episodes, report.steps) == (1, LENGTHS[0])
    assert Dropped("episodes", 2, "they did not succeed (--successes-only)") in report.dropped
    assert json.loads((tmp_path / "one/meta/info.json").read_text())["total_episodes"] == 1
    with pytest.raises(UsageError, match=r"no episode to export: 1 episodes: they did not succeed"):
        export_lerobot(replay, tmp_path / "two", ExportOptions(["shown"], successes_only=True))
    assert [each.name for each in tmp_path.iterdir()] == ["one"]


def test_an_existing_target_is_refused(replay: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists already; export to another directory"):
        export_lerobot(replay, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_export_that_fails_leaves_nothing(replay: Path, tmp_path: Path) -> None:
    def fail(done: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_lerobot(replay, tmp_path / "toy", on_episode=fail)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_export_left_is_removed_and_a_live_one_respected(replay: Path, tmp_path: Path) -> None:
    left = tmp_path / ".export-toy/toy/meta"
    left.mkdir(parents=True)
    lock = WriterLock(tmp_path / ".export-toy")
    with pytest.raises(ReplayError, match="another process is exporting"):
        export_lerobot(replay, tmp_path / "toy", ExportOptions(successes_only=True))
    lock.release()
    export_lerobot(replay, tmp_path / "toy", ExportOptions(successes_only=True))
    assert [each.name for each in tmp_path.iterdir()] == ["toy"]


def test_a_broken_control_rate_is_refused(tmp_path: Path) -> None:
    spec = replace(SPEC, observation=SPEC.observation[:1], control_hz=12.5)
    with StreamWriter.create(tmp_path / "replay", "w0", spec, Kind.POLICY) as writer:
        writer.begin_episode()
        writer.append(Step(np.zeros(1, np.float32), np.zeros(2, np.float32), 0.0))
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE)
    with pytest.raises(DataError, match=r"control rate is 12.5 Hz; LeRobot stores whole frames"):
        export_lerobot(tmp_path / "replay", tmp_path / "toy")


def test_without_lerobot_the_extra_is_named(
    replay: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", None)
    with pytest.raises(MissingExtra, match=r"lerobot\[dataset\].*flowrl\[vla\]"):
        export_lerobot(replay, tmp_path / "toy")
    assert not list(tmp_path.iterdir())


def test_the_command_exports(replay: Path, tmp_path: Path) -> None:
    arguments = [
        "export",
        str(replay),
        "--to",
        str(tmp_path / "toy"),
        "--stream",
        "policy",
        "--repo-id",
        "me/toy",
    ]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    assert "final observations" in result.output
    assert "LeRobotDataset('me/toy'" in result.output
    assert import_lerobot(tmp_path / "toy", tmp_path / "back", "toy").episodes == 3
    assert "SVT_LOG" not in os.environ
