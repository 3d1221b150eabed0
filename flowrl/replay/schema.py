"""What a stream holds: the columns of a step and of an episode, and the words they use.

A stream keeps two packed matrices, one row per step (`float_columns`, `INT_COLUMNS`), an episode
table (`EPISODE_COLUMNS`) with the observation after each episode's last step, and the encoded frames of
its cameras. docs/replay.md draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.policies.observation import flat_state
from flowrl.spec import Spec

FORMATS = (1, 2)
"""Versions of the layout that are read; one is stored in every stream, see `stream_format`."""

Array = NDArray[Any]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Source(IntEnum):
    """Who chose the executed action of a step."""

    POLICY = 0
    HUMAN = 1
    SCRIPTED = 2
    HOLD = 3


class Outcome(IntEnum):
    """How an episode ended. ``OPEN`` marks an episode that is still being written."""

    OPEN = -1
    FAILURE = 0
    SUCCESS = 1
    TIMEOUT = 2
    """The time limit cut it: the return of its last state is not zero, so learners bootstrap."""
    INTERRUPTED = 3
    """The writer was stopped or killed before the episode ended."""
    UNKNOWN = 4
    """It ended by itself and nobody said how."""
    DISCARDED = 5
    """A person asked to forget it: kept on disk, never sampled."""


class OutcomeBy(IntEnum):
    """Who said how an episode ended."""

    NONE = 0
    ENVIRONMENT = 1
    HUMAN = 2
    CLASSIFIER = 3


class Kind(StrEnum):
    """What a stream was recorded for."""

    DEMONSTRATION = "demonstration"
    POLICY = "policy"
    ROBOT = "robot"
    IMPORT = "import"

    @property
    def is_demonstration(self) -> bool:
        """Demonstrations and imports teach; policy and robot streams are online experience."""
        return self in (Kind.DEMONSTRATION, Kind.IMPORT)


INT_COLUMNS = (
    "source",
    "intervention_id",
    "terminated",
    "truncated",
    "stamp_ns",
    "age_ns",
    "policy_version",
    "episode",
    "step",
)
INT = {name: index for index, name in enumerate(INT_COLUMNS)}

EPISODE_COLUMNS = (
    "first_row",
    "length",
    "outcome",
    "outcome_by",
    "seed",
    "task",
    "digest",
    "version_min",
    "version_max",
    "has_final",
)
"""``task`` and ``digest`` are positions in the lists of the same name in the attributes of ``episodes``."""
EPISODE = {name: index for index, name in enumerate(EPISODE_COLUMNS)}

NO_SEED = -1
NO_INTERVENTION = -1
NO_VERSION = -1


def stream_format(spec: Spec) -> int:
    """1 without cameras, 2 with them: a flowrl that knows no frames refuses a stream that has some."""
    return 2 if spec.cameras else 1


def float_columns(spec: Spec) -> dict[str, tuple[int, int]]:
    """The column range of each name in the float matrix: state features, then action columns, then reward.

    The state features come first and in spec order, so columns ``0..S-1`` are the flat state.
    """
    columns: dict[str, tuple[int, int]] = {}
    start = 0
    sizes = [(feature.name, feature.size) for feature in spec.state_features]
    sizes += [("action", spec.action.size), ("policy_action", spec.action.size), ("reward", 1)]
    for name, size in sizes:
        columns[name] = (start, start + size)
        start += size
    return columns


def column_name(spec: Spec, index: int) -> str:
    """A label for one column of the float matrix, for messages."""
    for name, (start, stop) in float_columns(spec).items():
        if start <= index < stop:
            if name in ("action", "policy_action"):
                return f"{name}[{index - start}] ({spec.action.names[index - start]})"
            if name == "reward":
                return name
            feature = next(f for f in spec.state_features if f.name == name)
            return feature.dimension_name(index - start) if len(feature.shape) == 1 else name
    raise DataError(f"the float matrix of this spec has no column {index}")


@dataclass(frozen=True, slots=True)
class Step:
    """One control step, as a writer receives it.

    Attributes:
        observation: what the policy saw, by feature name, or as the flat state (S,) where there are no
            cameras. A camera's frame is pixels (3, height, width) uint8, or the bytes of a JPEG or PNG file.
        action: the executed action (A,).
        reward: raw reward of this step.
        terminated, truncated: the episode ends here by itself, or is cut here (gymnasium's words).
        policy_action: what the policy proposed (A,). ``None`` means the executed action where
            ``source`` is POLICY, and "nothing was proposed" (NaN) elsewhere.
        source: who chose the executed action.
        intervention_id: number of the human's takeover within the episode, -1 outside one.
        stamp_ns: monotonic time of the observation, nanoseconds.
        age_ns: age of the oldest part of the observation at ``stamp_ns``, nanoseconds.
        policy_version: version of the weights in charge, -1 when there are none.
    """

    observation: Mapping[str, Array | bytes] | Array
    action: Array
    reward: float
    terminated: bool = False
    truncated: bool = False
    policy_action: Array | None = None
    source: Source = Source.POLICY
    intervention_id: int = NO_INTERVENTION
    stamp_ns: int = 0
    age_ns: int = 0
    policy_version: int = NO_VERSION


def as_state(spec: Spec, observation: Mapping[str, Array | bytes] | Array) -> Floats:
    """The flat state (S,) of an observation given by feature name or already flat.

    Raises DataError naming the feature or the shape that does not fit.
    """
    if isinstance(observation, Mapping):
        return flat_state(spec, observation)
    state = np.asarray(observation, np.float32)
    if state.shape != (spec.state_size,):
        raise DataError(f"observation has shape {state.shape}, the spec says ({spec.state_size},)")
    return state
