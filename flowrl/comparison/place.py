"""The directory of a comparison: where everything lies, and the lock that gives it one owner."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowrl.errors import UsageError
from flowrl.learner.run import Run

MEASURED = "measured.json"
"""In a run's directory: what a comparison measured beyond the run's own result. Written last."""


@dataclass(frozen=True)
class Place:
    """A comparison's directory by its parts. It can be moved as a whole."""

    directory: Path

    @property
    def plan(self) -> Path:
        """What is compared; the recipes, resolved, lie in ``recipes/``."""
        return self.directory / "plan.json"

    @property
    def recipes(self) -> Path:
        """Resolved recipes by name."""
        return self.directory / "recipes"

    @property
    def figures(self) -> Path:
        """Figures as SVG and PNG files."""
        return self.directory / "figures"

    def base(self, seed: int) -> Path:
        """What all recipes of a seed share: ``replay/``, ``policy/`` and its evaluation ``base.json``."""
        return self.directory / "bases" / f"seed-{seed}"

    def run(self, recipe: str, seed: int) -> Run:
        """The run of one recipe and seed."""
        return Run(self.directory / "runs" / f"{recipe}-{seed}")

    def log(self, job: str) -> Path:
        """What a job's process printed."""
        return self.directory / "logs" / f"{job}.log"

    def progress(self, job: str) -> Path:
        """Where a running job says how far it is."""
        return self.directory / "logs" / f"{job}.progress.json"

    @classmethod
    def fresh(cls, root: Path) -> Place:
        """``<root>/compare-<n>`` with the smallest free n, made."""
        root.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            try:
                (root / f"compare-{number}").mkdir()
                return cls(root / f"compare-{number}")
            except FileExistsError:
                number += 1

    @contextmanager
    def owned(self) -> Generator[None]:
        """Own the directory. Raises UsageError when another process does.

        The lock goes with the process, however that ends.
        """
        with locked(self.directory / ".compare.lock", wait_s=0.0):
            yield


@contextmanager
def locked(path: Path, wait_s: float) -> Generator[None]:
    """Hold an exclusive lock on a file, waiting for at most ``wait_s`` seconds.

    Raises UsageError naming the owner. The operating system releases the lock of a process that dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    end = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    owner = os.pread(descriptor, 32, 0).decode() or "unknown"
                    raise UsageError(
                        f"{path.parent} is in use by process {owner}; wait for it, or end it with Ctrl-C"
                    ) from None
                time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
