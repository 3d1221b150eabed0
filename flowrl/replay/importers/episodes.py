"""An episode as an importer has recovered it, and how it enters a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.replay.importers.acting import Acting
from flowrl.replay.importers.images import EncodedFrames
from flowrl.replay.importers.target import Target
from flowrl.replay.schema import Array, Floats, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import CommitRule, StreamWriter
from flowrl.spec import Spec

_ROWS, _PIXELS = 16_384, 1 << 28


def commit_rule(spec: Spec) -> CommitRule:
    """When the writer of an import commits.

    Nobody reads the stream before it is published, so commits only bound the memory: of rows, and of frames
    by their pixels, several times what they are when encoded.
    """
    pixels = sum(feature.size for feature in spec.observation if feature.is_image)
    rows = min(_ROWS, max(64, _PIXELS // pixels)) if pixels else _ROWS
    return CommitRule(seconds=1e9, rows=rows, open_seconds=1e9)


@dataclass(frozen=True)
class Trajectory:
    """T steps: ``observations`` (T, S) before each action; ``final`` (S,) after the last one, if known.

    ``succeeded`` (T,) says whether the task is solved after each action; None when nobody can tell.
    Where there are cameras, ``frames`` holds T encoded observations, and ``final_frames`` comes with
    ``final``.
    """

    observations: Floats
    final: Floats | None
    succeeded: NDArray[np.bool_] | None
    frames: Sequence[EncodedFrames] = ()
    final_frames: EncodedFrames | None = None


@dataclass(frozen=True)
class DemonstrationDone:
    """One demonstration was imported: number ``index`` (from 1) of ``total``; ``success`` None if unknown."""

    name: str
    index: int
    total: int
    steps: int
    success: bool | None


def write_episode(
    writer: StreamWriter,
    trajectory: Trajectory,
    actions: Floats,
    target: Target,
    source: Source | Acting,
    said_by: OutcomeBy = OutcomeBy.ENVIRONMENT,
) -> None:
    """Write one closed episode with the actions (T, A).

    Reward is 1 on the step that first solves the task; the episode ends on its last step, as success,
    failure or, when nobody can tell, unknown. ``source`` is who acted, at all steps or (T) step by step;
    ``said_by`` is who judged it.
    """
    acting = source if isinstance(source, Acting) else Acting.throughout(source, len(actions))
    spec, succeeded, last = target.interface, trajectory.succeeded, len(actions) - 1
    success = succeeded is not None and bool(succeeded.any())
    first = int(succeeded.argmax()) if succeeded is not None and success else -1
    writer.begin_episode(task=target.name)
    for index, action in enumerate(actions):
        frames = trajectory.frames[index] if trajectory.frames else None
        writer.append(
            Step(
                _observation(spec, trajectory.observations[index], frames),
                action,
                float(index == first),
                terminated=index == last and success,
                # The recording stops there; nothing about the task ends.
                truncated=index == last and not success,
                source=Source(int(acting.source[index])),
                intervention_id=int(acting.takeover[index]),
                stamp_ns=round(index / spec.control_hz * 1e9),
            )
        )
    final = trajectory.final
    if final is not None:
        final = _observation(spec, final, trajectory.final_frames)
    outcome = Outcome.SUCCESS if success else Outcome.FAILURE
    if succeeded is None:
        writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE, final)
    else:
        writer.close_episode(outcome, said_by, final)


def _observation(spec: Spec, state: Floats, frames: EncodedFrames | None) -> Mapping[str, Any] | Array:
    """An observation as a writer takes it: flat, or by feature name where there are frames."""
    if frames is None:
        return state
    named: dict[str, Any] = dict(frames)
    start = 0
    for feature in spec.state_features:
        named[feature.name] = state[start : start + feature.size].reshape(feature.shape)
        start += feature.size
    return named
