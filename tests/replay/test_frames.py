"""Camera frames come back as stored, at the right row, whatever happens to writer and reader."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from flowrl.errors import DataError, ReplayError
from flowrl.replay.frames import FrameCodec, decode, frame_size
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Step
from flowrl.replay.storage import CHUNK_BYTES
from flowrl.replay.verify import verify
from flowrl.replay.writer import StreamWriter
from flowrl.spec import Feature
from tests.replay.streams import ONLY_BY_HAND, SPEC

CAMERAS = ("observation.images.front", "observation.images.wrist")
SHAPES = ((3, 8, 12), (3, 6, 6))
CAMERA_SPEC = replace(
    SPEC,
    observation=(
        *SPEC.observation,
        *(Feature(name, shape, "uint8") for name, shape in zip(CAMERAS, SHAPES, strict=True)),
    ),
)
LOSSLESS = FrameCodec("png")


def pixels(camera: int, value: int) -> NDArray[np.uint8]:
    """A frame that tells its camera and its value."""
    frame = np.full(SHAPES[camera], value % 251, np.uint8)
    frame[0] = value // 251
    frame[1, 0, 0] = camera
    return frame


def told(image: torch.Tensor) -> list[int]:
    """The values of frames (B, 3, height, width) of `pixels`."""
    return (image[:, 0, 1, 1].int() * 251 + image[:, 2, 1, 1].int()).tolist()


def observation(value: int) -> dict[str, NDArray[np.generic]]:
    frames = {name: pixels(camera, value) for camera, name in enumerate(CAMERAS)}
    return {"observation.state": np.array([value, -value], np.float32), **frames}


def write_episode(writer: StreamWriter, values: range, outcome: Outcome = Outcome.TIMEOUT) -> None:
    """One episode whose final observation is the value after the last."""
    writer.begin_episode(task=f"task {values[0]}")
    for value in values:
        writer.append(
            Step(observation(value), np.array([0.0], np.float32), 0.0, truncated=value == values[-1])
        )
    writer.close_episode(outcome, OutcomeBy.ENVIRONMENT, observation(values[-1] + 1))


def new_stream(replay: Path, name: str = "w0", codec: FrameCodec = LOSSLESS) -> StreamWriter:
    return StreamWriter.create(replay, name, CAMERA_SPEC, Kind.POLICY, ONLY_BY_HAND, codec)


def test_every_frame_comes_back_at_its_row(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(0, 5))
        writer.commit()
        write_episode(writer, range(100, 103))
    reader = ReplayReader(tmp_path)
    for camera, name in enumerate(CAMERAS):
        image = reader.frames.pixels(name, range(8))
        assert image.shape == (8, *SHAPES[camera])
        assert told(image) == [0, 1, 2, 3, 4, 100, 101, 102]
        assert (image[:, 1, 0, 0] == camera).all()
        assert told(reader.frames.pixels(name, [-1, 2, -2])) == [5, 2, 103]
    assert verify(tmp_path).ok
    assert reader.tasks == ["task 0", "task 100"]


def test_a_batch_shows_what_its_states_say(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        for start in range(0, 400, 40):
            write_episode(writer, range(start, start + 7))
    sampler = ChunkSampler(ReplayReader(tmp_path), SamplerConfig(batch_size=64, chunk=3))
    for chunks in (1, 2):
        batch = sampler.batch(chunks=chunks)
        for seen in (batch.observation, batch.next_observation):
            for name in CAMERAS:
                assert told(seen.images[name]) == seen.state[:, 0].int().tolist()
            assert [text.split()[1] for text in seen.tasks] == [
                str(int(value) // 40 * 40) for value in seen.state[:, 0].tolist()
            ]
    picked = batch.observation.rows(torch.tensor([3, 1]))
    assert told(picked.images[CAMERAS[0]]) == picked.state[:, 0].int().tolist()
    assert picked.tasks == (batch.observation.tasks[3], batch.observation.tasks[1])


def test_frames_that_arrive_encoded_are_stored_byte_for_byte(tmp_path: Path) -> None:
    jpeg = FrameCodec("jpeg", 80)
    sent = [[jpeg.encode(pixels(camera, value)) for camera in range(2)] for value in range(3)]
    with new_stream(tmp_path) as writer:
        writer.begin_episode()
        for value, frames in enumerate(sent):
            seen = {
                "observation.state": np.array([value, 0], np.float32),
                **dict(zip(CAMERAS, frames, strict=True)),
            }
            writer.append(Step(seen, np.zeros(1, np.float32), 0.0))
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE)
    frames = ReplayReader(tmp_path).frames
    for camera, name in enumerate(CAMERAS):
        assert frames.encoded(name, range(3)) == [data[camera] for data in sent]
    with pytest.raises(ReplayError, match="no frame after its last step"):
        frames.encoded(CAMERAS[0], [-1])
    with pytest.raises(ReplayError, match=r"no camera 'observation.images.left'; it has .*front"):
        frames.encoded("observation.images.left", [0])


def test_a_frame_that_does_not_change_is_stored_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    still = {name: rng.integers(0, 256, shape, np.uint8) for name, shape in zip(CAMERAS, SHAPES, strict=True)}
    with new_stream(tmp_path) as writer:
        for _ in range(2):
            writer.begin_episode()
            for value in range(4):
                moving = {"observation.state": np.array([value, 0], np.float32)}
                writer.append(Step({**still, **moving}, np.zeros(1, np.float32), 0.0))
            writer.commit()
            writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE, {**still, **moving})
    frames = ReplayReader(tmp_path).frames
    size = sum(len(LOSSLESS.encode(frame)) for frame in still.values())
    assert frames.cached_bytes == CHUNK_BYTES  # one block, the rest of it empty
    assert frames._rows.view[:, 1:].max() < size
    assert verify(tmp_path).ok


def test_a_small_budget_is_kept_and_gives_the_same_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spec = replace(SPEC, observation=(*SPEC.observation, Feature(CAMERAS[0], (3, 64, 64), "uint8")))
    sent = rng.integers(0, 256, (120, 3, 64, 64), np.uint8)
    with StreamWriter.create(tmp_path, "w0", spec, Kind.POLICY, ONLY_BY_HAND, LOSSLESS) as writer:
        writer.begin_episode()
        for value, frame in enumerate(sent):
            seen = {"observation.state": np.array([value, 0], np.float32), CAMERAS[0]: frame}
            writer.append(Step(seen, np.zeros(1, np.float32), 0.0))
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE)
    budget = 2 * CHUNK_BYTES
    reader = ReplayReader(tmp_path, image_bytes=budget)
    assert reader.frames.cached_bytes <= budget
    order = rng.permutation(120)
    for rows in np.split(order, 12):
        assert (reader.frames.pixels(CAMERAS[0], rows).numpy() == sent[rows]).all()
        assert reader.frames.cached_bytes <= budget
    whole = ReplayReader(tmp_path)
    assert whole.frames.cached_bytes > 4 * CHUNK_BYTES
    assert (whole.frames.pixels(CAMERAS[0], range(120)).numpy() == sent).all()


def test_a_reader_sees_the_frames_of_a_stream_that_grows(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        write_episode(writer, range(0, 3))
        writer.commit()
        reader = ReplayReader(tmp_path)
        assert told(reader.frames.pixels(CAMERAS[0], range(3))) == [0, 1, 2]
        for start in (10, 20):
            write_episode(writer, range(start, start + 2))
            writer.commit()
            reader.refresh()
        assert told(reader.frames.pixels(CAMERAS[0], range(7))) == [0, 1, 2, 10, 11, 20, 21]


def test_a_writer_goes_on_after_a_kill_and_after_a_rollback(tmp_path: Path) -> None:
    writer = new_stream(tmp_path)
    write_episode(writer, range(0, 3))
    writer.commit()
    kept = writer.pin()
    write_episode(writer, range(10, 13))
    writer.commit()
    writer.rollback(kept)
    write_episode(writer, range(20, 22))
    writer.commit()
    # Not committed, and never closed: what kill -9 leaves behind.
    write_episode(writer, range(30, 32))
    writer._lock.release()
    with StreamWriter.open(tmp_path, "w0", CAMERA_SPEC, ONLY_BY_HAND, LOSSLESS) as again:
        write_episode(again, range(40, 42))
    frames = ReplayReader(tmp_path).frames
    assert told(frames.pixels(CAMERAS[1], [0, 1, 2, 3, 4, 5, 6, -1, -2, -3])) == [
        0, 1, 2, 20, 21, 40, 41, 3, 22, 42,
    ]  # fmt: skip
    assert verify(tmp_path).ok


def test_an_open_episode_survives_commits_inside_it(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        writer.begin_episode()
        writer.commit()
        for value in range(4):
            writer.append(Step(observation(value), np.zeros(1, np.float32), 0.0, truncated=value == 3))
            writer.commit()
        writer.close_episode(Outcome.TIMEOUT, OutcomeBy.ENVIRONMENT, observation(4))
    frames = ReplayReader(tmp_path).frames
    assert told(frames.pixels(CAMERAS[0], [0, 1, 2, 3, -1])) == [0, 1, 2, 3, 4]


def test_frames_longer_than_many_blocks_keep_every_byte(tmp_path: Path) -> None:
    spec = replace(SPEC, observation=(*SPEC.observation, Feature(CAMERAS[0], (3, 400, 400), "uint8")))
    sent = np.random.default_rng(0).integers(0, 256, (4, 3, 400, 400), np.uint8)  # 480 kB each: two blocks
    with StreamWriter.create(tmp_path, "w0", spec, Kind.POLICY, ONLY_BY_HAND, LOSSLESS) as writer:
        writer.begin_episode()
        for frame in sent:
            seen = {"observation.state": np.zeros(2, np.float32), CAMERAS[0]: frame}
            writer.append(Step(seen, np.zeros(1, np.float32), 0.0))
            writer.commit()
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE)
    for budget in (2 << 30, CHUNK_BYTES):
        frames = ReplayReader(tmp_path, image_bytes=budget).frames
        assert (frames.pixels(CAMERAS[0], range(4)).numpy() == sent).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({CAMERAS[1]: None}, "episode 0, step 1: observation has no frame of observation.images.wrist"),
        ({CAMERAS[0]: np.zeros((3, 8, 8), np.uint8)}, r"images.front.* is uint8 of shape \(3, 8, 8\)"),
        ({CAMERAS[0]: np.zeros((3, 8, 12), np.float32)}, "is float32 of shape"),
        ({CAMERAS[0]: b"GIF89a..."}, "images.front.*neither a JPEG nor a PNG"),
        ({CAMERAS[0]: FrameCodec().encode(pixels(1, 0))}, "is 6 x 6 pixels, the spec says 8 x 12; resize"),
        ({CAMERAS[0]: FrameCodec().encode(pixels(0, 0))[:-2]}, "a JPEG frame of .* bytes is cut short"),
        ({CAMERAS[0]: LOSSLESS.encode(pixels(0, 0))[:-9]}, "a PNG frame of .* bytes is cut short"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_and_nothing_is_stored(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with new_stream(tmp_path) as writer:
        writer.begin_episode()
        writer.append(Step(observation(0), np.zeros(1, np.float32), 0.0))
        seen = {name: value for name, value in {**observation(1), **change}.items() if value is not None}
        with pytest.raises(DataError, match=message):
            writer.append(Step(seen, np.zeros(1, np.float32), 0.0))  # type: ignore[arg-type]
        writer.append(Step(observation(2), np.zeros(1, np.float32), 0.0))
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE)
    assert told(ReplayReader(tmp_path).frames.pixels(CAMERAS[0], range(2))) == [0, 2]


def test_a_flat_observation_cannot_carry_frames(tmp_path: Path) -> None:
    with new_stream(tmp_path) as writer:
        writer.begin_episode()
        with pytest.raises(DataError, match="is flat, but the spec has cameras"):
            writer.append(Step(np.zeros(2, np.float32), np.zeros(1, np.float32), 0.0))


def test_verify_names_the_frame_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = LOSSLESS.encode(pixels(0, 1))
    damaged = good[:50] + bytes(len(good) - 62) + good[-12:]
    with new_stream(tmp_path) as writer:
        writer.begin_episode()
        for frame in (pixels(0, 0), damaged, pixels(0, 2)):
            seen = {**observation(0), CAMERAS[0]: frame}
            writer.append(Step(seen, np.zeros(1, np.float32), 0.0))  # type: ignore[arg-type]
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE)
    [violation] = verify(tmp_path).violations
    assert (violation.rule, violation.episode, violation.step) == ("frames", 0, 1)
    assert "observation.images.front" in violation.message
    with pytest.raises(ReplayError, match=r"images.front at row 1: .*cannot be decoded.*replay verify"):
        ReplayReader(tmp_path).frames.pixels(CAMERAS[0], range(3))


def test_jpeg_keeps_what_a_camera_sees(tmp_path: Path) -> None:
    y, x = np.mgrid[0:84, 0:84] / 84
    smooth = np.stack([255 * x, 255 * y, 128 + 100 * np.sin(6 * x * y)]).astype(np.uint8)
    data = FrameCodec().encode(smooth)
    assert frame_size(data) == (84, 84)
    assert np.abs(decode(data).astype(int) - smooth).mean() < 1.5
    assert len(data) < smooth.size / 5


def test_grey_and_transparent_frames_become_colour() -> None:
    grey = io.BytesIO()
    Image.fromarray(np.full((4, 5), 7, np.uint8)).save(grey, "PNG")
    assert decode(grey.getvalue()).shape == (3, 4, 5)


@pytest.mark.parametrize("side", [9000, 20000])
def test_a_frame_that_is_huge_is_refused_by_its_header(side: int) -> None:
    huge = io.BytesIO()
    Image.new("1", (side, side)).save(huge, "PNG", compress_level=1)
    with pytest.raises(DataError, match=r"pixels is larger than any camera|exceeds limit"):
        frame_size(huge.getvalue())
