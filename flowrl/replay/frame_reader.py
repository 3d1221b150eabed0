"""Camera frames of a replay: where each lies, and caches of bytes and of pixels within stated budgets."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np
import torch

from flowrl.errors import ReplayError
from flowrl.replay.decoded import DecodedFrames
from flowrl.replay.frames import Pixels, decode
from flowrl.replay.growable import Growable
from flowrl.replay.schema import Ints
from flowrl.replay.storage import CHUNK_BYTES
from flowrl.spec import Spec

ReadBytes = Callable[[int, int, int], Pixels]
"""``read(stream, start, stop)``: bytes of a stream's frames, at most to the end of what is committed."""


class FrameReader:
    """The frames of all rows and final observations that a `ReplayReader` has read.

    Bytes are fetched in blocks and kept, the least recently used dropped first, within ``budget`` bytes.
    Pixels are decoded when asked for, on as many threads as torch computes with, and kept within ``decoded``
    bytes, of every camera as many. `pixels` may be asked from several threads, one of which is served
    at a time; `add` must not run meanwhile.
    """

    def __init__(self, spec: Spec, read: ReadBytes, budget: int, decoded: int = 0) -> None:
        self.features = spec.cameras
        self.budget = budget
        self._read = read
        width = 1 + 2 * len(self.features)
        # Per row and per final observation: stream, then offset and length of each camera's frame.
        self._rows = Growable((width,), np.int64)
        self._finals = Growable((width,), np.int64)
        slots = decoded // max(sum(feature.size for feature in self.features), 1)
        self._decoded = [DecodedFrames(feature.shape, slots) for feature in self.features]
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._cached = 0
        self._lock = threading.Lock()

    @property
    def cached_bytes(self) -> int:
        """Memory in use for encoded frames."""
        return self._cached

    def add(self, stream: int, rows: Ints, finals: Ints) -> None:
        """Take over the places of new rows and final observations of a stream."""
        if not self.features:
            return
        self._drop_last_block(stream)
        for places, target in ((rows, self._rows), (finals, self._finals)):
            target.append(np.concatenate([np.full((len(places), 1), stream), places], axis=1))
        known = np.concatenate([rows, finals[finals[:, 0] >= 0]])
        first, last = int(known[:, 0::2].min()), int((known[:, 0::2] + known[:, 1::2]).max())
        if self._cached + last - first + 2 * CHUNK_BYTES <= self.budget:
            self._fetch(stream, first // CHUNK_BYTES, -(-last // CHUNK_BYTES))

    def encoded(self, camera: str, rows: Ints | Sequence[int]) -> list[bytes]:
        """The stored bytes of a camera's frame at each row; -(e + 1) is the final observation of episode e.

        Raises ReplayError when the spec has no such camera, or an episode no final observation.
        """
        rows = np.asarray(rows, np.int64)
        places = np.empty((len(rows), 3), np.int64)
        column = 1 + 2 * self._index(camera)
        for chosen, table, index in (
            (rows >= 0, self._rows, rows),
            (rows < 0, self._finals, -rows - 1),
        ):
            places[chosen] = table.view[index[chosen]][:, [0, column, column + 1]]
        if (places[:, 1] < 0).any():
            raise ReplayError("an episode without a final observation has no frame after its last step")
        return [self._bytes(*place) for place in places.tolist()]

    def pixels(self, camera: str, rows: Ints | Sequence[int]) -> torch.Tensor:
        """Decoded frames (B, 3, height, width) uint8 at rows as in `encoded`.

        Raises ReplayError naming the row of a frame that cannot be decoded.
        """
        kept = self._decoded[self._index(camera)]
        with self._lock:
            found = kept.pixels(np.asarray(rows, np.int64), partial(self._decode, camera))
        return torch.from_numpy(found)

    def _index(self, camera: str) -> int:
        names = [feature.name for feature in self.features]
        if camera not in names:
            raise ReplayError(f"the replay has no camera {camera!r}; it has {', '.join(names) or 'none'}")
        return names.index(camera)

    def _decode(self, camera: str, rows: Ints) -> Pixels:
        data = self.encoded(camera, rows)
        out = np.empty((len(data), *self.features[self._index(camera)].shape), np.uint8)

        def fill(index: int) -> None:
            try:
                out[index] = decode(data[index])
            except Exception as error:
                raise ReplayError(
                    f"{camera} at row {int(rows[index])}: {error}; `flowrl replay verify` says what is damaged"
                ) from error

        # A pool costs more than it saves on one thread.
        for _ in self._pool.map(fill, range(len(data))) if self._pool else map(fill, range(len(data))):
            pass
        return out

    @cached_property
    def _pool(self) -> ThreadPoolExecutor | None:
        threads = torch.get_num_threads()
        return ThreadPoolExecutor(threads, "decode") if threads > 1 else None

    def _bytes(self, stream: int, offset: int, length: int) -> bytes:
        first, last = offset // CHUNK_BYTES, (offset + length - 1) // CHUNK_BYTES
        parts = [self._block(stream, number) for number in range(first, last + 1)]
        start = offset - first * CHUNK_BYTES
        return (parts[0] if first == last else b"".join(parts))[start : start + length]

    def _block(self, stream: int, number: int) -> bytes:
        key = (stream, number)
        if key not in self._blocks:
            self._fetch(stream, number, number + 1)
        self._blocks.move_to_end(key)
        return self._blocks[key]

    def _fetch(self, stream: int, first: int, stop: int) -> None:
        """Read blocks and keep them, at the price of the least recently used ones."""
        data = self._read(stream, first * CHUNK_BYTES, stop * CHUNK_BYTES)
        for number in range(first, stop):
            start = (number - first) * CHUNK_BYTES
            block = data[start : start + CHUNK_BYTES].tobytes()
            self._cached += len(block) - len(self._blocks.get((stream, number), b""))
            self._blocks[(stream, number)] = block
        while self._cached > self.budget and len(self._blocks) > stop - first:
            _, dropped = self._blocks.popitem(last=False)
            self._cached -= len(dropped)

    def _drop_last_block(self, stream: int) -> None:
        """The last block of a stream that grew may have been read half full."""
        numbers = [number for owner, number in self._blocks if owner == stream]
        if numbers:
            self._cached -= len(self._blocks.pop((stream, max(numbers))))
