"""The observation a policy encodes, batched: one flat state, images by camera name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flowrl.errors import DataError
from flowrl.spec import Spec


@dataclass(frozen=True)
class Observation:
    """A batch of observations in raw units.

    ``state`` (B, S) is every non-image feature, flattened and concatenated in spec order;
    ``images`` maps ``observation.images.<camera>`` to (B, 3, height, width).
    """

    state: Tensor
    images: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __len__(self) -> int:
        return len(self.state)

    def to(self, device: torch.device | str) -> Observation:
        """The same observation on another device."""
        return Observation(
            self.state.to(device), {name: image.to(device) for name, image in self.images.items()}
        )


def flat_state(spec: Spec, observation: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
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


def stack(spec: Spec, observations: Sequence[Mapping[str, NDArray[Any]]]) -> Observation:
    """Batch single-step observations, given by feature name."""
    return Observation(torch.from_numpy(np.stack([flat_state(spec, o) for o in observations])))
