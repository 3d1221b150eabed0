"""Replays that are in order, and the means to spoil one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.normalisation import fit
from flowrl.preflight import Checked
from flowrl.replay.frames import FrameCodec
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import StreamWriter
from flowrl.spec import ActionSpec, Feature, Spec
from tests.policies.constant import ConstantPolicy

HZ = 20.0
STATE = Feature("observation.state", (3,), names=("x", "y", "grip"), unit="m")
SPEC = Spec((STATE,), ActionSpec(("delta_x", "delta_y"), (-1.0, -1.0), (1.0, 1.0)), HZ)
LEFT, WRIST = "observation.images.left", "observation.images.wrist"
SEEING = replace(
    SPEC, observation=(STATE, Feature(LEFT, (3, 16, 16), "uint8"), Feature(WRIST, (3, 16, 16), "uint8"))
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Recorded:
    """One episode of T steps: ``state`` (T + 1, S), ``action`` (T, A), and what belongs to them."""

    state: Array
    action: Array
    outcome: Outcome = Outcome.SUCCESS
    stamps: Array | None = None
    age_s: float = 0.0
    frames: Mapping[str, Array] = field(default_factory=dict[str, Array])


def episode(seed: int, length: int = 60, **changes: Any) -> Recorded:
    """Two axes move by 0.05 times the action; the gripper opens and closes smoothly."""
    random = np.random.default_rng(seed)
    action = random.uniform(-0.9, 0.9, (length, 2))
    position = np.concatenate([random.uniform(-0.5, 0.5, (1, 2)), 0.05 * action]).cumsum(axis=0)
    grip = 0.5 + 0.4 * np.sin(0.3 * np.arange(length + 1) + seed)
    return replace(Recorded(np.column_stack([position, grip]), action), **changes)


def clean(count: int = 5, **changes: Any) -> list[Recorded]:
    return [episode(seed, **changes) for seed in range(count)]


def seeing(state: Array) -> dict[str, Array]:
    """Frames (T + 1, 3, 16, 16) per camera: a reddish scene with a spot that moves, and a bluish gradient."""
    rows = len(state)
    left = np.full((rows, 3, 16, 16), 40, np.uint8)
    left[:, 0] = 190
    wrist = np.zeros((rows, 3, 16, 16), np.uint8)
    wrist[:, 2] = np.linspace(30, 230, 16, dtype=np.uint8)
    for t, (x, y) in enumerate(state[:, :2]):
        row, column = (np.clip([8 + 8 * y, 8 + 8 * x], 0, 13)).astype(int)
        for frames in (left, wrist):
            frames[t, 1, row : row + 3, column : column + 3] = 255
        # Every frame differs, as those of a real sensor do.
        left[t, :, 0, 0] = wrist[t, :, 0, 0] = t % 251
    return {LEFT: left, WRIST: wrist}


def clean_seeing(count: int = 4, length: int = 40) -> list[Recorded]:
    plain = [episode(seed, length) for seed in range(count)]
    return [replace(each, frames=seeing(each.state)) for each in plain]


def write(
    path: Path,
    episodes: Sequence[Recorded],
    spec: Spec = SPEC,
    stream: str = "demos",
    kind: Kind = Kind.DEMONSTRATION,
) -> ReplayReader:
    """Write one stream, and read the replay."""
    codec = FrameCodec("png")
    with StreamWriter.create(path, stream, spec, kind, codec=codec) as writer:
        for each in episodes:
            writer.begin_episode(task="move")
            for t in range(len(each.action)):
                writer.append(_step(each, t, spec))
            by = OutcomeBy.NONE if each.outcome is Outcome.DISCARDED else OutcomeBy.ENVIRONMENT
            writer.close_episode(each.outcome, by, _observation(each, len(each.action), spec))
    return ReplayReader(path)


def policy_for(reader: ReplayReader, length: int = 5, **changes: Any) -> ConstantPolicy:
    """A policy whose statistics are the replay's, with fields of its normalisation changed."""
    spec = reader.spec
    fitted = fit(reader.state, spec.action.low, spec.action.high, spec.state_dimension_names())
    return ConstantPolicy(replace(spec, normalisation=replace(fitted, **changes)).with_chunk(length))


def faults(checked: Checked) -> list[tuple[str, str]]:
    """Level and name of everything that is not ok."""
    return [(finding.level, finding.name) for finding in checked.findings if finding.level != "ok"]


def message(checked: Checked, name: str) -> str:
    """The message of the one finding of this name."""
    (found,) = [finding for finding in checked.findings if finding.name == name]
    return found.message


def _step(each: Recorded, t: int, spec: Spec) -> Step:
    last = t == len(each.action) - 1
    success = each.outcome is Outcome.SUCCESS
    stamp = t / spec.control_hz if each.stamps is None else each.stamps[t]
    return Step(
        _observation(each, t, spec),
        np.asarray(each.action[t], np.float32),
        float(success and last),
        terminated=success and last,
        truncated=last and not success,
        source=Source.SCRIPTED,
        stamp_ns=round(float(stamp) * 1e9),
        age_ns=round(each.age_s * 1e9),
    )


def _observation(each: Recorded, t: int, spec: Spec) -> dict[str, Array]:
    named: dict[str, Array] = {}
    start = 0
    for feature in spec.state_features:
        named[feature.name] = np.asarray(each.state[t, start : start + feature.size], np.float32)
        start += feature.size
    return named | {camera.name: each.frames[camera.name][t] for camera in spec.cameras}
