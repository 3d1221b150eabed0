"""Frames of a LeRobotDataset's videos, decoded from front to back. A file holds many episodes in a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowrl.errors import DataError
from flowrl.replay.extras import data_module
from flowrl.replay.frames import Pixels
from flowrl.replay.importers.lerobot_files import VideoPlace
from flowrl.replay.storage import first_line


class MissingFrames(DataError):
    """A video ends early, is damaged, or has a gap, so an episode lacks frames."""


class VideoCursor:
    """One camera's videos. Going forward decodes every frame once; going back starts the file again."""

    def __init__(self, root: Path, fps: float) -> None:
        self._root, self._fps = root, fps
        self._path: Path | None = None
        self._container: Any = None
        self._frames: Iterator[Any] = iter(())
        self._frame: Any = None
        self._reached = 0.0

    def frames(self, place: VideoPlace, count: int, where: str) -> Iterator[Pixels]:
        """``count`` frames (3, height, width) from ``place.start`` on, one every 1/fps seconds.

        Raises DataError when the file is missing or is no video, MissingFrames when it lacks a frame.
        """
        self._open(place, where)
        half = 0.5 / self._fps
        for step in range(count):
            wanted = place.start + step / self._fps
            while self._frame is not None and self._frame.time < wanted - half:
                self._advance(where, step)
            if self._frame is None or self._frame.time > wanted + half:
                raise MissingFrames(
                    f"{where}: {self._name(place.path)} shows {step} of its {count} frames, none at {wanted:.3f} s; "
                    "the video was cut short. Copy it again, or drop such episodes with --salvage"
                )
            yield self._frame.to_ndarray(format="rgb24").transpose(2, 0, 1)

    def close(self) -> None:
        """Close the file."""
        if self._container is not None:
            self._container.close()
        self._path = self._container = self._frame = None

    def _open(self, place: VideoPlace, where: str) -> None:
        if place.path == self._path and self._reached <= place.start + 0.5 / self._fps:
            return
        self.close()
        name = self._name(place.path)
        if not place.path.exists():
            raise DataError(f"{where}: {name} is missing; the dataset is incomplete, copy it again")
        av = data_module("av")
        try:
            self._container = av.open(str(place.path))
            self._frames = self._container.decode(video=0)
        except (av.error.FFmpegError, IndexError) as error:
            raise DataError(
                f"{where}: {name} is no video that can be opened ({first_line(error)})"
            ) from error
        self._path, self._reached = place.path, 0.0
        self._advance(where, 0)

    def _advance(self, where: str, step: int) -> None:
        av = data_module("av")
        try:
            self._frame = next(self._frames, None)
        except av.error.FFmpegError as error:
            path, self._frame = self._path, None
            raise MissingFrames(
                f"{where}, step {step}: {self._name(path)} is damaged ({first_line(error)}); copy it again, or "
                "drop such episodes with --salvage"
            ) from error
        if self._frame is not None:
            self._reached = self._frame.time

    def _name(self, path: Path | None) -> str:
        return "the video" if path is None else path.relative_to(self._root.parent).as_posix()
