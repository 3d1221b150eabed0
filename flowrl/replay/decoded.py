"""Decoded frames of a camera, kept within a stated budget so that a batch need not decode them again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flowrl.replay.frames import Pixels
from flowrl.replay.schema import Array, Ints


class DecodedFrames:
    """The frames that were decoded last, at most ``slots`` of them; the oldest gives way first.

    Batches draw rows at random, so that which one gives way makes little difference to how many are found. What
    is found are the same pixels. ``shape`` is (3, height, width). Memory is taken as frames come.
    """

    def __init__(self, shape: tuple[int, ...], slots: int) -> None:
        self._pixels = np.empty((slots, *shape), np.uint8)
        self._owner = np.full(slots, -1, np.int64)
        self._slot = np.full(1024, -1, np.int64)
        self._next = 0

    def __len__(self) -> int:
        return int((self._owner >= 0).sum())

    def pixels(self, rows: Ints, decode: Callable[[Ints], Pixels]) -> Pixels:
        """Frames (B, 3, height, width) at rows, -(e + 1) for the final observation of episode e.

        ``decode`` is asked for those that are not here, each once.
        """
        keys = np.where(rows >= 0, 2 * rows, -2 * rows - 1)
        slots = self._slots_of(keys)
        missing = np.flatnonzero(slots < 0)
        out = np.empty((len(rows), *self._pixels.shape[1:]), np.uint8)
        if len(self._pixels):
            self._pixels.take(slots, axis=0, out=out, mode="clip")
        if len(missing):
            fresh, first, place = np.unique(keys[missing], return_index=True, return_inverse=True)
            decoded = decode(rows[missing[first]])
            out[missing] = decoded[place]
            self._keep(fresh[: len(self._pixels)], decoded[: len(self._pixels)])
        return out

    def _slots_of(self, keys: Array) -> Ints:
        """Where each is kept, -1 where it is not."""
        short = int(keys.max(initial=-1)) + 1 - len(self._slot)
        if short > 0:
            more = np.full(max(short, len(self._slot)), -1, np.int64)
            self._slot = np.concatenate([self._slot, more])
        return self._slot[keys]

    def _keep(self, keys: Array, decoded: Pixels) -> None:
        places = (self._next + np.arange(len(keys))) % max(len(self._pixels), 1)
        leaving = self._owner[places]
        self._slot[leaving[leaving >= 0]] = -1
        self._owner[places], self._slot[keys], self._pixels[places] = keys, places, decoded
        self._next = (self._next + len(keys)) % max(len(self._pixels), 1)
