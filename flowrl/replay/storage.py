"""A stream on disk: an icechunk repository that holds one zarr hierarchy (docs/replay.md).

Plain zarr shows a live reader half-written rows; icechunk adds transactions and snapshots. Arrays are
preallocated in blocks; chunks that were never written take no space.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import icechunk
import numpy as np
import zarr
from zarr.codecs import ZstdCodec
from zarr.errors import BaseZarrError
from zarr.storage import StorePath

from flowrl.errors import DataError, ReplayError
from flowrl.replay.schema import EPISODE_COLUMNS, FORMATS, INT_COLUMNS, Kind, float_columns, stream_format
from flowrl.spec import Spec

BRANCH = "main"
CHUNK_ROWS = 512
ROW_BLOCK = 1 << 16
CHUNK_EPISODES = 64
EPISODE_BLOCK = 1 << 12
CHUNK_BYTES = 1 << 18
BYTE_BLOCK = 1 << 28
CHUNKS = {
    "steps/float": CHUNK_ROWS,
    "steps/int": CHUNK_ROWS,
    "episodes/table": CHUNK_EPISODES,
    "episodes/final": CHUNK_EPISODES,
    "images/bytes": CHUNK_BYTES,
    "images/steps": CHUNK_ROWS,
    "images/final": CHUNK_EPISODES,
}
"""The arrays of a stream and the rows of a chunk of each; those of ``images`` where there are cameras."""
BLOCKS = {
    "steps/float": ROW_BLOCK,
    "steps/int": ROW_BLOCK,
    "episodes/table": EPISODE_BLOCK,
    "episodes/final": EPISODE_BLOCK,
    "images/bytes": BYTE_BLOCK,
    "images/steps": ROW_BLOCK,
    "images/final": EPISODE_BLOCK,
}
STORAGE_ERRORS = (icechunk.IcechunkError, OSError, BaseZarrError, RuntimeError)
"""What icechunk, zarr and the codec (RuntimeError) raise when files are missing, damaged or not writable."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# icechunk warns at every open that a local directory is unsafe for concurrent committers; the lock of
# `StreamWriter` is what makes it safe here.
icechunk.set_logs_filter("error")


@dataclass(frozen=True)
class StreamHeader:
    """What a stream says of itself; written once, when it is created."""

    name: str
    kind: Kind
    spec: Spec


@dataclass(frozen=True)
class Layout:
    """What one array holds: the shape of a row, its type, and the value of rows never written."""

    row: tuple[int, ...]
    dtype: type[np.generic]
    fill: float


def layouts(spec: Spec) -> dict[str, Layout]:
    """The arrays of a stream with this spec, by name.

    With cameras, ``images/bytes`` holds encoded frames one after another, and a row of ``images/steps`` and
    ``images/final`` the offset and length there of each camera's frame, in spec order.
    """
    width = sum(stop - start for start, stop in float_columns(spec).values())
    found = {
        "steps/float": Layout((width,), np.float32, np.nan),
        "steps/int": Layout((len(INT_COLUMNS),), np.int64, -1),
        "episodes/table": Layout((len(EPISODE_COLUMNS),), np.int64, -1),
        "episodes/final": Layout((spec.state_size,), np.float32, np.nan),
    }
    if cameras := len(spec.cameras):
        found["images/bytes"] = Layout((), np.uint8, 0)
        found["images/steps"] = Layout((2 * cameras,), np.int64, -1)
        found["images/final"] = Layout((2 * cameras,), np.int64, -1)
    return found


def stream_names(replay: Path) -> list[str]:
    """The streams of a replay, sorted. Raises ReplayError when the replay does not exist."""
    if not replay.is_dir():
        raise ReplayError(
            f"replay {str(replay)!r} does not exist; record or import into it first (`flowrl import`)"
        )
    return sorted(
        entry.name
        for entry in replay.iterdir()
        if _NAME.fullmatch(entry.name) and (entry / "repo").exists() and (entry / "snapshots").is_dir()
    )


def check_name(name: str) -> None:
    """Raise ReplayError when a stream cannot have this name."""
    if not _NAME.fullmatch(name):
        raise ReplayError(
            f"stream name {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )


def open_repository(path: Path) -> icechunk.Repository:
    """Open the repository of a stream. Raises ReplayError when it is missing or unreadable."""
    if not path.is_dir():
        known = stream_names(path.parent) if path.parent.is_dir() else []
        raise ReplayError(
            f"stream {path.name!r} is not in replay {str(path.parent)!r}; it holds {known or 'no streams'}"
        )
    try:
        return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    except STORAGE_ERRORS as error:
        raise ReplayError(
            f"stream {path.name!r} in {str(path.parent)!r} cannot be opened: {first_line(error)}; "
            "restore it from a copy, or move it out of the replay"
        ) from error


def create_stream(path: Path, header: StreamHeader) -> None:
    """Create an empty stream. It appears under its name complete or not at all."""
    spec = header.spec.interface()
    arrays = layouts(spec)
    aside = path.with_name(f".{path.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(aside)))
    session = repository.writable_session(BRANCH)
    root = zarr.create_group(
        session.store,
        attributes={
            "format": stream_format(spec),
            "kind": str(header.kind),
            "spec": spec.to_json(),
            "spec_digest": spec.digest(),
            "columns": {
                "steps/float": {name: list(span) for name, span in float_columns(spec).items()},
                "steps/int": list(INT_COLUMNS),
                "episodes/table": list(EPISODE_COLUMNS),
            },
        },
    )
    root.create_group("steps")
    root.create_group("episodes", attributes={"tasks": [], "digests": []})
    root.create_group("images")
    for name, layout in arrays.items():
        root.create_array(
            name,
            shape=(BLOCKS[name], *layout.row),
            chunks=(CHUNKS[name], *layout.row),
            dtype=layout.dtype,
            fill_value=layout.fill,
            # The checksum turns a flipped bit on the disk into an error in place of a wrong number.
            compressors=ZstdCodec(level=0, checksum=True),
        )
    session.commit("layout")
    try:
        aside.rename(path)
    except OSError as error:
        raise ReplayError(f"stream {path.name!r} already exists in replay {str(path.parent)!r}") from error


def read_header(path: Path, session: icechunk.Session) -> StreamHeader:
    """Read what a stream says of itself. Raises ReplayError when its format is unknown."""
    attributes = cast(Mapping[str, Any], zarr.open_group(session.store, mode="r").attrs.asdict())
    if attributes.get("format") not in FORMATS:
        raise ReplayError(
            f"stream {path.name!r} has format {attributes.get('format')}, this flowrl reads "
            f"{' and '.join(map(str, FORMATS))}; use the flowrl that wrote it, or import it again"
        )
    try:
        return StreamHeader(path.name, Kind(attributes["kind"]), Spec.from_json(attributes["spec"]))
    except (KeyError, ValueError, DataError) as error:
        raise ReplayError(f"stream {path.name!r} has a damaged header: {error}") from error


class StreamArrays:
    """The arrays of a stream, bound to one session after another without reading metadata again.

    Opening an array costs as much as writing it, so the metadata is kept and only the store changes.
    """

    def __init__(self) -> None:
        self._metadata: dict[str, Any] = {}

    def bind(self, session: icechunk.Session, name: str) -> zarr.Array[Any]:
        """One array of `CHUNKS` in this session."""
        if name not in self._metadata:
            array = zarr.open_array(session.store, path=name, mode="r")
            self._metadata[name] = array.metadata
        inner = zarr.AsyncArray(metadata=self._metadata[name], store_path=StorePath(session.store, name))
        return cast("zarr.Array[Any]", zarr.Array(inner))

    def write(self, session: icechunk.Session, name: str, start: int, values: np.ndarray[Any, Any]) -> None:
        """Write whole chunks from row ``start``, growing the array by preallocated blocks."""
        array = self.bind(session, name)
        stop = start + len(values)
        if stop > array.shape[0]:
            block = BLOCKS[name]
            array.resize((-(-stop // block) * block, *array.shape[1:]))
            self._metadata[name] = array.metadata
        array[start:stop] = values

    def read(self, session: icechunk.Session, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Rows ``start..stop`` of one array; rows beyond the preallocated blocks do not exist."""
        array = self.bind(session, name)
        if stop > array.shape[0]:
            self._metadata.pop(name)
            array = self.bind(session, name)
        return np.asarray(array[start:stop])

    def forget(self) -> None:
        """Read the metadata again at the next use (after a failed or undone commit)."""
        self._metadata.clear()


def read_episode_table(arrays: StreamArrays, session: icechunk.Session, start: int) -> np.ndarray[Any, Any]:
    """The rows of the episode table from ``start`` on, (E, len(EPISODE_COLUMNS)) int64.

    The table ends at its first unwritten row, so it publishes the committed rows and episodes itself.
    """
    parts: list[np.ndarray[Any, Any]] = []
    block = CHUNK_EPISODES
    while True:
        stop = (start // CHUNK_EPISODES) * CHUNK_EPISODES + block
        rows = arrays.read(session, "episodes/table", start, stop)
        written = rows[rows[:, 0] >= 0]
        parts.append(written)
        if len(written) < stop - start:
            return np.concatenate(parts)
        start, block = stop, min(block * 4, EPISODE_BLOCK)


def read_tasks(session: icechunk.Session) -> list[str]:
    """The instructions that the episode table counts by position."""
    attributes = zarr.open_group(session.store, path="episodes", mode="r").attrs.asdict()
    return list(cast("list[str]", attributes["tasks"]))


def expire(repository: icechunk.Repository, grace_s: float) -> int:
    """Forget snapshots older than the grace period and delete what only they used. Returns bytes freed."""
    older_than = datetime.now(UTC) - timedelta(seconds=grace_s)
    repository.expire_snapshots(older_than)
    return repository.garbage_collect(older_than).bytes_deleted


def failure(error: BaseException) -> tuple[str, str]:
    """Why a commit failed, and what to do."""
    text = str(error)
    if any(sign in text for sign in ("No space left", "os error 27", "os error 28", "os error 122")):
        return "the disk is full", "free some space, then commit or go on appending"
    return f"the store failed ({first_line(error)})", "check the disk, then commit again"


def first_line(error: BaseException) -> str:
    """The first telling line of a storage error, whose full text is a page of context."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
