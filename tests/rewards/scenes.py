"""Synthetic episodes in which success can be seen: a red square appears, in some corner, on grey noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowrl.replay.frames import FrameCodec
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Step
from flowrl.replay.writer import StreamWriter
from flowrl.rewards.config import ClassifierConfig
from flowrl.spec import ActionSpec, Feature, Spec
from tests.replay.streams import ONLY_BY_HAND

SIZE = 16
CAMERA = "observation.images.front"
SPEC = Spec(
    observation=(
        Feature("observation.state", (1,), names=("time",)),
        Feature(CAMERA, (3, SIZE, SIZE), "uint8"),
    ),
    action=ActionSpec(("push",), (-1.0,), (1.0,)),
    control_hz=10.0,
)
SMALL = ClassifierConfig(
    width=16,
    depth=1,
    queries=1,
    heads=2,
    shift=1,
    positives=1,
    margin=0,
    learning_rate=5e-3,
    steps=100,
    batch_size=16,
    validation=0.4,
)
"""Learns the square in about a second: the last observation shows it, no other one does."""


def frame(random: np.random.Generator, shows: bool) -> NDArray[np.uint8]:
    """Grey noise (3, SIZE, SIZE), with a red square of 5 pixels where it shows success."""
    image = np.repeat(random.integers(90, 160, (1, SIZE, SIZE), dtype=np.uint8), 3, axis=0)
    if shows:
        top, left = random.integers(0, SIZE - 5, 2)
        image[:, top : top + 5, left : left + 5] = np.array([250, 10, 10], np.uint8)[:, None, None]
    return image


def write_episode(
    writer: StreamWriter,
    random: np.random.Generator,
    steps: int,
    shows: Sequence[int],
    outcome: Outcome,
    *,
    terminated: bool | None = None,
    final: bool = True,
) -> None:
    """An episode whose observations ``shows`` (0 before the first step, ``steps`` after the last) have the square."""
    writer.begin_episode(task="show red")
    success = outcome is Outcome.SUCCESS
    ends = success if terminated is None else terminated
    for index in range(steps):
        seen = {"observation.state": np.array([index], np.float32), CAMERA: frame(random, index in shows)}
        last = index == steps - 1
        writer.append(
            Step(
                seen,
                np.array([index / 100], np.float32),
                float(success and last),
                terminated=ends and last,
                truncated=last and outcome is Outcome.TIMEOUT,
                stamp_ns=index,
            )
        )
    by = (
        OutcomeBy.ENVIRONMENT
        if outcome in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT)
        else OutcomeBy.NONE
    )
    after = {"observation.state": np.array([steps], np.float32), CAMERA: frame(random, steps in shows)}
    writer.close_episode(outcome, by, after if final else None)


def new_stream(replay: Path, name: str, kind: Kind = Kind.POLICY, spec: Spec = SPEC) -> StreamWriter:
    """A stream that keeps every pixel."""
    return StreamWriter.create(replay, name, spec, kind, ONLY_BY_HAND, FrameCodec("png"))


def write_replay(replay: Path, successes: int = 10, failures: int = 10) -> None:
    """Successes of 8 steps in one stream, failures of 10 steps in another; only a success ends with the square."""
    random = np.random.default_rng(0)
    with new_stream(replay, "good", Kind.DEMONSTRATION) as writer:
        for _ in range(successes):
            write_episode(writer, random, 8, [8], Outcome.SUCCESS)
    with new_stream(replay, "bad") as writer:
        for _ in range(failures):
            write_episode(writer, random, 10, [], Outcome.TIMEOUT)
