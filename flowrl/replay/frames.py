"""Camera frames as bytes: encode, check and decode.

A stream keeps frames as JPEG or PNG, at the resolution the policy sees: as they arrived where they arrive
encoded, encoded once where they do not. Decoded frames are (3, height, width) uint8, RGB, first row on top.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from flowrl.errors import ConfigError, DataError
from flowrl.spec import Feature

Pixels = NDArray[np.uint8]
FrameFormat = Literal["jpeg", "png"]

_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
# A file that claims to be huge is refused by its header, before anything is decoded.
_MAX_PIXELS = 1 << 26


@dataclass(frozen=True)
class FrameCodec:
    """How frames that arrive as pixels are encoded. Raises ConfigError for a value out of range."""

    format: FrameFormat = "jpeg"
    """``jpeg`` is small and loses a little; ``png`` keeps every bit and is several times larger."""
    quality: int = 95
    """Of JPEG, 1 to 95; colour is kept at full resolution."""

    def __post_init__(self) -> None:
        if self.format not in get_args(FrameFormat):
            raise ConfigError(f"frame format is {self.format!r}; expected jpeg or png")
        if not 1 <= self.quality <= 95:
            raise ConfigError(f"frame quality is {self.quality}; expected 1 to 95")

    def encode(self, pixels: Pixels) -> bytes:
        """Pixels (3, height, width) as bytes of a JPEG or PNG file."""
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        out = io.BytesIO()
        if self.format == "png":
            image.save(out, "PNG", compress_level=1)
        else:
            image.save(out, "JPEG", quality=self.quality, subsampling=0)
        return out.getvalue()


def decode(data: bytes) -> Pixels:
    """The pixels (3, height, width) of an encoded frame. Raises DataError when it is damaged."""
    try:
        with _open(data) as image:
            pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"a frame of {len(data)} bytes cannot be decoded ({error})") from error
    return pixels.transpose(2, 0, 1)


def frame_size(data: bytes) -> tuple[int, int]:
    """Height and width of an encoded frame, by its header; its end is checked, its pixels are not decoded.

    Raises DataError when it is neither JPEG nor PNG, or cut short.
    """
    with _open(data) as image:
        kind, (width, height) = str(image.format), image.size
    # Cameras pad JPEG files with zeros.
    if not data.rstrip(b"\0").endswith(_ENDS[kind].rstrip(b"\0")):
        raise DataError(f"a {kind} frame of {len(data)} bytes is cut short")
    return height, width


def encoded_frame(feature: Feature, value: object, codec: FrameCodec) -> bytes:
    """One camera's frame as bytes to store: encoded ones as they are, pixels through the codec.

    Raises DataError when the size is not the feature's or the frame is damaged.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            size = frame_size(data)
        except DataError as error:
            raise DataError(f"{feature.name!r}: {error}") from error
        if size != feature.shape[1:]:
            raise DataError(
                f"{feature.name!r} is {size[0]} x {size[1]} pixels, the spec says {feature.shape[1]} x "
                f"{feature.shape[2]}; resize it before it is recorded"
            )
        return data
    pixels = np.asarray(value)
    if pixels.shape != feature.shape or pixels.dtype != np.uint8:
        raise DataError(
            f"{feature.name!r} is {pixels.dtype} of shape {pixels.shape}, the spec says uint8 of shape "
            f"{feature.shape}"
        )
    return codec.encode(pixels)


def encoded_frames(
    features: tuple[Feature, ...], observation: Mapping[str, Any], codec: FrameCodec
) -> list[bytes]:
    """The frames of one observation, one for each camera.

    Raises DataError naming the camera that is missing or does not fit.
    """
    missing = [feature.name for feature in features if feature.name not in observation]
    if missing:
        raise DataError(f"observation has no frame of {', '.join(missing)}; it has {sorted(observation)}")
    return [encoded_frame(feature, observation[feature.name], codec) for feature in features]


def _open(data: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
    except UnidentifiedImageError as error:
        raise DataError(f"{len(data)} bytes are neither a JPEG nor a PNG file") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the header of a frame of {len(data)} bytes is damaged ({error})") from error
    if image.size[0] * image.size[1] > _MAX_PIXELS:
        raise DataError(f"a frame of {image.size[0]} x {image.size[1]} pixels is larger than any camera's")
    return image
