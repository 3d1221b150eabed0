"""Images from the replay: against LeRobot's random reads of the same data, and as a share of an update.

`benchmarks/replay.py` runs this; alone it takes the sizes of frames, too:

    python benchmarks/replay_images.py [--quick] [--size 48] [--json FILE]

Both sides read random rows with one thread in one process, in turn, a block of reads each, so that other load on
the machine hits both alike. LeRobot's side is ``LeRobotDataset[i]`` through a torch ``DataLoader``, once on the
dataset with PNG images that flowrl exports, once on the one with videos; frames per second count every camera's
frame. flowrl's side is a whole `ChunkBatch`: frames at the start and after the chunk, actions, rewards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

from flowrl.algorithms.factory import make_algorithm
from flowrl.config import load_recipe
from flowrl.errors import MissingExtra
from flowrl.learner.config import RunConfig
from flowrl.learner.learner import sampler_config
from flowrl.learner.pretraining import new_policy
from flowrl.replay.batch import Batches, ChunkBatch
from flowrl.replay.frames import Pixels
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Step
from flowrl.replay.writer import CommitRule, StreamWriter
from flowrl.spec import ActionSpec, Feature, Spec

STATE, ACTION, LENGTH, ROWS = 9, 7, 60, 64
CAMERAS = ("observation.images.agentview", "observation.images.robot0_eye_in_hand")
BY_HAND = CommitRule(seconds=1e9, rows=10**9, open_seconds=1e9, compact_every=0)


@dataclass
class ImageResult:
    """What is measured; NaN where LeRobot is not installed. Rates are medians over blocks, in turn.

    ``image_over_lerobot`` holds the learner's reader, with decoded frames kept as by default, against the faster
    form of LeRobot's; ``decoding_over_lerobot`` the same reader that decodes every frame anew. ``data_time_share`` is
    the share of an update of the native image policy, with the sizes of configs/images_lift.yaml, that passes until
    its batches are there, ``decoding_time_share`` the same without kept frames.
    """

    image_frames_per_s: float = 0.0
    decoding_frames_per_s: float = 0.0
    lerobot_png_frames_per_s: float = float("nan")
    lerobot_video_frames_per_s: float = float("nan")
    image_over_lerobot: float = float("nan")
    decoding_over_lerobot: float = float("nan")
    image_updates_per_s: float = 0.0
    data_time_share: float = 0.0
    decoding_time_share: float = 0.0


def spec(size: int) -> Spec:
    """As Lift of configs/images_lift.yaml: proprioception and two cameras of ``size`` pixels."""
    cameras = (Feature(name, (3, size, size), "uint8") for name in CAMERAS)
    return Spec(
        observation=(Feature("observation.state", (STATE,)), *cameras),
        action=ActionSpec(tuple(f"a{i}" for i in range(ACTION)), (-1.0,) * ACTION, (1.0,) * ACTION),
        control_hz=20.0,
    )


def picture(size: int, phase: float, random: np.random.Generator) -> Pixels:
    """A smooth scene with an edged block that moves and a sensor's noise: (3, size, size)."""
    y, x = np.mgrid[0:size, 0:size] / size
    frame = np.stack([np.sin(3 * x + phase), np.cos(4 * y - phase), np.sin(2 * (x + y))]) * 60 + 128
    start = int((0.3 + 0.3 * np.sin(phase)) * size)
    frame[:, start : start + size // 5, size // 3 : size // 2] = np.array([[[200]], [[40]], [[60]]])
    return (frame + random.normal(0, 3, frame.shape)).clip(0, 255).astype(np.uint8)


def record(replay: Path, episodes: int, size: int) -> None:
    """Episodes of 60 steps, half of which succeed, half of them demonstrations."""
    random = np.random.default_rng(0)
    for name, kind in (("demonstrations", Kind.DEMONSTRATION), ("worker-0", Kind.POLICY)):
        with StreamWriter.create(replay, name, spec(size), kind, BY_HAND) as writer:
            for episode in range(episodes // 2):
                writer.begin_episode(seed=episode, task="benchmark")
                success = episode % 2 == 0
                for index in range(LENGTH):
                    action = random.uniform(-1, 1, ACTION).astype(np.float32)
                    last = success and index == LENGTH - 1
                    writer.append(
                        Step(observation(size, episode + index / 20, random), action, float(last), last)
                    )
                outcome = Outcome.SUCCESS if success else Outcome.TIMEOUT
                writer.close_episode(outcome, OutcomeBy.ENVIRONMENT, observation(size, episode, random))
                writer.commit()


def observation(size: int, phase: float, random: np.random.Generator) -> dict[str, NDArray[Any]]:
    """State and both cameras."""
    frames = {name: picture(size, phase + i, random) for i, name in enumerate(CAMERAS)}
    return {"observation.state": random.standard_normal(STATE).astype(np.float32), **frames}


def lerobot_reads(root: Path) -> Iterator[int]:
    """Random rows of a LeRobotDataset through a DataLoader without workers; yields the frames of each batch."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset(f"local/{root.name}", root=root, video_backend="pyav", return_uint8=True)
    sampler = torch.utils.data.RandomSampler(
        dataset, replacement=True, num_samples=10**9, generator=torch.Generator().manual_seed(0)
    )
    for batch in torch.utils.data.DataLoader(dataset, batch_size=ROWS, sampler=sampler):
        yield sum(len(batch[name]) for name in CAMERAS)


def flowrl_reads(reader: ReplayReader) -> Iterator[int]:
    """Batches of random chunks; yields the frames of each."""
    sampler = ChunkSampler(reader, SamplerConfig(batch_size=ROWS, chunk=5, end_rule="padded"))
    while True:
        batch = sampler.batch()
        both = (batch.observation, batch.next_observation)
        yield sum(len(images) for each in both for images in each.images.values())


def rates(sides: dict[str, Iterator[int]], seconds: float, block: float = 0.5) -> dict[str, float]:
    """Frames per second of each side: the median over blocks of about ``block`` seconds, taken in turn."""
    for side in sides.values():
        next(side)
    found: dict[str, list[float]] = {name: [] for name in sides}
    end = time.perf_counter() + seconds * len(sides)
    while time.perf_counter() < end or len(found[next(iter(sides))]) < 3:
        for name, side in sides.items():
            began, frames = time.perf_counter(), 0
            while not frames or time.perf_counter() - began < block:
                frames += next(side)
            found[name].append(frames / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in found.items()}


class Waited:
    """Batches that count the seconds until they are there."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self.seconds = batches, 0.0

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        """A batch of the sampler's."""
        began = time.perf_counter()
        try:
            return self._batches.batch(source, chunks)
        finally:
            self.seconds += time.perf_counter() - began


def measure_update(readers: dict[str, ReplayReader], updates: int, result: ImageResult) -> None:
    """Updates of configs/images_lift.yaml with each reader in turn; the share that passes in waiting for batches."""
    config = load_recipe(RunConfig, "images_lift")
    policy = new_policy(config, readers["kept"], 0).train_only(config.trainable)
    algorithm = make_algorithm(config.algorithm, policy, 0)
    batches = {
        name: Waited(ChunkSampler(reader, sampler_config(config, policy), 0))
        for name, reader in readers.items()
    }
    shares: dict[str, list[float]] = {name: [] for name in readers}
    seconds = list[float]()
    for update in range(updates + 2):
        for name, waited in batches.items():
            waited.seconds = 0.0
            took = seconds_of(lambda waited=waited: algorithm.update(waited))
            if update >= 2:  # the first ones warm up
                shares[name].append(waited.seconds / took)
                if name == "kept":
                    seconds.append(took)
    result.data_time_share, result.decoding_time_share = (statistics.median(each) for each in shares.values())
    result.image_updates_per_s = 1 / statistics.median(seconds)


def measure_images(directory: Path, size: int, quick: bool) -> ImageResult:
    """All of it, in a fresh directory."""
    result, replay = ImageResult(), directory / "images"
    record(replay, 20 if quick else 60, size)
    kept = load_recipe(RunConfig, "images_lift").sampling.decoded_mb << 20
    readers = {"kept": ReplayReader(replay, decoded_bytes=kept), "decoding": ReplayReader(replay)}
    for camera in CAMERAS:  # as after the first pass over the data
        readers["kept"].frames.pixels(camera, range(readers["kept"].rows))
    sides = {name: flowrl_reads(reader) for name, reader in readers.items()}
    for form in ("png", "video"):
        if root := exported(replay, directory / form, form == "video"):
            sides[form] = lerobot_reads(root)
    found = rates(sides, 1.5 if quick else 6.0)
    result.image_frames_per_s, result.decoding_frames_per_s = found["kept"], found["decoding"]
    if "png" in found:
        result.lerobot_png_frames_per_s = found["png"]
        result.lerobot_video_frames_per_s = found["video"]
        theirs = max(found["png"], found["video"])
        result.image_over_lerobot = found["kept"] / theirs
        result.decoding_over_lerobot = found["decoding"] / theirs
    measure_update(readers, 8 if quick else 30, result)
    return result


def exported(replay: Path, to: Path, video: bool) -> Path | None:
    """The replay as a LeRobotDataset, or None where LeRobot is not installed."""
    from flowrl.replay.exporters.lerobot import ExportOptions, export_lerobot

    try:
        export_lerobot(replay, to, ExportOptions(video=video))
    except MissingExtra:
        return None
    return to


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds that a call takes by the wall."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def rows_of(result: ImageResult) -> Iterator[tuple[str, str, str]]:
    """What was measured, its value and its target, as `benchmarks/replay.py` shows them."""
    yield "frames per second in batches, decoded ones kept", f"{result.image_frames_per_s:,.0f}", ""
    yield "the same, every frame decoded anew", f"{result.decoding_frames_per_s:,.0f}", ""
    yield "LeRobotDataset at random rows, PNG images", f"{result.lerobot_png_frames_per_s:,.0f}", ""
    yield "LeRobotDataset at random rows, videos", f"{result.lerobot_video_frames_per_s:,.0f}", ""
    yield "ratio to LeRobot's faster form, decoded ones kept", f"{result.image_over_lerobot:.1f}", ">= 10"
    yield "the same, every frame decoded anew", f"{result.decoding_over_lerobot:.1f}", ""
    yield "updates per second, images_lift", f"{result.image_updates_per_s:.2f}", ""
    yield "share of an update spent on data", f"{result.data_time_share:.1%}", "< 10 %"
    yield "the same, every frame decoded anew", f"{result.decoding_time_share:.1%}", ""


def main() -> None:
    """Parse options, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the result as one JSON object")
    parser.add_argument("--quick", action="store_true", help="less data and less time, for CI")
    parser.add_argument("--size", type=int, default=48, help="rows and columns of a frame")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        result = measure_images(Path(directory), options.size, options.quick)
    text = json.dumps(asdict(result), indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
