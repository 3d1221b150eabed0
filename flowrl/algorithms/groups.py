"""Advantages of several actions in one state over each other, from an ensemble of critics."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

AdvantageKind = Literal["group", "consensus", "penultimate"]


def advantages(values: Tensor, kind: AdvantageKind) -> Tensor:
    """The advantages (B, G) of G actions in each of B states, from head values (M, B, G).

    ``group`` is `group_advantage`; ``consensus`` is `consensus_advantage`, and ``penultimate`` the same
    with the second most cautious head in the place of the most cautious one.
    """
    match kind:
        case "group":
            return group_advantage(values)
        case "consensus":
            return consensus_advantage(values)
        case "penultimate":
            return consensus_advantage(values, rank=1)


def group_advantage(values: Tensor) -> Tensor:
    """``A_g = Q_g - mean_g Q_g`` with Q the mean of the heads (1); not divided by a standard deviation."""
    mean = values.mean(dim=0)
    return mean - mean.mean(dim=1, keepdim=True)


def consensus_advantage(values: Tensor, rank: int = 0) -> Tensor:
    """The most cautious head's advantage where all heads agree on its sign, else 0 (2).

    Every head has its own group mean. Where all advantages are positive it is the smallest, where all are
    negative the largest; ``rank`` 1 takes the second smallest and second largest, and needs two heads. One
    head always agrees with itself, so that M = 1 gives the group advantage.
    """
    ordered = (values - values.mean(dim=2, keepdim=True)).sort(dim=0).values
    none = torch.zeros_like(ordered[0])
    negative = torch.where(ordered[-1] < 0, ordered[-1 - rank], none)
    return torch.where(ordered[0] > 0, ordered[rank], negative)
