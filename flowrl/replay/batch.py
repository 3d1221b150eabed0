"""A batch of action chunks cut from replay, as every algorithm receives it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

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
        action: executed actions (B, H, A); for a policy that looks back or beyond its chunk those around it,
            too, (B, horizon, A).
        rewards, mask, valid: (B, H) float.
        next_observation: B rows.
        row: identity of the start row in the cache, (B,) int64.
        success: 1 where the start lies in an episode that succeeded, (B,) float.
        source: who acted at the start step, (B,) int64, see `flowrl.replay.schema.Source`.
        later: of a batch of sequences, the L-1 chunks that follow each of the B: (L-1) * B rows, first the
            second chunk of all B, then the third, ... Each starts where the one before it ended.
        present: of a batch of sequences, (L, B) float: 1 where that chunk exists. Chunk 0 always does; a
            later one does if the one before exists, is wholly valid and did not end the episode, and a
            chunk may start where it ended. What a row of ``later`` holds elsewhere is finite, no more. A
            chunk that is present may itself straddle the end: see its ``valid``.
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
    later: ChunkBatch | None = None
    present: Tensor | None = None

    def to(self, device: torch.device | str) -> ChunkBatch:
        """The same batch on another device."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: part if part is None else part.to(device) for name, part in parts.items()
        }
        return ChunkBatch(**moved)

    def __len__(self) -> int:
        return len(self.action)


class Batches(Protocol):
    """Where an algorithm gets its batches: as many as it wants, from the mix or from one named source."""

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        """A fresh batch from the configured mix, or from one named source such as ``successes``.

        With more than one of ``chunks`` it carries the chunks that follow: ``later`` and ``present``.
        """
        ...
