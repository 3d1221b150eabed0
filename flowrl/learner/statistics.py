"""Statistics of a replay under LeRobot's names, for the processors of a new LeRobot policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowrl.normalisation import SCALE_FLOOR, require_finite
from flowrl.replay.reader import ReplayReader

FRAMES = 256
"""Frames of each camera that the statistics of its pixels are taken from, spread evenly over the rows."""


def statistics(reader: ReplayReader) -> dict[str, dict[str, Tensor]]:
    """By feature: mean, std, min, max, q01, q10, q50, q90, q99, float32.

    Those of a camera are (3, 1, 1), of pixels in [0, 1]. Of the action, min and max (and the outer quantiles)
    are the spec's bounds, not the data's: reinforcement learning tries what no demonstration did. Raises
    DataError naming a value that is not finite.
    """
    spec = reader.spec
    require_finite(reader.state, spec.state_dimension_names())
    found: dict[str, dict[str, Tensor]] = {}
    start = 0
    for feature in spec.state_features:
        found[feature.name] = _summary(reader.state[:, start : start + feature.size])
        start += feature.size
    low, high = (torch.tensor(bound) for bound in (spec.action.low, spec.action.high))
    bounds = {"min": low, "q01": low, "q10": low, "max": high, "q99": high, "q90": high}
    found["action"] = _summary(reader.action) | bounds
    rows = np.unique(np.linspace(0, reader.rows - 1, FRAMES).astype(np.int64))
    for camera in spec.cameras:
        pixels = reader.frames.pixels(camera.name, rows).permute(0, 2, 3, 1).reshape(-1, 3)
        summary = _summary(pixels.numpy().astype(np.float32) / 255)
        found[camera.name] = {name: value.view(3, 1, 1) for name, value in summary.items()}
    return found


def _summary(values: Any) -> dict[str, Tensor]:
    """Statistics of (N, S) over the rows."""
    numbers = np.asarray(values, np.float64)
    quantiles = {f"q{q:02d}": np.quantile(numbers, q / 100, axis=0) for q in (1, 10, 50, 90, 99)}
    moments = {
        "mean": numbers.mean(axis=0),
        "std": np.maximum(numbers.std(axis=0), SCALE_FLOOR),
        "min": numbers.min(axis=0),
        "max": numbers.max(axis=0),
    }
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in (moments | quantiles).items()}
