"""The newest camera frames of a stream, held in memory until they are committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import icechunk
import numpy as np

from flowrl.errors import DataError
from flowrl.replay.frames import FrameCodec, encoded_frames
from flowrl.replay.schema import Array
from flowrl.replay.storage import StreamArrays, layouts
from flowrl.replay.tail import Tail
from flowrl.spec import Spec


class FrameTails:
    """Encoded frames one after another, and where those of each step and final observation lie.

    A frame equal to the one before of the same camera is stored once. Without cameras nothing is stored
    and every method does nothing.
    """

    def __init__(self, spec: Spec, codec: FrameCodec) -> None:
        self._features, self._codec = spec.cameras, codec
        self._tails: list[Tail] = []
        if self._features:
            names = ("images/bytes", "images/steps", "images/final")
            self._bytes, self._steps, self._final = self._tails = [
                Tail(name, layouts(spec)[name]) for name in names
            ]
        self._forget()

    @property
    def tails(self) -> list[Tail]:
        """What a commit writes."""
        return self._tails

    @property
    def finals(self) -> list[Tail]:
        """The tail with a row per episode, where there are cameras."""
        return self._tails[2:]

    def encode(self, observation: Mapping[str, Any] | Array, where: str) -> list[bytes]:
        """The frames of an observation as they will be stored. Raises DataError when one does not fit."""
        if not self._features:
            return []
        if not isinstance(observation, Mapping):
            raise DataError(
                f"{where}: the observation is flat, but the spec has cameras; give it by feature name"
            )
        try:
            return encoded_frames(self._features, observation, self._codec)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error

    def append(self, frames: list[bytes]) -> None:
        """The frames of a new step."""
        if frames:
            self._steps.append()[:] = self._place(frames)

    def begin_episode(self) -> None:
        """A new episode, whose final observation is not known."""
        for tail in self.finals:
            tail.append()[:] = -1

    def close_episode(self, frames: list[bytes]) -> None:
        """The frames of the open episode's final observation."""
        if frames:
            self._final[self._final.count - 1][:] = self._place(frames)

    def touch(self) -> None:
        """The open episode may change after a commit."""
        for tail in self.finals:
            tail.touch(tail.count - 1)

    def forget_episode(self) -> None:
        """Take back the last episode, which has no steps."""
        for tail in self.finals:
            tail.drop_last()

    def committed(self) -> None:
        """Everything is on disk; what the open episode may still change stays."""
        if self._features:
            self._bytes.committed()
            self._steps.committed()
            self._final.committed(self._final.count - 1)

    def load(self, arrays: StreamArrays, session: icechunk.Session, rows: int, episodes: int) -> None:
        """Go on after what a session holds."""
        self._forget()
        if not self._features:
            return
        self._steps.load(arrays, session, rows, max(0, rows - 1))
        self._final.load(arrays, session, episodes, max(0, episodes - 1))
        # Frames are only ever added, and every camera's newest one belongs to one of these two rows.
        newest = [tail[tail.count - 1] for tail in (self._steps, self._final) if tail.count]
        ends = [int((row[0::2] + row[1::2]).max()) for row in newest if row[0] >= 0]
        count = max(ends, default=0)
        self._bytes.load(arrays, session, count, count)

    def _place(self, frames: list[bytes]) -> list[int]:
        """Offset and length of each frame, new ones added."""
        places: list[int] = []
        for camera, data in enumerate(frames):
            if data != self._previous[camera][0]:
                self._previous[camera] = (data, self._bytes.count)
                self._bytes.extend(len(data))[:] = np.frombuffer(data, np.uint8)
            places += [self._previous[camera][1], len(data)]
        return places

    def _forget(self) -> None:
        self._previous: list[tuple[bytes, int]] = [(b"", 0)] * len(self._features)
