"""Small LeRobotDatasets written with pyarrow and PyAV alone, so that each of their parts can be broken."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

pa = pytest.importorskip("pyarrow", reason="LeRobot datasets need it")
pq = pytest.importorskip("pyarrow.parquet", reason="LeRobot datasets need it")
av = pytest.importorskip("av", reason="LeRobot datasets need it")

FPS = 20
LENGTHS = (5, 7, 4)
TASKS = ("push", "pull", "push")
HEIGHT, WIDTH = 24, 32
FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def shade(episode: int, step: int) -> int:
    """The grey of a frame, which tells its episode and step."""
    return 20 + 70 * episode + 8 * step


def frame(episode: int, step: int) -> NDArray[np.uint8]:
    """A frame (height, width, 3): grey, its upper half darker."""
    out = np.full((HEIGHT, WIDTH, 3), shade(episode, step), np.uint8)
    out[: HEIGHT // 2] -= 20
    return out


def png(pixels: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def features() -> dict[str, dict[str, Any]]:
    """What ``meta/info.json`` says by default."""
    camera = {"shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]}
    numbers = {"dtype": "float32", "names": None}
    bookkeeping = {
        name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
        for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
    }
    return {
        "observation.environment_state": {**numbers, "shape": [1]},
        "observation.state": {**numbers, "shape": [2], "names": {"motors": ["x", "y"]}},
        FRONT: {**camera, "dtype": "video"},
        WRIST: {**camera, "dtype": "image"},
        "action": {**numbers, "shape": [2], "names": ["push", "grip"]},
        "next.reward": {**numbers, "shape": [1]},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "next.success": {"dtype": "bool", "shape": [1], "names": None},
        **bookkeeping,
    }


def columns(lengths: Sequence[int] = LENGTHS, tasks: Sequence[str] = TASKS) -> dict[str, list[Any]]:
    """Rows of the data file: x counts all frames; the first episode succeeds on its last step."""
    texts = list(dict.fromkeys(tasks))
    pairs = [(e, t) for e, length in enumerate(lengths) for t in range(length)]
    last = [t == lengths[e] - 1 for e, t in pairs]
    return {
        "observation.environment_state": [float(e) for e, _ in pairs],
        "observation.state": [[float(i), -float(i)] for i in range(len(pairs))],
        WRIST: [{"bytes": png(frame(e, t)), "path": None} for e, t in pairs],
        "action": [[i / 100, 1.0] for i in range(len(pairs))],
        "next.reward": [float(e == 0 and end) for (e, _), end in zip(pairs, last, strict=True)],
        "next.done": last,
        "next.success": [e == 0 and end for (e, _), end in zip(pairs, last, strict=True)],
        "timestamp": [t / FPS for _, t in pairs],
        "frame_index": [t for _, t in pairs],
        "episode_index": [e for e, _ in pairs],
        "index": list(range(len(pairs))),
        "task_index": [texts.index(tasks[e]) for e, _ in pairs],
    }


def write_video(path: Path, frames: Sequence[NDArray[np.uint8]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "10", "g": "2"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())


def write_parquet(path: Path, values: Mapping[str, Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array(list(each)) for name, each in values.items()}), path)


def write_dataset(
    root: Path,
    *,
    without: Sequence[str] = (),
    change: Mapping[str, Any] | None = None,
    video_frames: int | None = None,
    file_of: Sequence[int] = (0, 0, 0),
    **info: Any,
) -> Path:
    """Three episodes, by default in one data file and one video.

    ``without`` leaves features out, ``change`` replaces columns, ``video_frames`` cuts the videos,
    ``file_of`` are the numbers of each episode's files, ``info`` adds to ``meta/info.json``.
    """
    described = {name: each for name, each in features().items() if name not in without}
    values = {**columns(), **(change or {})}
    values = {name: each for name, each in values.items() if name in described}
    (root / "meta").mkdir(parents=True)
    text = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "features": described,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "robot_type": "arm",
    }
    (root / "meta/info.json").write_text(json.dumps({**text, **info}))
    if "action" in values:
        actions = np.asarray(values["action"], np.float64)
        stats = {"min": actions.min(axis=0).tolist(), "max": actions.max(axis=0).tolist()}
        (root / "meta/stats.json").write_text(json.dumps({"action": stats}))
    texts = list(dict.fromkeys(TASKS))
    write_parquet(root / "meta/tasks.parquet", {"task_index": range(len(texts)), "task": texts})
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    count = len(LENGTHS)
    owners = np.repeat(file_of, LENGTHS)
    # Where an episode begins in its file.
    within = [sum(LENGTHS[f] for f in range(e) if file_of[f] == file_of[e]) for e in range(count)]
    for number in set(file_of):
        part = {
            name: [each[row] for row in np.flatnonzero(owners == number)] for name, each in values.items()
        }
        write_parquet(root / f"data/chunk-000/file-{number:03d}.parquet", part)
    episodes: dict[str, Sequence[Any]] = {
        "episode_index": range(count),
        "tasks": [[task] for task in TASKS],
        "length": LENGTHS,
        "data/chunk_index": [0] * count,
        "data/file_index": file_of,
        "dataset_from_index": starts[:-1].tolist(),
        "dataset_to_index": starts[1:].tolist(),
    }
    if FRONT in described:
        episodes |= {f"videos/{FRONT}/chunk_index": [0] * count, f"videos/{FRONT}/file_index": file_of}
        for key, added in (("from_timestamp", [0] * count), ("to_timestamp", LENGTHS)):
            episodes[f"videos/{FRONT}/{key}"] = [
                float(start + each) / FPS for start, each in zip(within, added, strict=True)
            ]
        frames = [frame(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]
        for number in set(file_of):
            shown = [frames[row] for row in np.flatnonzero(owners == number)]
            write_video(root / f"videos/{FRONT}/chunk-000/file-{number:03d}.mp4", shown[:video_frames])
    write_parquet(root / "meta/episodes/chunk-000/file-000.parquet", episodes)
    return root
