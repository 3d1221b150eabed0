"""The files of a LeRobotDataset v3: what they say about features and episodes, their columns and images.

``meta/info.json`` names the features, ``meta/episodes`` has a row per episode with the place of its data
and videos, ``data`` one row per frame. Many episodes share a file. LeRobot itself is not needed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from flowrl.errors import DataError, UsageError
from flowrl.replay.extras import data_module
from flowrl.replay.schema import Array
from flowrl.replay.storage import first_line

INFO = "meta/info.json"
TASKS = "meta/tasks.parquet"
STATS = "meta/stats.json"
SIDECAR = "meta/flowrl.json"
"""What `flowrl export` adds: the spec, of which LeRobot keeps only parts."""

BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that LeRobot gives every dataset."""


@dataclass(frozen=True)
class Column:
    """A feature as ``meta/info.json`` describes it; ``shape`` excludes time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any
    info: Mapping[str, Any]

    @property
    def is_camera(self) -> bool:
        """Whether frames are stored, as images beside the numbers or as videos."""
        return self.dtype in ("image", "video")

    @property
    def is_numeric(self) -> bool:
        """Whether it is an array of numbers or truth values."""
        try:
            return np.dtype(self.dtype).kind in "biuf"
        except TypeError:
            return False


@dataclass(frozen=True)
class VideoPlace:
    """Where an episode lies in a video file; ``start`` in seconds."""

    path: Path
    start: float


@dataclass(frozen=True)
class EpisodePlace:
    """One episode: its number in the dataset, its length, its data file, its place in each camera's video."""

    index: int
    length: int
    path: Path
    videos: Mapping[str, VideoPlace]

    @property
    def name(self) -> str:
        """How messages and the report call it."""
        return f"episode {self.index}"


class LeRobotFiles:
    """An opened dataset.

    Raises UsageError when the directory is no LeRobotDataset v3, DataError naming the file that is missing
    or damaged.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, root.name
        info = self._info()
        self.version = str(info["codebase_version"])
        with self._reading(INFO):
            self.fps = float(info["fps"])
            self._data_path, self._video_path = str(info["data_path"]), info.get("video_path")
            self.columns = {name: _column(name, each) for name, each in info["features"].items()}
        self.robot = str(info.get("robot_type") or "")
        self.tasks = self._tasks()
        self.episodes = self._episodes()
        self._images: tuple[Path, dict[str, Any]] | None = None

    def json(self, path: str) -> Any:
        """A JSON file of the dataset; None where there is none."""
        if not (self.root / path).exists():
            return None
        with self._reading(path):
            return json.loads((self.root / path).read_text())

    def numbers(self, names: Sequence[str], episodes: Sequence[EpisodePlace]) -> dict[str, Array]:
        """Numeric columns of some episodes in their order, each file read once: (N, ...) over all frames.

        Raises DataError when a file lacks a column or does not hold the frames that the episodes need.
        """
        wanted = [*names, *BOOKKEEPING]
        parts: dict[str, list[Array]] = {name: [] for name in wanted}
        for path, members in itertools.groupby(episodes, lambda episode: episode.path):
            table = self._table(path, wanted)
            where = self._where(path)
            values = {name: self._array(table, name, where) for name in wanted}
            rows = np.concatenate([_rows_of(each, values, where) for each in members])
            for name in wanted:
                parts[name].append(values[name][rows])
        return {name: np.concatenate(each) for name, each in parts.items()}

    def images(self, column: str, episode: EpisodePlace) -> list[bytes]:
        """The encoded images of an episode, as they lie in the data file. One file is held at a time."""
        cameras = [name for name, each in self.columns.items() if each.dtype == "image"]
        if self._images is None or self._images[0] != episode.path:
            table = self._table(episode.path, [*cameras, "episode_index"])
            owners = table["episode_index"].to_numpy()
            self._images = (episode.path, {name: table[name] for name in cameras} | {"": owners})
        held = self._images[1]
        frames = held[column].take(np.flatnonzero(held[""] == episode.index)).to_pylist()
        for step, frame in enumerate(frames):
            if frame is None or frame.get("bytes") is None:
                raise DataError(
                    f"{self._where(episode.path)}: {episode.name}, step {step} has no bytes of {column}; the "
                    "images lie outside the dataset. Write it again with LeRobot, which embeds them"
                )
        return [frame["bytes"] for frame in frames]

    def sha256(self) -> str:
        """A digest of the dataset: all bytes of ``meta`` and ``data``, names and sizes of the videos."""
        digest = hashlib.sha256()
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root).as_posix()
            if not path.is_file() or not relative.startswith(("meta/", "data/", "videos/")):
                continue
            digest.update(f"{relative}\0{path.stat().st_size}\0".encode())
            if not relative.startswith("videos/"):
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _info(self) -> Mapping[str, Any]:
        if not self.root.is_dir():
            raise UsageError(f"there is no directory {str(self.root)!r} to import")
        info = self.json(INFO)
        if not isinstance(info, dict) or "codebase_version" not in info:
            raise UsageError(
                f"{str(self.root)!r} is no LeRobotDataset: it has no {INFO} with a codebase_version. Give the "
                "directory that holds meta, data and videos"
            )
        version = str(info["codebase_version"])
        if version.lstrip("v").split(".")[0] != "3":
            raise UsageError(
                f"{self.name} is a LeRobotDataset {version}; this flowrl reads v3. Convert an older one with "
                "LeRobot: python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=..."
            )
        return info

    def _tasks(self) -> dict[int, str]:
        table = self._table(self.root / TASKS, ["task_index"])
        # Pandas keeps the text as its index, whose column has a name only in newer versions.
        texts = [name for name in table.column_names if name != "task_index"]
        if len(texts) != 1:
            raise DataError(
                f"{self._where(self.root / TASKS)} has columns {table.column_names}, expected a text"
            )
        return dict(zip(table["task_index"].to_pylist(), map(str, table[texts[0]].to_pylist()), strict=True))

    def _episodes(self) -> list[EpisodePlace]:
        paths = sorted((self.root / "meta/episodes").glob("*/*.parquet"))
        if not paths:
            raise DataError(
                f"{self.name} has no file in meta/episodes; the dataset is incomplete, copy it again"
            )
        videos = [name for name, column in self.columns.items() if column.dtype == "video"]
        places = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        for name in videos:
            places += [f"videos/{name}/{key}" for key in ("chunk_index", "file_index", "from_timestamp")]
        rows = [row for path in paths for row in self._table(path, places).select(places).to_pylist()]
        if not rows:
            raise DataError(f"{self.name} holds no episode to import")
        with self._reading("meta/episodes"):
            found = [self._place(row, videos) for row in rows]
        return sorted(found, key=lambda each: each.index)

    def _place(self, row: Mapping[str, Any], videos: Sequence[str]) -> EpisodePlace:
        def path(template: str, prefix: str, **keys: str) -> Path:
            chunk, file = int(row[f"{prefix}/chunk_index"]), int(row[f"{prefix}/file_index"])
            relative = PurePosixPath(template.format(chunk_index=chunk, file_index=file, **keys))
            if relative.is_absolute() or ".." in relative.parts:
                raise ValueError(f"the path {str(relative)!r} leaves the dataset")
            return self.root / relative

        return EpisodePlace(
            int(row["episode_index"]),
            int(row["length"]),
            path(self._data_path, "data"),
            {
                name: VideoPlace(
                    path(str(self._video_path), f"videos/{name}", video_key=name),
                    float(row[f"videos/{name}/from_timestamp"]),
                )
                for name in videos
            },
        )

    def _table(self, path: Path, columns: Sequence[str]) -> Any:
        """Columns of a parquet file; of the small tables all. Raises DataError when one is missing."""
        parquet, where = data_module("pyarrow.parquet"), self._where(path)
        if not path.exists():
            raise DataError(f"{where} is missing; the dataset is incomplete, copy it again")
        with self._reading(path.relative_to(self.root).as_posix()):
            file = parquet.ParquetFile(path)
            table = file.read(columns=None if path.name == Path(TASKS).name else list(columns))
        missing = [name for name in columns if name not in table.column_names]
        if missing:
            raise DataError(
                f"{where} has no column {', '.join(missing)}; it does not fit {INFO}. Write the dataset again"
            )
        return table

    def _array(self, table: Any, name: str, where: str) -> Array:
        shape = self.columns[name].shape if name in self.columns else (1,)
        array = table[name].combine_chunks()
        # LeRobot's two-dimensional features are an extension type once the package datasets is loaded.
        array = getattr(array, "storage", array)
        while hasattr(array, "flatten") and "list" in str(array.type):
            array = array.flatten()
        values = array.to_numpy(zero_copy_only=False)
        size = int(np.prod(shape))
        if len(values) != len(table) * size:
            raise DataError(
                f"{where}: column {name} has {len(values)} values in {len(table)} rows, {INFO} says shape {shape}"
            )
        return values.reshape(len(table), *shape)

    def _where(self, path: Path) -> str:
        return f"{self.name}/{path.relative_to(self.root).as_posix()}"

    @contextmanager
    def _reading(self, where: str) -> Generator[None]:
        # pyarrow's own errors are ValueErrors and OSErrors.
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self.name}/{where} cannot be read: {type(error).__name__} {first_line(error)}; it is damaged or "
                "not of LeRobotDataset v3. Copy the dataset again"
            ) from error


def _column(name: str, stated: Mapping[str, Any]) -> Column:
    info = {**(stated.get("video_info") or {}), **(stated.get("info") or {})}
    shape = tuple(int(each) for each in stated["shape"])
    return Column(name, str(stated["dtype"]), shape, stated.get("names"), info)


def _rows_of(episode: EpisodePlace, values: Mapping[str, Array], where: str) -> Array:
    """The rows of an episode in its file. Raises DataError when frames are missing or out of order."""
    rows = np.flatnonzero(values["episode_index"].reshape(-1) == episode.index)
    if len(rows) != episode.length or not len(rows):
        raise DataError(
            f"{where} holds {len(rows)} rows of {episode.name}, meta/episodes says {episode.length}; the dataset "
            "is incomplete, copy it again"
        )
    numbers = values["frame_index"].reshape(-1)[rows]
    if not np.array_equal(numbers, np.arange(len(rows))):
        step = int(np.flatnonzero(numbers != np.arange(len(rows)))[0])
        raise DataError(
            f"{where}: row {step} of {episode.name} has frame_index {numbers[step]}; frames are missing or out of "
            "order. Write the dataset again"
        )
    return rows
