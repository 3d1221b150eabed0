"""Decoded frames that are kept: the same pixels, within their budget, whatever is asked for in which order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flowrl.errors import ReplayError
from flowrl.replay.decoded import DecodedFrames
from flowrl.replay.frames import Pixels
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Ints, Kind, Outcome
from flowrl.replay.writer import StreamWriter
from tests.replay.streams import ONLY_BY_HAND
from tests.replay.test_frames import CAMERA_SPEC, CAMERAS, LOSSLESS, SHAPES, told, write_episode

SHAPE = (3, 2, 2)
FRAME = sum(int(np.prod(shape)) for shape in SHAPES)
"""Bytes of one frame of every camera."""


class Source:
    """Frames that hold their row; remembers which were decoded."""

    def __init__(self) -> None:
        self.decoded = list[int]()

    def __call__(self, rows: Ints) -> Pixels:
        self.decoded += rows.tolist()
        return np.broadcast_to((rows % 251).astype(np.uint8)[:, None, None, None], (len(rows), *SHAPE))


def found(kept: DecodedFrames, source: Source, *rows: int) -> list[int]:
    pixels = kept.pixels(np.array(rows, np.int64), source)
    assert pixels.shape == (len(rows), *SHAPE)
    assert (pixels == pixels[:, :1, :1, :1]).all()
    return pixels[:, 0, 0, 0].tolist()


def test_a_frame_is_decoded_once_and_the_oldest_gives_way() -> None:
    kept, source = DecodedFrames(SHAPE, 3), Source()
    assert found(kept, source, 5, 1, 5, 1) == [5, 1, 5, 1]
    assert sorted(source.decoded) == [1, 5]
    assert found(kept, source, 1, 7, -1) == [1, 7, 250]  # the final observation of episode 0 is no row
    assert sorted(source.decoded[2:]) == [-1, 7]
    assert len(kept) == 3
    assert found(kept, source, 1) == [1]  # the oldest of the four
    assert source.decoded[4:] == [1]
    assert found(kept, source, -1, 7, 1) == [250, 7, 1]
    assert len(source.decoded) == 5


@pytest.mark.parametrize("slots", [0, 1, 4, 300])
def test_what_is_found_does_not_depend_on_the_slots(slots: int) -> None:
    kept, source, random = DecodedFrames(SHAPE, slots), Source(), np.random.default_rng(0)
    for _ in range(60):
        rows = random.integers(-40, 2000, int(random.integers(0, 9)))
        assert found(kept, source, *rows.tolist()) == (rows % 251).tolist()
    assert len(kept) <= slots


def recorded(replay: Path) -> StreamWriter:
    writer = StreamWriter.create(replay, "w", CAMERA_SPEC, Kind.POLICY, ONLY_BY_HAND, LOSSLESS)
    for start in (0, 300, 700):
        write_episode(writer, range(start, start + 8))
    writer.commit()
    return writer


@pytest.mark.parametrize("frames", [1, 7, 1000])
def test_batches_are_those_of_a_reader_that_decodes_anew(tmp_path: Path, frames: int) -> None:
    """Also after the stream grew; a budget of so many frames of both cameras."""
    writer = recorded(tmp_path)
    readers = [ReplayReader(tmp_path, decoded_bytes=count * FRAME) for count in (0, frames)]
    samplers = [ChunkSampler(reader, SamplerConfig(batch_size=16, chunk=2), seed=3) for reader in readers]
    for turn in range(6):
        if turn == 3:
            write_episode(writer, range(900, 905), Outcome.SUCCESS)
            writer.commit()
            assert [reader.refresh() for reader in readers] == [1, 1]
        anew, kept = (sampler.batch() for sampler in samplers)
        assert torch.equal(anew.row, kept.row)
        for camera in CAMERAS:
            for name in ("observation", "next_observation"):
                assert torch.equal(getattr(anew, name).images[camera], getattr(kept, name).images[camera])
            assert told(kept.observation.images[camera]) == kept.observation.state[:, 0].int().tolist()
    writer.close()


def test_what_was_given_is_the_callers(tmp_path: Path) -> None:
    recorded(tmp_path).close()
    frames = ReplayReader(tmp_path, decoded_bytes=100 * FRAME).frames
    frames.pixels(CAMERAS[0], [3, 4]).zero_()
    assert told(frames.pixels(CAMERAS[0], [3, 4])) == [3, 4]
    with pytest.raises(ReplayError, match=r"no camera 'side'"):
        frames.pixels("side", [0])


def test_without_cameras_there_is_nothing_to_keep(tmp_path: Path) -> None:
    spec = replace(CAMERA_SPEC, observation=CAMERA_SPEC.observation[:1])
    StreamWriter.create(tmp_path, "w", spec, Kind.POLICY, ONLY_BY_HAND).close()
    assert ReplayReader(tmp_path, decoded_bytes=1 << 20).frames.features == ()
