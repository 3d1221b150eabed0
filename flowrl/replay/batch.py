"""A batch of action chunks cut from replay, as every algorithm receives it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from flowrl.policies.observation import Observation


@dataclass(frozen=True)
class ChunkBatch:
    """B chunks of H steps in raw units, with the running semantics of Q-chunking (arXiv 2507.07969).

    For a start index t and i = 0..H-1:
    ``rewards[:, i] = sum_{j<=i} gamma^j r_{t+j}``; ``mask[:, i] = min_{j<=i} (1 - terminated_{t+j})``;
    ``valid[:, i] = 1 - max_{j<i} (terminated or truncated)_{t+j}``. ``next_observation`` is the one
    after the last valid step.

    Attributes:
        observation: at the start of the chunk, B rows.
        action: executed actions (B, H, A).
        rewards, mask, valid: (B, H) float.
        next_observation: B rows.
        row: identity of the start row in the cache, (B,) int64.
        success: 1 where the start lies in an episode that succeeded, (B,) float.
        source: who acted at the start step, (B,) int64, see `flowrl.replay.schema.Source`.
    """

    observation: Observation
    action: Tensor
    rewards: Tensor
    mask: Tensor
    valid: Tensor
    next_observation: Observation
    row: Tensor
    success: Tensor
    source: Tensor

    def to(self, device: torch.device | str) -> ChunkBatch:
        """The same batch on another device."""
        moved = {field.name: getattr(self, field.name).to(device) for field in fields(self)}
        return ChunkBatch(**moved)

    def __len__(self) -> int:
        return len(self.action)
