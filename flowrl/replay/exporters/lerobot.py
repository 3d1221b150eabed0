"""Export streams of a replay as a LeRobotDataset v3, by LeRobot's own writer. docs/export.md has the features.

The writer comes from LeRobot so that LeRobot opens what it wrote; this is the one module outside
`flowrl.policies.lerobot` that imports it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.errors import DataError, MissingExtra, ReplayError, UsageError
from flowrl.replay.extras import data_module
from flowrl.replay.importers.episodes import DemonstrationDone
from flowrl.replay.importers.lerobot_features import DONE, FLOWRL_DTYPES, REWARD, SUCCESS, TRUNCATED
from flowrl.replay.importers.lerobot_files import SIDECAR
from flowrl.replay.importers.report import Dropped
from flowrl.replay.lock import LOCK_FILE, WriterLock
from flowrl.replay.reader import Episode, ReplayReader
from flowrl.replay.schema import EPISODE, INT, Array, Outcome
from flowrl.spec import Feature, Spec

# Decoded frames held in memory for each camera.
_BLOCK = 64


@dataclass(frozen=True)
class ExportOptions:
    """What to export, and how.

    Attributes:
        streams: the streams; by default all.
        successes_only: leave out episodes that did not succeed.
        video: store frames as videos, which lose a little, instead of PNG images, which do not.
        repo_id: the dataset's name on a hub, ``owner/name``; by default ``local/<directory>``.
    """

    streams: Sequence[str] | None = None
    successes_only: bool = False
    video: bool = False
    repo_id: str = ""


@dataclass(frozen=True)
class ExportReport:
    """What an export did; ``dropped`` is what the dataset does not hold."""

    path: Path
    repo_id: str
    episodes: int
    steps: int
    successes: int
    dropped: tuple[Dropped, ...]
    seconds: float


def export_lerobot(
    replay: str | Path,
    to: str | Path,
    options: ExportOptions | None = None,
    on_episode: Callable[[DemonstrationDone], None] = lambda done: None,
) -> ExportReport:
    """Write the directory ``to``, whole or not at all. Nothing is sent anywhere.

    Raises:
        UsageError: ``to`` exists, or no episode is left to export.
        DataError: the control rate is not a whole number, which LeRobot demands.
        ReplayError: the replay or a stream is missing or damaged, or another process exports to ``to``.
        MissingExtra: LeRobot or a package that its datasets need is not installed.
    """
    started, options, to = time.perf_counter(), options or ExportOptions(), Path(to)
    if to.exists():
        raise UsageError(f"{str(to)!r} exists already; export to another directory, or move it away")
    reader = ReplayReader(replay, options.streams)
    chosen, dropped = _choose(reader, options)
    repo_id = options.repo_id or f"local/{to.name}"
    with _aside(to) as aside:
        dataset = _create(reader.spec, aside, repo_id, options.video)
        try:
            for position, index in enumerate(chosen, start=1):
                _add(dataset, reader, index)
                on_episode(_done(reader.episode(index), position, len(chosen)))
        finally:
            dataset.finalize()
        sidecar = {"format": 1, "spec": reader.spec.to_json()}
        (aside / SIDECAR).write_text(json.dumps(sidecar, indent=2) + "\n")
    lengths, outcomes = (reader.table[chosen, EPISODE[name]] for name in ("length", "outcome"))
    return ExportReport(
        to,
        repo_id,
        len(chosen),
        int(lengths.sum()),
        int((outcomes == Outcome.SUCCESS).sum()),
        dropped,
        time.perf_counter() - started,
    )


def _choose(reader: ReplayReader, options: ExportOptions) -> tuple[list[int], tuple[Dropped, ...]]:
    """The episodes to export, and what is left out."""
    outcomes = reader.table[:, EPISODE["outcome"]] if reader.episodes else np.empty(0, np.int64)
    kept = outcomes != Outcome.DISCARDED
    dropped = [("episodes", int((~kept).sum()), "a person discarded them")]
    if options.successes_only:
        failed = kept & (outcomes != Outcome.SUCCESS)
        dropped.append(("episodes", int(failed.sum()), "they did not succeed (--successes-only)"))
        kept &= ~failed
    chosen = np.flatnonzero(kept)
    if not len(chosen):
        raise UsageError(f"replay {str(reader.path)!r} has no episode to export: {_listed(dropped)}")
    finals = int(reader.table[chosen, EPISODE["has_final"]].sum())
    dropped.append(("final observations", finals, "LeRobot has one observation per action"))
    return chosen.tolist(), tuple(Dropped(*each) for each in dropped if each[1])


def _listed(dropped: list[tuple[str, int, str]]) -> str:
    return "; ".join(f"{count} {what}: {why}" for what, count, why in dropped if count) or "it holds none"


def _create(spec: Spec, root: Path, repo_id: str, video: bool) -> Any:
    """LeRobot's writer for a dataset in ``root``, which must not exist."""
    if spec.control_hz != round(spec.control_hz):
        raise DataError(
            f"the control rate is {spec.control_hz:g} Hz; LeRobot stores whole frames per second, so it would be "
            "wrong there"
        )
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise MissingExtra("lerobot[dataset]", "vla") from error
    # The backend is for reading, which nobody does here; LeRobot looks for another one and warns.
    return LeRobotDataset.create(
        repo_id,
        round(spec.control_hz),
        _features(spec, video),
        root=root,
        use_videos=video,
        video_backend="pyav",
    )


def _features(spec: Spec, video: bool) -> dict[str, dict[str, Any]]:
    """LeRobot's description of every feature."""
    features = {feature.name: _feature(feature, video) for feature in spec.observation}
    size = (spec.action.size,)
    features["action"] = {"dtype": "float32", "shape": size, "names": list(spec.action.names)}
    for name, dtype in {REWARD: "float32", **dict.fromkeys((DONE, TRUNCATED, SUCCESS), "bool")}.items():
        features[name] = {"dtype": dtype, "shape": (1,), "names": None}
    for name, dtype in FLOWRL_DTYPES.items():
        shape, names = (size, list(spec.action.names)) if name == "policy_action" else ((1,), None)
        features[name] = {"dtype": dtype, "shape": shape, "names": names}
    return features


def _feature(feature: Feature, video: bool) -> dict[str, Any]:
    if not feature.is_image:
        return {"dtype": "float32", "shape": feature.shape, "names": list(feature.names) or None}
    shape = (*feature.shape[1:], 3)
    return {
        "dtype": "video" if video else "image",
        "shape": shape,
        "names": ["height", "width", "channels"],
    }


def _add(dataset: Any, reader: ReplayReader, index: int) -> None:
    """Write one episode."""
    episode, spec = reader.episode(index), reader.spec
    outcome_by = int(reader.table[index, EPISODE["outcome_by"]])
    columns = _columns(episode, spec, outcome_by)
    cameras = [feature.name for feature in spec.observation if feature.is_image]
    frames = {name: _frames(reader, name, episode) for name in cameras}
    for step in range(len(episode.action)):
        frame = {name: values[step] for name, values in columns.items()}
        frame |= {name: next(each) for name, each in frames.items()}
        dataset.add_frame(frame | {"task": episode.task})
    with _quiet():
        # Encoding in parallel would fork a process that has threads.
        dataset.save_episode(parallel_encoding=False)


def _columns(episode: Episode, spec: Spec, outcome_by: int) -> dict[str, Array]:
    """All features of an episode but its frames, each (L, ...) in the type that LeRobot is told."""
    length, integers = len(episode.action), episode.integers
    columns = dict[str, Array]()
    start = 0
    for feature in spec.state_features:
        columns[feature.name] = episode.state[:, start : start + feature.size].reshape(length, *feature.shape)
        start += feature.size
    terminated, truncated = (integers[:, INT[name]] > 0 for name in ("terminated", "truncated"))
    last = np.arange(length) == length - 1
    proposed = np.asarray(np.isfinite(episode.policy_action).all(axis=1))
    succeeded = np.full(length, episode.outcome is Outcome.SUCCESS)
    columns.update(
        {
            "action": episode.action,
            REWARD: episode.reward,
            DONE: terminated | truncated,
            TRUNCATED: truncated & ~terminated,
            SUCCESS: last & succeeded,
            "source": integers[:, INT["source"]],
            "intervention_id": integers[:, INT["intervention_id"]],
            "policy_action": np.where(proposed[:, None], episode.policy_action, episode.action),
            "policy_proposed": proposed,
            "outcome": np.full(length, int(episode.outcome)),
            "outcome_by": np.full(length, outcome_by),
        }
    )
    return {name: each.reshape(length, -1) if each.ndim == 1 else each for name, each in columns.items()}


def _frames(reader: ReplayReader, camera: str, episode: Episode) -> Iterator[Array]:
    """The frames (height, width, 3) of an episode, decoded block by block."""
    rows = np.arange(episode.row, episode.row + len(episode.action))
    for start in range(0, len(rows), _BLOCK):
        yield from reader.frames.pixels(camera, rows[start : start + _BLOCK]).numpy().transpose(0, 2, 3, 1)


def _done(episode: Episode, position: int, total: int) -> DemonstrationDone:
    success = None if episode.outcome is Outcome.UNKNOWN else episode.outcome is Outcome.SUCCESS
    name = f"{episode.stream}, episode {episode.number}"
    return DemonstrationDone(name, position, total, len(episode.action), success)


@contextmanager
def _aside(to: Path) -> Generator[Path]:
    """A path to write to; leaving the context without an error renames it to ``to``.

    It lies in the hidden directory ``.export-<name>`` beside ``to``, which the next export clears.
    """
    place = to.parent / f".export-{to.name}"
    place.mkdir(parents=True, exist_ok=True)
    try:
        lock = WriterLock(place)
    except ReplayError as error:
        raise ReplayError(f"another process is exporting to {str(to)!r}; wait for it") from error
    try:
        for entry in place.iterdir():
            if entry.name != LOCK_FILE:
                shutil.rmtree(entry)
        yield place / to.name
        if to.exists():
            raise UsageError(f"{str(to)!r} appeared while it was exported; nothing was changed")
        (place / to.name).rename(to)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        lock.release()


@contextmanager
def _quiet() -> Generator[None]:
    """Keep LeRobot's progress bars, and what its video encoder says about itself, off the terminal."""
    from lerobot.utils.utils import SuppressProgressBars

    libav, before = data_module("av.logging"), os.environ.get("SVT_LOG")
    libav.set_libav_level(libav.WARNING)
    os.environ["SVT_LOG"] = "1"
    try:
        with SuppressProgressBars():
            yield
    finally:
        libav.set_libav_level(libav.INFO)
        if before is None:
            del os.environ["SVT_LOG"]
        else:
            os.environ["SVT_LOG"] = before
