"""The few file operations that a save is made of, in one place, so that a test can stop it at each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


class Disk:
    """File operations. ``durable`` makes `sync` wait for the medium.

    ``step`` is called before every operation, and once in the middle of a write, with the operation's
    name. It does nothing; tests override it to fail there.
    """

    def __init__(self, durable: bool = True) -> None:
        self.durable = durable

    def step(self, operation: str, path: Path) -> None:
        """Called before each operation."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, the new entries synced."""
        missing = [each for each in (path, *path.parents) if not each.exists()]
        self.step("make directory", path)
        path.mkdir(parents=True, exist_ok=True)
        for each in reversed(missing):
            self.sync(each.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file and sync it."""
        self.step("write", path)
        with path.open("wb", buffering=0) as file:
            _write_all(file.fileno(), data[: len(data) // 2])
            self.step("write second half", path)
            _write_all(file.fileno(), data[len(data) // 2 :])
        self.sync(path)

    def fill(self, path: Path, writer: Callable[[Path], None]) -> None:
        """Let ``writer`` write a file or a directory, and sync all of it."""
        self.step("fill", path)
        writer(path)
        for each in sorted(path.rglob("*")) if path.is_dir() else []:
            self.sync(each)
        self.sync(path)

    def sync(self, path: Path) -> None:
        """Wait until a file's bytes, or a directory's entries, are on the medium."""
        self.step("sync", path)
        if not self.durable:
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one directory and sync the directory."""
        self.step("rename", target)
        source.replace(target)
        self.sync(target.parent)

    def remove(self, path: Path) -> None:
        """Remove a file or a directory with all it holds; nothing happens when it is gone already."""
        self.step("remove", path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
