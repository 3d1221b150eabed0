"""Small builders that several tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from flowrl.normalisation import Normalisation
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from flowrl.spec import ActionSpec, Feature, Spec


def identity_spec(state: int, action: int, chunk: int) -> Spec:
    """A spec whose normalisation changes nothing (up to a clip far away)."""
    normalisation = Normalisation(
        state_mean=(0.0,) * state,
        state_scale=(1.0,) * state,
        state_q01=(-1.0,) * state,
        state_q99=(1.0,) * state,
        action_centre=(0.0,) * action,
        action_half_range=(1.0,) * action,
        clip=1e6,
    )
    names = tuple(f"a{i}" for i in range(action))
    return Spec(
        observation=(Feature("observation.state", (state,)),),
        action=ActionSpec(names, (-1.0,) * action, (1.0,) * action),
        control_hz=10.0,
        normalisation=normalisation,
    ).with_chunk(chunk)


def chunk_batch(
    state: torch.Tensor,
    action: torch.Tensor,
    rewards: torch.Tensor,
    mask: torch.Tensor | None = None,
    valid: torch.Tensor | None = None,
    next_state: torch.Tensor | None = None,
) -> ChunkBatch:
    """A batch from its parts; what is not given is neutral."""
    ones = torch.ones_like(rewards)
    rows = len(state)
    return ChunkBatch(
        observation=Observation(state),
        action=action,
        rewards=rewards,
        mask=ones if mask is None else mask,
        valid=ones if valid is None else valid,
        next_observation=Observation(state if next_state is None else next_state),
        row=torch.arange(rows),
        success=torch.zeros(rows),
        source=torch.zeros(rows, dtype=torch.int64),
    )


def with_later(batch: ChunkBatch, chunks: int) -> ChunkBatch:
    """A batch of sequences of which no later chunk is present."""
    if chunks == 1:
        return batch
    present = torch.zeros(chunks, len(batch))
    present[0] = 1
    return replace(batch, later=stack_batches([batch] * (chunks - 1)), present=present)


def stack_batches(batches: Sequence[ChunkBatch]) -> ChunkBatch:
    """The rows of several batches without sequences, one batch after another."""
    parts: dict[str, Any] = {}
    for name in (field.name for field in fields(ChunkBatch) if field.name not in ("later", "present")):
        rows = [getattr(batch, name) for batch in batches]
        observed = isinstance(rows[0], Observation)
        parts[name] = Observation(torch.cat([o.state for o in rows])) if observed else torch.cat(rows)
    return ChunkBatch(**parts)
