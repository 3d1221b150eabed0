"""Read a replay buffer of diffusion_policy: a zarr group (format 2) in a directory or a ``.zip``.

``data`` holds arrays with one row per step of all episodes, ``action`` among them; ``meta/episode_ends``
holds the row after the last one of each episode.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.errors import UnknownCodecError
from zarr.storage import ZipStore

from flowrl.errors import DataError, FlowRLError, UsageError
from flowrl.replay.importers.actions import require_finite
from flowrl.replay.importers.images import StoredImages
from flowrl.replay.schema import Floats, Ints
from flowrl.replay.storage import first_line

ACTION, ENDS = "data/action", "meta/episode_ends"

_STATE_VALUES = 1024
"""A row of more numbers than this is no low-dimensional observation."""

_Root = Path | zipfile.Path


@dataclass(frozen=True)
class ArrayInfo:
    """What the metadata of an array says, before its codec is needed."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    codecs: tuple[str, ...]

    @property
    def kind(self) -> Literal["state", "images"] | None:
        """What a row is: low-dimensional numbers, an image (height, width, 3), or neither."""
        if len(self.shape) == 4 and self.shape[3] == 3 and (self.dtype == np.uint8 or self.dtype.kind == "f"):
            return "images"
        numbers = self.dtype.kind in "biuf" and 1 <= len(self.shape) <= 3
        return "state" if numbers and 1 <= np.prod(self.shape[1:]) <= _STATE_VALUES else None

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one step; a single number is a vector of one."""
        return self.shape[1:] or (1,)


class ReplayBuffer:
    """An open replay buffer. Use it as a context manager.

    ``ends`` are the rows after each episode, ``info`` the arrays of ``data`` by key, ``others`` its folders
    that are none. Raises UsageError naming what is missing when the path is no such buffer, DataError when
    it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._store = path, None
        self._root = _root(path)
        try:
            _require_buffer(path, self._root)
            self._store = ZipStore(path, mode="r") if path.is_file() else None
            with self._reading(path.name):
                self._group = zarr.open_group(
                    self._store or str(path), mode="r", zarr_format=2, use_consolidated=False
                )
            self.info, self.others = self._contents()
            self.ends: Ints = self._read_ends()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the archive, if it is one."""
        if isinstance(self._root, zipfile.Path):
            self._root.root.close()
        if self._store is not None:
            self._store.close()

    @property
    def rows(self) -> int:
        """Steps of all episodes."""
        return self.info["action"].shape[0]

    @property
    def names(self) -> list[str]:
        """The episodes, by number."""
        return [f"episode_{index}" for index in range(len(self.ends))]

    def span(self, index: int) -> slice:
        """The rows of an episode."""
        return slice(int(self.ends[index - 1]) if index else 0, int(self.ends[index]))

    def numbers(self, key: str) -> Floats:
        """A low-dimensional array (N, ...) of ``data`` as float32.

        Raises DataError naming episode, step and value of the first that is not finite.
        """
        info = self.info[key]
        self._require_rows(info)
        if info.kind != "state":
            raise DataError(
                f"{self.path.name}: data/{key} holds {info.dtype} of shape {info.shape}, expected numbers "
                "(steps, dimensions)"
            )
        array = self._open(f"data/{key}", info)
        with self._reading(f"{self.path.name}: data/{key}"), np.errstate(over="ignore"):
            values = np.asarray(array[:]).astype(np.float32).reshape(self.rows, *info.row)
        for index, name in enumerate(self.names):
            flat = values[self.span(index)].reshape(-1, int(np.prod(info.row)))
            require_finite(flat, f"data/{key}", f"{self.path.name}, {name}")
        return values

    def images(self, key: str) -> StoredImages:
        """The images of ``data/<key>``, checked by shape and type but not read."""
        info = self.info[key]
        self._require_rows(info)
        where = f"{self.path.name}: data/{key}"
        found = StoredImages(self._open(f"data/{key}", info), where, self._reading)
        found.require(self.rows, floats=True)
        return found

    def absent_chunks(self, key: str) -> str:
        """What to say when chunks of an array are not there: zarr then takes its fill value. Empty if none."""
        array = self._open(f"data/{key}", self.info[key])
        absent = array.nchunks - array.nchunks_initialized
        if not absent:
            return ""
        return (
            f"data/{key} lacks {absent} of its {array.nchunks} chunks; zarr takes {array.fill_value} there, "
            "which is right only if nothing else was written, and wrong if the copy is incomplete"
        )

    def _contents(self) -> tuple[dict[str, ArrayInfo], list[str]]:
        folders = sorted(each.name for each in (self._root / "data").iterdir() if each.is_dir())
        keys = [key for key in folders if (self._root / "data" / key / ".zarray").is_file()]
        return {key: self._info(f"data/{key}", key) for key in keys}, sorted({*folders} - {*keys})

    def _info(self, path: str, key: str) -> ArrayInfo:
        where = f"{self.path.name}: {path}"
        with self._reading(f"{where}/.zarray"):
            stated = json.loads((self._root / path / ".zarray").read_text())
            dtype = np.dtype(stated["dtype"]) if isinstance(stated["dtype"], str) else np.dtype("V1")
            codecs = [stated["compressor"], *(stated["filters"] or ())]
            names = tuple(str(codec["id"]) for codec in codecs if codec is not None)
            return ArrayInfo(key, tuple(int(extent) for extent in stated["shape"]), dtype, names)

    def _open(self, path: str, info: ArrayInfo) -> zarr.Array[Any]:
        where = f"{self.path.name}: {path}"
        if "pickle" in info.codecs or info.dtype.hasobject:
            raise DataError(f"{where} stores Python objects, which could run any code and are never loaded")
        try:
            with self._reading(where):
                array = cast("zarr.Array[Any]", self._group[path])
        except DataError as error:
            if isinstance(error.__cause__, UnknownCodecError):
                raise _missing_codec(where, info, error.__cause__) from error
            raise
        if "blosc" in info.codecs[:1]:
            self._require_whole_blocks(path, where)
        return array

    def _require_whole_blocks(self, path: str, where: str) -> None:
        """Blosc reads past the end of a chunk that was cut short; a .zip has checksums against that."""
        if isinstance(self._root, zipfile.Path):
            return
        for file in (self._root / path).rglob("*"):
            if file.name.startswith(".") or not file.is_file():
                continue
            with file.open("rb") as chunk:
                header = chunk.read(16)
            size = file.stat().st_size
            if len(header) < 16 or struct.unpack("<I", header[12:])[0] != size:
                raise DataError(
                    f"{where}: chunk {file.name} of {size} bytes is truncated or damaged; copy the buffer again"
                )

    def _read_ends(self) -> Ints:
        info, where = self._info(ENDS, "episode_ends"), f"{self.path.name}: {ENDS}"
        if len(info.shape) != 1 or info.dtype.kind not in "iu":
            raise DataError(f"{where} is {info.dtype} of shape {info.shape}, expected integers (episodes,)")
        array = self._open(ENDS, info)
        with self._reading(where):
            ends: NDArray[np.int64] = np.asarray(array[:]).astype(np.int64)
        wrong = np.flatnonzero(np.diff(ends, prepend=0) <= 0)
        if len(wrong):
            index = int(wrong[0])
            before = int(ends[index - 1]) if index else 0
            raise DataError(
                f"{where}[{index}] is {ends[index]}, expected more than {before}: each episode ends after the "
                "one before, with at least one step"
            )
        last = int(ends[-1]) if len(ends) else 0
        if last != self.rows:
            raise DataError(
                f"{where} ends at row {last}, but {ACTION} has {self.rows} rows; the recording is incomplete"
            )
        return ends

    def _require_rows(self, info: ArrayInfo) -> None:
        if info.shape[:1] != (self.rows,):
            raise DataError(
                f"{self.path.name}: data/{info.key} has shape {info.shape}, {ACTION} has {self.rows} rows; "
                "all arrays have one row per step"
            )

    @contextmanager
    def _reading(self, where: str) -> Generator[None]:
        try:
            yield
        except FlowRLError:
            raise
        # zarr passes on whatever a codec raises.
        except Exception as error:
            raise DataError(
                f"{where} cannot be read: it is truncated or damaged ({first_line(error)}); copy the buffer again"
            ) from error


def _root(path: Path) -> _Root:
    if not path.exists():
        raise UsageError(f"there is nothing at {str(path)!r} to import")
    if path.is_dir():
        return path
    try:
        return zipfile.Path(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path.name} is no readable .zip ({error}); copy it again") from error


def _require_buffer(path: Path, root: _Root) -> None:
    missing = [name for name in (ACTION, ENDS) if not (root / name / ".zarray").is_file()]
    if not missing:
        return
    newer = any((root / name / "zarr.json").is_file() for name in (ACTION, ENDS))
    inside = [each.name for each in root.iterdir() if each.is_dir() and (each / ENDS / ".zarray").is_file()]
    if newer:
        why = "it is in zarr's format 3; write it in format 2"
    elif inside and isinstance(root, zipfile.Path):
        why = f"the buffer lies in {inside[0]!r} of the archive; unpack it and import that"
    elif inside:
        why = f"import {str(path / inside[0])!r}"
    else:
        data = root / "data"
        listed = _visible(data) if data.is_dir() else _visible(root)
        why = f"{'data' if data.is_dir() else 'it'} holds {', '.join(listed[:8]) or 'nothing'}"
    raise UsageError(
        f"{path.name} is no replay buffer of diffusion_policy: it has no array {' and no '.join(missing)}; {why}"
    )


def _visible(folder: _Root) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))


def _missing_codec(where: str, info: ArrayInfo, error: Exception) -> DataError:
    named = re.search(r"'([^']+)'", str(error))
    codec = named[1] if named else " or ".join(info.codecs)
    return DataError(
        f"{where} is compressed with the codec {codec!r}, which is not installed; write the array again with "
        "a codec of numcodecs (blosc, zstd), or leave it out: name the arrays to import with --feature"
    )


def shapes(info: Mapping[str, ArrayInfo]) -> str:
    """What a buffer holds, for messages: ``img (25650, 96, 96, 3)``."""
    return ", ".join(f"{key} {each.shape}" for key, each in info.items())
