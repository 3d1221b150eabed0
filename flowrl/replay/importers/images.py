"""Images of a recording on their way to camera frames: read block by block, checked, resized, encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from PIL import Image

from flowrl.errors import DataError
from flowrl.replay.frames import FrameCodec, Pixels
from flowrl.spec import Feature

# Of arrays that are not stored in chunks of rows.
_BLOCK = 32

EncodedFrames = Mapping[str, bytes]
"""The frames of one observation, by the name of the camera feature."""


class StoredImages:
    """Images (N, height, width, 3), RGB, in a file: an HDF5 dataset or a zarr array.

    They are read along the chunks they are stored in; only the newest block is kept. ``reading(where)``
    turns what the file's library raises into a DataError.
    """

    def __init__(
        self, array: Any, where: str, reading: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._array, self._where, self._reading = array, where, reading
        self._first, self._block = 0, np.empty((0,), np.uint8)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self._array.shape[1]), int(self._array.shape[2])

    def require(self, length: int, floats: bool = False) -> None:
        """Raise DataError unless these are ``length`` images of uint8 (``floats``: or floating-point)."""
        shape, dtype = tuple(self._array.shape), np.dtype(self._array.dtype)
        if len(shape) != 4 or shape[3] != 3 or not all(shape[1:3]):
            raise DataError(
                f"{self._where} has shape {shape}, expected images of shape (steps, height, width, 3)"
            )
        if dtype != np.uint8 and not (floats and np.issubdtype(dtype, np.floating)):
            allowed = "uint8, or floating-point numbers from 0 to 255" if floats else "uint8"
            raise DataError(f"{self._where} holds {dtype}, expected {allowed}; convert the images")
        if shape[0] != length:
            raise DataError(f"{self._where} has {shape[0]} images for {length} actions")

    def frame(self, row: int, height: int, width: int) -> Pixels:
        """One image (3, height, width), resized when it is stored at another size.

        Raises DataError when the block is damaged or values are no brightness of 0 to 255.
        """
        if not self._first <= row < self._first + len(self._block):
            self._read(row)
        return resized(self._as_bytes(self._block[row - self._first], row), height, width)

    def _read(self, row: int) -> None:
        chunks = self._array.chunks
        rows = int(chunks[0]) if chunks else _BLOCK
        self._first = row // rows * rows
        with self._reading(self._where):
            self._block = np.asarray(self._array[self._first : self._first + rows])

    def _as_bytes(self, image: np.ndarray[Any, Any], row: int) -> Pixels:
        if image.dtype == np.uint8:
            return image
        low, high = float(image.min()), float(image.max())
        if not (low >= 0 and high <= 255):
            raise DataError(
                f"{self._where}, row {row} holds values from {low:g} to {high:g}, expected 0 to 255; "
                "convert the images"
            )
        # Rounding would make an almost black picture of it.
        if 0 < high <= 1 and (image % 1 != 0).any():
            raise DataError(
                f"{self._where}, row {row} holds fractions from {low:g} to {high:g}, expected 0 to 255; "
                "multiply the images by 255"
            )
        return np.rint(image).astype(np.uint8)


def resized(image: Pixels, height: int, width: int) -> Pixels:
    """An image (H, W, 3) as (3, height, width).

    Another size is interpolated linearly over the area of a target pixel (Pillow's BILINEAR, which does
    not alias where it shrinks). Proportions are not kept.
    """
    if image.shape[:2] != (height, width):
        picture = Image.fromarray(np.ascontiguousarray(image))
        image = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return image.transpose(2, 0, 1)


def encoded_rows(
    cameras: Sequence[Feature], images: Mapping[str, StoredImages], rows: Iterable[int], codec: FrameCodec
) -> list[EncodedFrames]:
    """The frames at some rows, resized to their features and encoded. ``images`` is by feature name."""
    return [
        {
            camera.name: codec.encode(images[camera.name].frame(row, camera.shape[1], camera.shape[2]))
            for camera in cameras
        }
        for row in rows
    ]


def resize_note(camera: Feature, sizes: Iterable[tuple[int, int]]) -> list[str]:
    """What the user should know about the sizes (height, width) in which a camera's images are stored."""
    height, width = camera.shape[1:]
    other = sorted(set(sizes) - {(height, width)})
    if not other:
        return []
    listed = " and ".join(f"{h} x {w}" for h, w in other)
    stretched = any(h * width != w * height for h, w in other)
    more = ", which changes their proportions" if stretched else ""
    return [f"{camera.name} is resized from {listed} to {height} x {width} pixels{more}"]
