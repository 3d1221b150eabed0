"""Versions of the acting policy, published by the learner and pulled by actors and servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowrl.checkpoint import directory as one
from flowrl.checkpoint.directory import Writer
from flowrl.checkpoint.disk import Disk
from flowrl.checkpoint.store import LATEST, NumberedDirectories
from flowrl.errors import CheckpointError

_TRIES = 20


class WeightsStore:
    """Policy versions in a directory: ``<version>/policy/`` and a state, the newest few kept.

    One process publishes. A reader verifies hashes, and when the version it reads is pruned
    meanwhile it takes the newest instead.
    """

    def __init__(self, directory: Path, keep: int = 3, disk: Disk | None = None) -> None:
        self._disk = disk or Disk(durable=False)
        self._numbered = NumberedDirectories(directory, self._disk)
        self._keep = keep

    @property
    def directory(self) -> Path:
        """Where the versions lie."""
        return self._numbered.directory

    def latest(self) -> int | None:
        """The newest published version, or None before the first."""
        return self._numbered.pointer()

    def publish(self, version: int, policy_writer: Writer, state: Mapping[str, Any] | None = None) -> Path:
        """Write a version, flip the pointer to it, prune old ones.

        ``policy_writer`` creates and fills the subdirectory ``policy`` that it is given.

        Raises:
            CheckpointError: the version is not above the latest, or the disk refuses.
        """
        latest = self.latest()
        if latest is not None and version <= latest:
            raise CheckpointError(
                f"weights {self.directory}: version {version} is not above the latest, {latest}; "
                f"publish {latest + 1}, or rewind first when the run went back"
            )
        self._numbered.clean()
        path = self.directory / str(version)
        one.save(path, state or {}, extra_dirs={"policy": policy_writer}, disk=self._disk)
        try:
            self._numbered.point_to(version)
        except OSError as error:
            raise CheckpointError(f"weights {path}: the pointer cannot be written ({error})") from error
        for old in self._numbered.numbers()[: -self._keep]:
            self._numbered.remove(old)
        return path

    def rewind(self, version: int) -> None:
        """Forget versions above ``version``: a run that resumes from before them publishes them again."""
        kept = [number for number in self._numbered.numbers() if number <= version]
        if kept:
            self._numbered.point_to(kept[-1])
        else:
            self._disk.remove(self.directory / LATEST)
        for number in self._numbered.numbers():
            if number > version:
                self._numbered.remove(number)

    def pull(self, newer_than: int | None = None) -> tuple[int, Path] | None:
        """The newest version above ``newer_than`` and its verified directory, or None.

        The directory stays until ``keep`` newer versions were published; use `read` to load from it.

        Raises:
            CheckpointError: the newest version is damaged.
        """
        return self.read(lambda path: path, newer_than)

    def read[T](self, load: Callable[[Path], T], newer_than: int | None = None) -> tuple[int, T] | None:
        """Load the newest version above ``newer_than``; again with the newest if it was pruned meanwhile.

        Raises:
            CheckpointError: the newest version is damaged.
        """
        for _ in range(_TRIES):
            version = self.latest()
            if version is None or (newer_than is not None and version <= newer_than):
                return None
            path = self.directory / str(version)
            try:
                one.verify(path)
                return version, load(path)
            except (CheckpointError, OSError):
                if path.is_dir():
                    raise
        raise CheckpointError(
            f"weights {self.directory}: {_TRIES} versions in a row vanished while being read; "
            f"the learner publishes faster than {self._keep} versions last: publish less often"
        )
