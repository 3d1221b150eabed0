"""Read demonstrations from HDF5: robosuite's own layout, and robomimic's, low-dimensional or with images.

Both keep ``data/demo_k/actions`` (T, A) and usually ``data/demo_k/states`` (T, n); robomimic adds
``rewards``, ``dones``, ``obs``, ``next_obs``, and lists of demonstrations under ``mask``.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError, UsageError
from flowrl.replay.importers.acting import FLAGS, Flags, as_flags
from flowrl.replay.importers.images import StoredImages
from flowrl.replay.importers.recording import Facts, stated_facts
from flowrl.replay.schema import Array, Floats
from flowrl.replay.storage import first_line

Format = Literal["robosuite", "robomimic"]

SUPPORTED = (
    "robosuite demonstrations (HDF5: data/demo_k/{actions, states})",
    "robomimic data, low-dimensional or with images (HDF5: data/demo_k/{actions, states or obs, rewards})",
    "replay buffers of diffusion_policy (zarr, a directory or .zip: data/action, meta/episode_ends)",
    "LeRobot datasets (a directory with meta/info.json)",
    "ROS 2 bags (.mcap, .db3, or the directory that rosbag2 wrote)",
)
"""What `flowrl import` reads, for messages and help."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_READ = ("actions", "states", "rewards", "obs", "next_obs", *FLAGS)


@dataclass(frozen=True)
class Demonstration:
    """One demonstration as it lies in the file, T steps.

    ``actions`` (T, A); ``states`` (T or T+1, n), state t being the one before action t; ``rewards``
    (T,), of action t; ``observations`` and ``next_observations`` map robomimic's keys to (T, ...);
    ``images`` and ``next_images`` theirs to images that are still in the file. ``flags`` are those of
    `flowrl.replay.importers.acting.FLAGS` that the file has.
    """

    name: str
    where: str
    actions: Floats
    states: NDArray[np.float64] | None
    rewards: NDArray[np.float64] | None
    observations: Mapping[str, Array]
    next_observations: Mapping[str, Array]
    images: Mapping[str, StoredImages]
    next_images: Mapping[str, StoredImages]
    flags: Mapping[str, Flags]


class DemonstrationFile:
    """An open file of demonstrations. Use it as a context manager.

    Raises UsageError when the file is missing or of another kind (naming what is supported), DataError
    when it is truncated or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _require_hdf5(path)
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise _damaged(path.name, error) from error
        try:
            with self._reading(path.name):
                self._data = self._data_group()
                self.format: Format = "robomimic" if self._is_robomimic() else "robosuite"
                self.facts: Facts = stated_facts(dict(self._data.attrs), path.name)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        """The demonstrations by number: ``demo_2`` before ``demo_10``."""
        with self._reading(self.path.name):
            found = [key for key in _keys(self._data) if isinstance(_child(self._data, key), h5py.Group)]
        return sorted(found, key=_natural)

    def selected(self, filter_key: str) -> list[str]:
        """The demonstrations that a list under ``mask`` names. Raises UsageError naming the lists there are."""
        with self._reading(f"{self.path.name}: mask"):
            masks = _child(self._file, "mask")
            known = sorted(_keys(masks)) if isinstance(masks, h5py.Group) else []
        if not isinstance(masks, h5py.Group) or filter_key not in known:
            raise UsageError(
                f"{self.path.name} has no filter key {filter_key!r}; it has {', '.join(known) or 'none'}"
            )
        with self._reading(f"{self.path.name}: mask/{filter_key}"):
            listed = [_as_text(each) for each in np.asarray(masks[filter_key]).ravel()]
        unknown = sorted(set(listed) - set(self.names), key=_natural)
        if unknown:
            raise DataError(
                f"{self.path.name}: filter key {filter_key!r} names {', '.join(unknown)}, which the file does "
                "not hold; import without --filter, or mend the list"
            )
        return sorted(listed, key=_natural)

    def keys(self, name: str) -> tuple[list[str], list[str]]:
        """The datasets of a demonstration, and the keys of its ``obs``."""
        group = self._group(name)
        with self._reading(self._where(name)):
            obs = _child(group, "obs")
            return sorted(_keys(group)), sorted(_keys(obs)) if isinstance(obs, h5py.Group) else []

    def has(self, name: str, key: str) -> bool:
        """Whether a demonstration has a dataset or group of this name."""
        return key in self.keys(name)[0]

    def ignored(self, names: Sequence[str]) -> dict[str, int]:
        """Datasets beside those that are read, with the number of demonstrations that have them."""
        counts: dict[str, int] = {}
        for name in names:
            for key in self.keys(name)[0]:
                if key not in _READ:
                    counts[key] = counts.get(key, 0) + 1
        return counts

    def length(self, name: str) -> int:
        """T, the number of actions of a demonstration."""
        where = self._where(name)
        return len(self._dataset(self._group(name), "actions", where))

    def read(self, name: str) -> Demonstration:
        """Read one demonstration.

        Raises DataError naming demonstration and dataset when one is missing, damaged, or not as long
        as the actions.
        """
        where, group = self._where(name), self._group(name)
        actions = self._matrix(group, "actions", where).astype(np.float32)
        length = len(actions)
        states = self._matrix(group, "states", where) if "states" in group else None
        if states is not None and len(states) not in (length, length + 1):
            raise DataError(
                f"{where}: {len(states)} states for {length} actions, expected as many (or one more, the state "
                "after the last action); the recording is incomplete"
            )
        rewards = self._numbers(group, "rewards", where) if "rewards" in group else None
        if rewards is not None and rewards.shape != (length,):
            raise DataError(f"{where}: rewards have shape {rewards.shape}, expected ({length},)")
        return Demonstration(
            name,
            where,
            actions,
            states,
            rewards,
            self._observations(group, "obs", length, where),
            self._observations(group, "next_obs", length, where),
            *self.images(name),
            self._flags(group, length, where),
        )

    def images(self, name: str) -> tuple[Mapping[str, StoredImages], Mapping[str, StoredImages]]:
        """What ``obs`` and ``next_obs`` of a demonstration hold beside low-dimensional arrays, by key.

        Nothing is read or checked (see `StoredImages.require`).
        """
        where, group = self._where(name), self._group(name)
        obs, after = (
            {
                child: StoredImages(dataset, f"{where}: {key}/{child}", self._reading)
                for child, dataset in self._members(group, key, where).items()
                if _may_be_images(child, dataset)
            }
            for key in ("obs", "next_obs")
        )
        return obs, after

    def _group(self, name: str) -> h5py.Group:
        with self._reading(self._where(name)):
            group = self._data[name]
        if not isinstance(group, h5py.Group):
            raise DataError(f"{self._where(name)} is no group of datasets, so it is no demonstration")
        return group

    def _where(self, name: str) -> str:
        return f"{self.path.name}, {name}"

    def _data_group(self) -> h5py.Group:
        data = _child(self._file, "data")
        if isinstance(data, h5py.Group):
            members = [_child(data, key) for key in _keys(data)]
            if any(isinstance(member, h5py.Group) for member in members):
                return data
        raise UsageError(
            f"{self.path.name} is an HDF5 file without demonstrations under 'data'; it holds "
            f"{', '.join(self._file) or 'nothing'}. {_supported()}"
        )

    def _is_robomimic(self) -> bool:
        # Never iterate `values()` or `items()` of a damaged group: these generators hold h5py's global
        # lock while they are suspended, and one that an exception keeps alive is never released.
        groups = [_child(self._data, key) for key in _keys(self._data)]
        has_observations = [isinstance(group, h5py.Group) and "obs" in group for group in groups]
        return "env_args" in self._data.attrs or any(has_observations)

    def _dataset(self, group: h5py.Group, key: str, where: str) -> h5py.Dataset:
        with self._reading(f"{where}: dataset {key!r}"):
            found = _child(group, key)
        if not isinstance(found, h5py.Dataset):
            raise DataError(
                f"{where} has no dataset {key!r}; it holds {', '.join(group) or 'nothing'}. "
                "Record or convert it again, or leave the demonstration out"
            )
        return found

    def _numbers(self, group: h5py.Group, key: str, where: str) -> NDArray[np.float64]:
        return self._read(self._dataset(group, key, where), key, where)

    def _read(self, dataset: h5py.Dataset, key: str, where: str) -> NDArray[np.float64]:
        with self._reading(f"{where}: dataset {key!r}"):
            values = dataset[()]
        if not np.issubdtype(values.dtype, np.number) and values.dtype != np.bool_:
            raise DataError(f"{where}: dataset {key!r} holds {values.dtype}, expected numbers")
        return np.asarray(values, np.float64)

    def _matrix(self, group: h5py.Group, key: str, where: str) -> NDArray[np.float64]:
        values = self._numbers(group, key, where)
        if values.ndim != 2:
            raise DataError(
                f"{where}: dataset {key!r} has shape {values.shape}, expected (steps, dimensions)"
            )
        return values

    def _flags(self, group: h5py.Group, length: int, where: str) -> dict[str, Flags]:
        present = [key for key in FLAGS if key in group]
        return {key: as_flags(self._numbers(group, key, where), length, f"{where}: {key}") for key in present}

    def _observations(self, group: h5py.Group, key: str, length: int, where: str) -> dict[str, Array]:
        """The low-dimensional arrays (T, D) of an observation group; images are left where they are."""
        found: dict[str, Array] = {}
        for name, dataset in self._members(group, key, where).items():
            if not _may_be_images(name, dataset):
                values = self._read(dataset, name, f"{where}: {key}")
                if len(values) != length:
                    raise DataError(f"{where}: {key}/{name} has {len(values)} rows for {length} actions")
                found[name] = values.reshape(length, -1)
        return found

    def _members(self, group: h5py.Group, key: str, where: str) -> dict[str, h5py.Dataset]:
        """The datasets of an observation group; none when there is no such group."""
        with self._reading(f"{where}: {key}"):
            observations = _child(group, key)
            if not isinstance(observations, h5py.Group):
                return {}
            children = {name: _child(observations, name) for name in _keys(observations)}
        return {name: child for name, child in children.items() if isinstance(child, h5py.Dataset)}

    @contextmanager
    def _reading(self, where: str) -> Generator[None]:
        try:
            yield
        except (OSError, RuntimeError, KeyError) as error:
            raise _damaged(where, error) from error


def _require_hdf5(path: Path) -> None:
    if not path.exists():
        raise UsageError(f"there is no file {str(path)!r} to import")
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory, which cannot be imported. {_supported()}")
    try:
        with path.open("rb") as file:
            start = file.read(len(_SIGNATURE))
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if start != _SIGNATURE:
        kind = "an empty file" if not start else "not an HDF5 file"
        raise UsageError(f"{path.name} is {kind}. {_supported()}")


def _supported() -> str:
    return "Supported are: " + "; ".join(SUPPORTED)


def _keys(group: h5py.Group) -> list[str]:
    return [str(key) for key in group]


def _child(group: h5py.Group, key: str) -> h5py.Group | h5py.Dataset | h5py.Datatype | None:
    """A member of a group, None where there is none. Unlike ``get``, a damaged member is an error."""
    return group[key] if key in _keys(group) else None


def _may_be_images(name: str, dataset: h5py.Dataset) -> bool:
    return dataset.ndim > 2 or name.endswith("_image")


def _damaged(where: str, error: BaseException) -> DataError:
    return DataError(
        f"{where} cannot be read: the file is truncated or damaged ({first_line(error)}); copy it again"
    )


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
