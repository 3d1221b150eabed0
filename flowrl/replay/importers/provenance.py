"""Where a stream comes from: the digest of its source, and the refusal to import the same twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from flowrl.checkpoint.disk import Disk
from flowrl.errors import DataError, ReplayError, UsageError
from flowrl.replay.importers.report import REPORT_FILE, Dropped, ImportReport, imported


def source_digest(source: Path) -> str:
    """SHA-256 of a file's bytes, or of a directory: over the relative paths, sorted, and contents of its files."""
    if source.is_file():
        return _file_digest(source).hex()
    whole = hashlib.sha256()
    files = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
    for name in sorted(files):
        # The digest of a content has a fixed length and a path holds no NUL, so nothing can be confused.
        whole.update(name.encode() + b"\0" + _file_digest(files[name]))
    return whole.hexdigest()


def require_new(replay: Path, stream: str, sha256: str, source: str, names: Sequence[str]) -> None:
    """Raise ReplayError when another stream holds demonstrations of the same bytes."""
    for other in imported(replay):
        again = [name for name in names if name in other.demonstrations]
        if other.stream != stream and other.sha256 == sha256 and again:
            raise ReplayError(
                f"{source} is already in replay {str(replay)!r}: stream {other.stream!r} holds {len(again)} of "
                "these demonstrations, and each would count twice. Use that stream, replace it "
                f"(--stream {other.stream} --replace), or pass --allow-duplicate"
            )


def first_of(names: Sequence[str], limit: int | None, source: str) -> tuple[list[str], list[Dropped]]:
    """The first ``limit`` demonstrations (all without a limit), and those beyond it as dropped.

    Raises UsageError for a limit below 1, DataError when there is no demonstration.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; it must be at least 1")
    if not names:
        raise DataError(f"{source} holds no demonstration to import; nothing was imported")
    kept = list(names[:limit])
    beyond = len(names) - len(kept)
    dropped = [Dropped("demonstrations", beyond, f"beyond the limit of {limit}")] if beyond else []
    return kept, dropped


def keep_report(report: ImportReport, directory: Path) -> None:
    """Write the report into the directory of its stream."""
    text = json.dumps(report.to_json(), indent=2) + "\n"
    Disk().write(directory / REPORT_FILE, text.encode())


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
