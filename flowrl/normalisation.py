"""Per-dimension normalisation, fitted on data once and stored with it ever after.

The state is standardised and clipped; the action's bounds are mapped to [-1, 1], the box in which
every algorithm works (algorithms are written for normalised chunks). A policy carries its own
normalisation: statistics are never refitted on resume or at serving.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError

FloatArray = NDArray[np.float32]
STATE_CLIP = 5.0
SCALE_FLOOR = 3e-3
"""Smallest scale of a state dimension, in the data's unit: a constant dimension is divided by this."""


class ConstantDimension(UserWarning):
    """A dimension of the data does not vary, so its scale was floored."""


@dataclass(frozen=True)
class Normalisation:
    """Affine maps for the flat state (S) and the action (A), with the quantiles that checks need.

    ``state -> clip((state - state_mean) / state_scale, -clip, clip)``;
    ``action -> (action - action_centre) / action_half_range``.
    """

    state_mean: tuple[float, ...]
    state_scale: tuple[float, ...]
    state_q01: tuple[float, ...]
    state_q99: tuple[float, ...]
    action_centre: tuple[float, ...]
    action_half_range: tuple[float, ...]
    clip: float = STATE_CLIP

    def state(self, raw: NDArray[Any]) -> FloatArray:
        """Normalise states (..., S)."""
        scaled = (raw - np.asarray(self.state_mean)) / np.asarray(self.state_scale)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)

    def action(self, raw: NDArray[Any]) -> FloatArray:
        """Map actions (..., A) from the environment's bounds to [-1, 1]."""
        scaled = (raw - np.asarray(self.action_centre)) / np.asarray(self.action_half_range)
        return scaled.astype(np.float32)

    def raw_action(self, normalised: NDArray[Any]) -> FloatArray:
        """Map actions (..., A) from [-1, 1] to the environment's bounds."""
        raw = normalised * np.asarray(self.action_half_range) + np.asarray(self.action_centre)
        return raw.astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; floats survive exactly."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Normalisation:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
        return cls(**values)


def fit(
    states: NDArray[Any],
    action_low: Sequence[float],
    action_high: Sequence[float],
    dimension_names: Sequence[str],
    *,
    clip: float = STATE_CLIP,
    scale_floor: float = SCALE_FLOOR,
) -> Normalisation:
    """Fit on states (N, S). A dimension whose spread is below ``scale_floor`` is named in a warning.

    Raises DataError when there is no data or a value is not finite.
    """
    if states.ndim != 2 or len(states) == 0:
        raise DataError(f"normalisation needs states of shape (N, S) with N > 0, got {states.shape}")
    require_finite(states, dimension_names)
    values = states.astype(np.float64)
    std = values.std(axis=0)
    constant = [name for name, spread in zip(dimension_names, std, strict=True) if spread < scale_floor]
    if constant:
        warnings.warn(
            f"{len(constant)} state dimensions vary by less than {scale_floor:g}, "
            f"which became their scale: "
            f"{', '.join(constant)}",
            ConstantDimension,
            stacklevel=2,
        )
    low, high = np.asarray(action_low, np.float64), np.asarray(action_high, np.float64)
    q01, q99 = np.quantile(values, [0.01, 0.99], axis=0)
    return Normalisation(
        state_mean=_floats(values.mean(axis=0)),
        state_scale=_floats(np.maximum(std, scale_floor)),
        state_q01=_floats(q01),
        state_q99=_floats(q99),
        action_centre=_floats((high + low) / 2),
        action_half_range=_floats((high - low) / 2),
        clip=clip,
    )


def require_finite(values: NDArray[Any], dimension_names: Sequence[str], where: str = "row") -> None:
    """Raise DataError naming the first row and dimension that is not finite. ``values`` is (N, D)."""
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise DataError(
            f"{dimension_names[column]} is {values[row, column]} at {where} {row} "
            f"({len(bad)} non-finite values in all); remove or repair that episode"
        )


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
