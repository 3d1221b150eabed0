"""Build a stream aside and publish it whole: an import that fails or is killed leaves no half stream.

While it is built, the stream lies in the hidden directory ``<replay>/.import-<stream>``, which no reader
looks into. A rename publishes it. What a killed import left there is removed by the next one.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from flowrl.errors import ReplayError
from flowrl.replay import storage
from flowrl.replay.importers.report import read_report
from flowrl.replay.lock import LOCK_FILE, WriterLock
from flowrl.replay.writer import CommitRule

COMMITS = CommitRule(seconds=1e9, rows=16_384, open_seconds=1e9)
"""Nobody reads the stream before it is published, so commits only bound the memory."""


@contextmanager
def staged(replay: Path, stream: str, replace: bool) -> Generator[Path]:
    """A directory in which to create ``stream``; leaving the context without an error publishes it.

    Raises ReplayError when the stream exists (with ``replace``: when it is not an import, or has a live
    writer), or when another process imports into it now.
    """
    storage.check_name(stream)
    created = not replay.exists()
    aside = replay / f".import-{stream}"
    aside.mkdir(parents=True, exist_ok=True)
    lock = _own(aside, stream)
    try:
        _recover(aside, replay / stream)
        _require_free(replay / stream, replace)
        yield aside
        _publish(aside, replay / stream, replace)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        lock.release()
        if created:
            # An import that was refused does not leave an empty replay behind.
            with contextlib.suppress(OSError):
                replay.rmdir()


def _own(aside: Path, stream: str) -> WriterLock:
    try:
        return WriterLock(aside)
    except ReplayError as error:
        raise ReplayError(
            f"another process is importing into stream {stream!r} of replay {str(aside.parent)!r}; wait for "
            "it, or choose another --stream"
        ) from error


def _recover(aside: Path, path: Path) -> None:
    """Put back the stream that a killed replacement had moved away; remove what else was left."""
    former = _former(aside)
    if former.exists() and not path.exists():
        former.rename(path)
    for entry in aside.iterdir():
        if entry.name != LOCK_FILE:
            shutil.rmtree(entry)


def _require_free(path: Path, replace: bool) -> None:
    if not path.exists():
        return
    where = f"stream {path.name!r} already exists in replay {str(path.parent)!r}"
    if not replace:
        raise ReplayError(f"{where}; replace it with --replace, or choose another --stream")
    if read_report(path) is None:
        raise ReplayError(
            f"{where} and was not imported: only imports can be replaced, other data cannot be had again. "
            "Choose another --stream"
        )
    WriterLock(path).release()


def _publish(aside: Path, path: Path, replace: bool) -> None:
    if replace and path.exists():
        path.rename(_former(aside))
    try:
        (aside / path.name).rename(path)
    except OSError as error:
        raise ReplayError(
            f"stream {path.name!r} appeared in replay {str(path.parent)!r} while it was imported; nothing was "
            "changed. Choose another --stream"
        ) from error


def _former(aside: Path) -> Path:
    return aside / ".former"
