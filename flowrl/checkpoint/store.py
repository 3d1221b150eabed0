"""The checkpoints of a run: one directory per step and a pointer to the latest."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.checkpoint import directory as one
from flowrl.checkpoint.directory import Writer, former_or_self
from flowrl.checkpoint.disk import Disk
from flowrl.checkpoint.state import State
from flowrl.errors import CheckpointError

LATEST = "latest"
_REMOVING = ".removing-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and verified. ``skipped`` says which newer ones were damaged, and how."""

    step: int
    directory: Path
    state: State
    skipped: tuple[str, ...] = ()


class NumberedDirectories:
    """Directories named by a number, with a pointer file to the latest; shared by both stores."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.directory = Path(directory)
        self._disk = disk

    def numbers(self) -> list[int]:
        """The numbers present, ascending."""
        if not self.directory.is_dir():
            return []
        names = {path.name.removeprefix(one.REPLACED) for path in self.directory.iterdir()}
        return sorted(int(name) for name in names if name.isdecimal())

    def path(self, number: int) -> Path:
        """Where a number's directory is."""
        return former_or_self(self.directory / str(number))

    def pointer(self) -> int | None:
        """The number that the pointer file names; None without a pointer or with an unreadable one."""
        try:
            text = (self.directory / LATEST).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return int(text) if text.isdecimal() else None

    def point_to(self, number: int) -> None:
        """Flip the pointer."""
        aside = self.directory / f"{one.SAVING}{LATEST}"
        self._disk.write(aside, f"{number}\n".encode())
        self._disk.rename(aside, self.directory / LATEST)

    def remove(self, number: int) -> None:
        """Remove a directory; renamed first, so that a reader never finds half of it."""
        removing = self.directory / f"{_REMOVING}{number}"
        self._disk.rename(self.path(number), removing)
        self._disk.remove(removing)

    def clean(self) -> None:
        """Remove what a killed save or removal left; bring back what a killed replacement moved."""
        if not self.directory.is_dir():
            return
        for path in self.directory.iterdir():
            if path.name.startswith(one.REPLACED):
                home = self.directory / path.name.removeprefix(one.REPLACED)
                if not home.exists():
                    self._disk.rename(path, home)
                    continue
            if path.name.startswith((one.SAVING, one.REPLACED, _REMOVING)):
                self._disk.remove(path)


class CheckpointStore:
    """The checkpoints under ``<run>/checkpoints``. One process writes; any may read."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._numbered = NumberedDirectories(directory, self._disk)

    @property
    def directory(self) -> Path:
        """Where the checkpoints lie."""
        return self._numbered.directory

    def save(
        self, step: int, state: Mapping[str, Any], extra_dirs: Mapping[str, Writer] | None = None
    ) -> Path:
        """Save a checkpoint and make it the latest; first remove what a killed save left.

        ``extra_dirs`` maps a subdirectory's name to a function that creates and fills it, for example
        ``{"policy": lambda path: save_policy(policy, path)}``.

        Raises:
            CheckpointError: as `flowrl.checkpoint.save`; the former checkpoints stay.
        """
        self._numbered.clean()
        path = self.directory / str(step)
        one.save(path, state, extra_dirs=extra_dirs, disk=self._disk)
        try:
            self._numbered.point_to(step)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path} is complete, but the pointer {self.directory / LATEST} cannot be "
                f"written ({error}); free disk space, then resume the run"
            ) from error
        return path

    def list(self) -> list[int]:
        """The steps that have a checkpoint, ascending; they are not verified."""
        return self._numbered.numbers()

    def latest(self) -> int | None:
        """The step of the latest checkpoint, or None when there is none."""
        steps, pointer = self.list(), self._numbered.pointer()
        return pointer if pointer in steps else max(steps, default=None)

    def load(self, step: int) -> Loaded:
        """The checkpoint of one step. Raises CheckpointError when it is missing or damaged."""
        path = self._numbered.path(step)
        if not path.is_dir():
            known = ", ".join(map(str, self.list())) or "none"
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}; it has: {known}")
        return Loaded(step, path, one.load(path))

    def load_latest(self) -> Loaded | None:
        """The latest checkpoint, or the one before it when that is damaged; None when there is none.

        A damaged one is logged and named in ``skipped``.

        Raises:
            CheckpointError: there are checkpoints and all are damaged.
        """
        skipped: list[str] = []
        for step in self._newest_first():
            try:
                loaded = self.load(step)
            except CheckpointError as error:
                _log.warning("%s", error)
                skipped.append(str(error))
                continue
            return Loaded(step, loaded.directory, loaded.state, tuple(skipped))
        if skipped:
            raise CheckpointError("no checkpoint can be read:\n" + "\n".join(f"  {text}" for text in skipped))
        return None

    def prune(self, keep: int, protect: Collection[int] = ()) -> list[int]:
        """Remove all but the newest ``keep``, the latest and the protected ones; return what went."""
        self._numbered.clean()
        steps = self._newest_first()
        spared = {*steps[: max(keep, 1)], *protect}
        removed = sorted(step for step in steps if step not in spared)
        for step in removed:
            self._numbered.remove(step)
        return removed

    def _newest_first(self) -> list[int]:
        """The latest, those before it, then those after it: a run that went back owns no later ones."""
        latest = self.latest()
        if latest is None:
            return []
        return sorted(self.list(), key=lambda step: (step > latest, -step))
