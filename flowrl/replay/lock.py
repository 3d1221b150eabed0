"""The lock that gives a stream one writer: a small file that names the process which owns it.

The file is never deleted, so two processes can never hold two different files of the same name. The
owner counts as gone when its process is dead, a zombie, or another process that got the same number.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrl.errors import ReplayError

LOCK_FILE = "writer.lock"


class WriterLock:
    """Ownership of one stream by this process, from construction to `release`.

    Raises ReplayError naming the stream and the owner when a live process holds it.
    """

    def __init__(self, stream: Path) -> None:
        self._path = stream / LOCK_FILE
        with _exclusive(self._path) as descriptor:
            owner = _read(descriptor)
            if owner is not None and _is_alive(owner):
                raise ReplayError(
                    f"stream {stream.name!r} in replay {str(stream.parent)!r} already has a writer: process "
                    f"{owner['pid']} on {owner['host']}. One writer owns one stream: close that writer, or "
                    f"give this one another stream name (if that host is gone for good, delete {LOCK_FILE})"
                )
            _write(
                descriptor, {"pid": os.getpid(), "host": socket.gethostname(), "start": _start(os.getpid())}
            )

    def release(self) -> None:
        """Give the stream up. Does nothing when another process has taken it over."""
        if not self._path.exists():
            return
        with _exclusive(self._path) as descriptor:
            owner = _read(descriptor)
            if owner is not None and owner["pid"] == os.getpid() and owner["host"] == socket.gethostname():
                _write(descriptor, None)


@contextmanager
def _exclusive(path: Path) -> Generator[int]:
    """The open lock file; only one process at a time is inside, so taking over cannot race."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any] | None:
    text = os.pread(descriptor, 4096, 0)
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        # Half a line: its writer died while taking the lock.
        return None


def _write(descriptor: int, owner: dict[str, Any] | None) -> None:
    os.ftruncate(descriptor, 0)
    if owner is not None:
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _is_alive(owner: dict[str, Any]) -> bool:
    if owner["host"] != socket.gethostname():
        return True
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    start = _start(owner["pid"])
    return start != "zombie" and start == owner["start"]


def _start(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "zombie" if fields[0] == "Z" else fields[19]
