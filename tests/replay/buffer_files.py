"""Small replay buffers of diffusion_policy for the importer's tests."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray

ENDS = [3, 7]
"""Two episodes, of 3 and 4 steps."""


def arrays() -> dict[str, NDArray[Any]]:
    """Seven steps: what PushT's buffer holds, small."""
    random = np.random.default_rng(0)
    return {
        "action": np.stack([np.arange(7.0) * 10, 5 - np.arange(7.0)], axis=1).astype(np.float32),
        "state": random.normal(size=(7, 5)).astype(np.float64),
        "keypoint": random.normal(size=(7, 3, 2)).astype(np.float32),
        "n_contacts": np.arange(7.0, dtype=np.float32)[:, None],
        "img": random.integers(0, 256, (7, 6, 8, 3)).astype(np.float32),
    }


def write_buffer(path: Path, data: Mapping[str, Any] | None = None, ends: Any = ENDS) -> Path:
    """A buffer in zarr's format 2, in chunks of two rows, compressed with blosc; None leaves an array out."""
    root = zarr.open_group(path, mode="w", zarr_format=2)
    held = {f"data/{key}": value for key, value in {**arrays(), **(data or {})}.items()}
    for name, values in {**held, "meta/episode_ends": ends}.items():
        if values is not None:
            array = np.asarray(values)
            chunks = (2, *array.shape[1:]) if array.ndim else ()
            root.create_array(name, data=array, chunks=chunks, compressors=Blosc())
    return path


def zipped(buffer: Path, prefix: str = "") -> Path:
    """The same buffer as an archive beside it."""
    path = buffer.with_name(f"{buffer.name}.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(buffer.rglob("*")):
            if file.is_file():
                archive.write(file, prefix + file.relative_to(buffer).as_posix())
    return path


def change_metadata(buffer: Path, name: str, **changes: Any) -> None:
    """Change what the metadata of an array says."""
    file = buffer / name / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
