"""Targets and losses of chunked temporal-difference learning (arXiv 2507.07969), and head aggregation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flowrl.activations import Activation
from flowrl.config import configclass
from flowrl.critics.ensemble import CriticEnsemble

Aggregation = Literal["mean", "min", "mean_minus_std", "subsample_min2"]


@configclass
class CriticConfig:
    """The critic ensemble and how its targets are made."""

    heads: int = 10
    """M, independent critics."""
    width: int = 512
    """Width of each hidden layer."""
    depth: int = 4
    """Hidden layers."""
    layer_norm: bool = True
    """LayerNorm after each hidden layer; off makes off-policy learning diverge on most tasks."""
    activation: Activation = "gelu_tanh"
    """Of the hidden layers: gelu_tanh, gelu or relu; the exact gelu is faster on some CPUs."""
    aggregation: Aggregation = "mean_minus_std"
    """How the heads' values of the next chunk become one number in the TD target."""
    pessimism: float = 0.5
    """rho of mean_minus_std: standard deviations over heads subtracted from the mean."""
    polyak: float = 0.005
    """Rate of the target critic's moving average, per update."""
    learning_rate: float = 3e-4
    """Adam's step size for the critic."""
    target_low: float | None = None
    """Lower bound of the bootstrap value, when the reward makes one known (for example -10)."""
    target_high: float | None = None
    """Upper bound of the bootstrap value, when the reward makes one known (for example 0)."""

    def build(self, feature_size: int, flat_action_size: int) -> CriticEnsemble:
        """A fresh ensemble for features (B, F) and flat chunks (B, D)."""
        return CriticEnsemble(
            feature_size + flat_action_size,
            heads=self.heads,
            width=self.width,
            depth=self.depth,
            layer_norm=self.layer_norm,
            activation=self.activation,
        )


def aggregate(
    values: Tensor,
    kind: Aggregation,
    pessimism: float = 0.5,
    generator: torch.Generator | None = None,
    *,
    fresh_pairs: bool = False,
) -> Tensor:
    """Reduce head values (M, B) to (B,).

    ``mean_minus_std`` subtracts ``pessimism`` population standard deviations; ``subsample_min2`` takes
    the minimum of two heads drawn fresh for each call and shared over the batch, or with ``fresh_pairs``
    drawn for each column.
    """
    match kind:
        case "mean":
            return values.mean(dim=0)
        case "min":
            return values.min(dim=0).values
        case "mean_minus_std":
            return values.mean(dim=0) - pessimism * values.std(dim=0, correction=0)
        case "subsample_min2":
            if fresh_pairs:
                pick = torch.rand(values.shape, generator=generator).argsort(dim=0)[:2].to(values.device)
                return values.gather(0, pick).min(dim=0).values
            pick = torch.randperm(len(values), generator=generator)[:2]
            return values[pick].min(dim=0).values


def chunk_target(
    reward: Tensor,
    mask: Tensor,
    next_values: Tensor,
    discount: float,
    chunk_length: int,
    low: float | None = None,
    high: float | None = None,
) -> Tensor:
    """``y = R_H + gamma^H mask V'`` for running rewards R_H, mask and next values, all (B,).

    Unbiased off-policy because the whole chunk is the action. ``low`` and ``high`` bound V'.
    """
    if low is not None or high is not None:
        next_values = next_values.clamp(low, high)
    return reward + discount**chunk_length * mask * next_values


def td_loss(values: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """``mean over M and B of weight (Q_m - y)^2``: values (M, B), target and weight (B,)."""
    return (weight * (values - target).square()).mean()
