"""The observation a policy encodes, batched: one flat state, images by camera name."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowrl.errors import DataError
from flowrl.spec import Feature, Spec


@dataclass(frozen=True)
class Observation:
    """A batch of observations in raw units.

    ``state`` (B, S) is every non-image feature, flattened and concatenated in spec order;
    ``images`` maps ``observation.images.<camera>`` to (B, 3, height, width) uint8, RGB; ``tasks`` holds the
    instruction of each row, or is empty where nobody gave one. ``past`` holds the observations of the steps
    before, oldest first, for policies that look back (`flowrl.spec.Chunking`); before an episode's first step
    stands a copy of its first observation.
    """

    state: Tensor
    images: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    tasks: tuple[str, ...] = ()
    past: tuple[Observation, ...] = ()

    def __len__(self) -> int:
        return len(self.state)

    def to(self, device: torch.device | str) -> Observation:
        """The same observation on another device."""
        images = {name: image.to(device) for name, image in self.images.items()}
        past = tuple(before.to(device) for before in self.past)
        return replace(self, state=self.state.to(device), images=images, past=past)

    def rows(self, chosen: Tensor) -> Observation:
        """Some rows (N,), in that order."""
        images = {name: image[chosen] for name, image in self.images.items()}
        tasks = tuple(self.tasks[row] for row in chosen.tolist()) if self.tasks else ()
        past = tuple(before.rows(chosen) for before in self.past)
        return Observation(self.state[chosen], images, tasks, past)


class History:
    """The latest observations of one running episode, for a policy that looks ``past`` steps back."""

    def __init__(self, spec: Spec, past: int) -> None:
        self._spec, self._past = spec, past
        self._kept = deque[Mapping[str, NDArray[Any]]](maxlen=past + 1)

    def add(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """The observation of the present step."""
        self._kept.append(observation)

    def observed(self, task: str) -> Observation:
        """What the policy sees now, one row. Raises DataError as `stack` does."""
        *before, now = (stack(self._spec, [each]) for each in self._kept)
        missing = self._past - len(before)
        past = (*[(before or [now])[0]] * missing, *before)
        return replace(now, tasks=(task,), past=past)


def flat_state(spec: Spec, observation: Mapping[str, NDArray[Any] | bytes]) -> NDArray[np.float32]:
    """Concatenate the state features of one step, in spec order, to (S,).

    Raises DataError naming the feature that is missing or has another shape.
    """
    parts: list[NDArray[Any]] = []
    for feature in spec.state_features:
        if feature.name not in observation:
            raise DataError(f"observation has no feature {feature.name!r}; it has {sorted(observation)}")
        value = np.asarray(observation[feature.name])
        if value.shape != feature.shape:
            raise DataError(
                f"feature {feature.name!r} has shape {value.shape}, the spec says {feature.shape}"
            )
        parts.append(value.reshape(-1))
    return np.concatenate(parts).astype(np.float32)


def stack(
    spec: Spec, observations: Sequence[Mapping[str, NDArray[Any]]], tasks: Sequence[str] = ()
) -> Observation:
    """Batch single-step observations, given by feature name, with the instruction of each if there is one.

    Raises DataError naming the feature that is missing or has another shape or type.
    """
    state = torch.from_numpy(np.stack([flat_state(spec, o) for o in observations]))
    images = {camera.name: torch.stack([_frame(camera, o) for o in observations]) for camera in spec.cameras}
    return Observation(state, images, tuple(tasks))


def _frame(camera: Feature, observation: Mapping[str, NDArray[Any]]) -> Tensor:
    if camera.name not in observation:
        raise DataError(f"observation has no frame of {camera.name!r}; it has {sorted(observation)}")
    frame = observation[camera.name]
    if frame.shape != camera.shape or frame.dtype != np.uint8:
        raise DataError(
            f"{camera.name!r} is {frame.dtype} of shape {frame.shape}, the spec says uint8 of {camera.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(frame))
