"""A bag on the disk: one file, or the directory in which rosbag2 keeps its parts and their metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flowrl.config import yaml_text
from flowrl.errors import ConfigError, DataError, UsageError
from robot_bridge.bags.mcap_file import McapFile
from robot_bridge.bags.records import Item
from robot_bridge.bags.sqlite_file import SqliteFile

METADATA = "metadata.yaml"
_SUFFIXES = (".mcap", ".db3")
_PACKED = (".mcap.zstd", ".db3.zstd")


@dataclass
class Bag:
    """The files of a bag in the order in which they were recorded. ``notes`` is what a user should know."""

    path: Path
    files: list[Path]
    notes: list[str] = field(default_factory=list[str])
    _done: int = 0
    _current: McapFile | SqliteFile | None = None

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return self.path.name

    @property
    def format(self) -> str:
        """Its storage, for reports."""
        return f"rosbag2 {'MCAP' if self.files[0].suffix == '.mcap' else 'SQLite'}"

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def position(self) -> int:
        """Bytes that were read so far."""
        return self._done + (self._current.position if self._current else 0)

    def items(self) -> Iterator[Item]:
        """What the files hold, one after another. Raises DataError when one is no bag file."""
        for path in self.files:
            self._current = McapFile(path) if path.suffix == ".mcap" else SqliteFile(path)
            yield from self._current.items()
            self._current = None
            self._done += path.stat().st_size


def is_bag(path: Path) -> bool:
    """Whether a path looks like a bag: by the ending of a file, or by what a directory holds."""
    if not path.is_dir():
        return path.name.endswith((*_SUFFIXES, *_PACKED))
    return any(entry.name.endswith((*_SUFFIXES, *_PACKED)) for entry in path.iterdir())


def open_bag(path: Path) -> Bag:
    """Find the files of a bag.

    Raises UsageError when there is no bag or it is compressed as a whole, DataError when files that its
    metadata name are missing.
    """
    if not path.exists():
        raise UsageError(f"there is no bag at {path}")
    if not path.is_dir():
        return Bag(path, [_plain(path)])
    there = sorted(
        (entry for entry in path.iterdir() if entry.name.endswith((*_SUFFIXES, *_PACKED))), key=_order
    )
    if not there:
        raise UsageError(f"{path} holds neither .mcap nor .db3 files; give the directory that rosbag2 wrote")
    if not (path / METADATA).is_file():
        note = (
            f"{path.name} has no {METADATA}: its recorder was killed. Its files were taken in the order of their "
            "numbers"
        )
        return Bag(path, [_plain(each) for each in there], [note])
    named = [_plain(_inside(path, each)) for each in _named(path)]
    left = [each.name for each in there if each not in named]
    notes = [f"{METADATA} does not name {', '.join(left)}; left out"] if left else []
    return Bag(path, named, notes)


def _named(directory: Path) -> list[str]:
    """The files that the metadata name, in order."""
    file = directory / METADATA
    try:
        read: Any = yaml_text.parse(file.read_text(encoding="utf-8"), str(file))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read ({error}); remove it, and the files are taken by their numbers"
        ) from error
    information = _mapping(_mapping(read).get("rosbag2_bagfile_information"))
    mode = str(information.get("compression_mode") or "").lower()
    if mode == "message":
        raise UsageError(
            f"{directory.name} holds messages compressed one by one, which is not read; convert it with ros2 bag "
            "convert, or record with --compression-mode file or MCAP's own compression"
        )
    names = information.get("relative_file_paths")
    if not isinstance(names, list) or not names:
        raise DataError(f"{file} names no files; remove it, and the files are taken by their numbers")
    return [str(each) for each in cast(list[Any], names)]


def _inside(directory: Path, name: str) -> Path:
    """A file of the directory. Old metadata name it from outside, and nothing outside is read."""
    path = directory / Path(name).name
    if not path.is_file() and not path.with_suffix(path.suffix + ".zstd").is_file():
        raise DataError(
            f"{directory.name} lacks {path.name}, which its {METADATA} names; copy it too, or take it out of there"
        )
    return path


def _plain(path: Path) -> Path:
    """The file itself. Raises UsageError when it is compressed as a whole, or no bag."""
    packed = path if path.name.endswith(_PACKED) else path.with_name(path.name + ".zstd")
    if path.name.endswith(_PACKED) or (not path.is_file() and packed.is_file()):
        raise UsageError(f"{packed.name} is compressed as a whole; unpack it first: zstd -d {packed.name}")
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{path.name} is no bag; expected .mcap or .db3")
    return path


def _order(path: Path) -> tuple[str, int, str]:
    """rosbag2 numbers the parts of a bag without leading zeros."""
    match = re.fullmatch(r"(.*?)_?(\d+)\.\w+(\.zstd)?", path.name)
    return (match[1], int(match[2]), path.name) if match else (path.name, -1, path.name)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}
