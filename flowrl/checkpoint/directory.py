"""One checkpoint directory: written aside, synced, renamed; verified against its manifest on load."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flowrl.checkpoint.disk import Disk
from flowrl.checkpoint.state import State, decode, encode
from flowrl.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"
TENSORS = "state.safetensors"
SAVING = ".saving-"
REPLACED = ".replaced-"

Writer = Callable[[Path], None]


def save(
    directory: Path,
    state: Mapping[str, Any],
    *,
    extra_dirs: Mapping[str, Writer] | None = None,
    durable: bool = True,
    disk: Disk | None = None,
) -> None:
    """Save a state (see `flowrl.checkpoint.state`) as a directory, replacing one of the same name.

    ``extra_dirs`` maps the name of a subdirectory to a function that creates and fills it. A kill at
    any instant leaves the former directory or the new one. After a failure nothing new is left.

    Raises:
        CheckpointError: a value cannot be stored, or the disk refuses (the cause is named).
    """
    tree, tensors = encode(state)
    disk = disk or Disk(durable)
    aside = directory.parent / f"{SAVING}{directory.name}"
    try:
        disk.make_directory(directory.parent)
        disk.remove(aside)
        _write_aside(aside, tree, tensors, extra_dirs or {}, disk)
        _put_in_place(aside, directory, disk)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(_refusal(directory, error)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load(directory: Path) -> State:
    """The state of a checkpoint directory, after every file was verified.

    Raises:
        CheckpointError: the directory, or a file in it, is missing or differs from the manifest.
    """
    directory = former_or_self(directory)
    verify(directory)
    try:
        tree = json.loads((directory / STATE).read_text(encoding="utf-8"))
        return cast(State, decode(tree, load_file(directory / TENSORS)))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise damaged(directory, STATE, f"cannot be read ({error})") from None


def verify(directory: Path) -> None:
    """Check size and sha256 of every file. Raises CheckpointError naming the first that differs."""
    for name, entry in read_manifest(directory)["files"].items():
        path = directory / name
        try:
            size = path.stat().st_size
            if size != entry["size"]:
                raise damaged(directory, name, f"has {size} bytes where {entry['size']} were written")
            if _sha256(path) != entry["sha256"]:
                raise damaged(directory, name, "does not hold the bytes that were written")
        except FileNotFoundError:
            raise damaged(directory, name, "is missing") from None
        except OSError as error:
            raise damaged(directory, name, f"cannot be read ({error.strerror})") from None


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest, checked against its own digest. Raises CheckpointError when it is damaged."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["digest"] != _digest(manifest["files"]):
            raise damaged(directory, MANIFEST, "does not hold the bytes that were written")
        if manifest["format"] != FORMAT:
            found = f"has format {manifest['format']}; this version reads {FORMAT}"
            raise damaged(directory, MANIFEST, found)
    except FileNotFoundError:
        state = "is missing, so the save was never completed" if directory.is_dir() else "is missing"
        raise damaged(directory, MANIFEST, state) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(directory, MANIFEST, f"cannot be read ({error})") from None
    return manifest


def damaged(directory: Path, name: str, what: str) -> CheckpointError:
    """The error for a damaged checkpoint, naming the others beside it."""
    return CheckpointError(f"checkpoint {directory}: {name} {what}; {_remedy(directory)}")


def _remedy(directory: Path) -> str:
    others = [path.parent.name for path in directory.parent.glob(f"*/{MANIFEST}") if path.parent != directory]
    others = sorted((name for name in others if not name.startswith(".")), key=_by_step, reverse=True)
    return (
        f"use an earlier checkpoint: {', '.join(others)}" if others else "no other checkpoint lies beside it"
    )


def _by_step(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (-1, name)


def _write_aside(
    aside: Path, tree: Any, tensors: Mapping[str, Any], extra_dirs: Mapping[str, Writer], disk: Disk
) -> None:
    disk.make_directory(aside)
    disk.write(aside / STATE, json.dumps(tree, allow_nan=False).encode())
    disk.fill(aside / TENSORS, lambda path: save_file(dict(tensors), path))
    for name, writer in extra_dirs.items():
        disk.fill(aside / name, writer)
    files = {
        path.relative_to(aside).as_posix(): {"size": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(aside.rglob("*"))
        if path.is_file()
    }
    manifest = {"format": FORMAT, "files": files, "digest": _digest(files)}
    disk.write(aside / MANIFEST, json.dumps(manifest, indent=1).encode())
    disk.sync(aside)


def _put_in_place(aside: Path, directory: Path, disk: Disk) -> None:
    # A directory cannot be swapped for another in one step, so the former one steps aside under a name
    # that `former_or_self` looks at as well.
    replaced = directory.parent / f"{REPLACED}{directory.name}"
    if directory.exists():
        disk.remove(replaced)
        disk.rename(directory, replaced)
    disk.rename(aside, directory)
    disk.remove(replaced)


def former_or_self(directory: Path) -> Path:
    """The directory, or its former state when a save that replaced it was killed halfway."""
    replaced = directory.parent / f"{REPLACED}{directory.name}"
    return replaced if not directory.exists() and replaced.exists() else directory


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(files: object) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _refusal(directory: Path, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or any(
        text in str(error) for text in ("No space left", "File too large", "quota exceeded")
    )
    remedy = "check the directory's permissions and medium"
    if full:
        remedy = "free disk space or keep fewer checkpoints, then resume the run"
    return f"checkpoint {directory}: cannot be saved ({error}); {_kept(directory)}; {remedy}"


def _kept(directory: Path) -> str:
    names = [path.parent.name for path in directory.parent.glob(f"*/{MANIFEST}")]
    names = sorted((name for name in names if not name.startswith(".")), key=_by_step)
    return f"the former checkpoints are untouched: {', '.join(names)}" if names else "none was saved before"
