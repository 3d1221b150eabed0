"""What baselines around a cloning flow share: its loss, and the choice of a critic that is the method itself."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from flowrl.algorithms.interface import Batches
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.pretrain import imitation_loss
from flowrl.replay.batch import ChunkBatch


def check_counts(**counts: int) -> None:
    """Raise ValueError naming the first count below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; it must be at least 1")


def cloning_loss(
    flow: FlowPolicy,
    batch: ChunkBatch,
    batches: Batches,
    source: str | None,
    generator: torch.Generator,
) -> tuple[Tensor, dict[str, float]]:
    """Flow matching on the critic's ``batch``, or on a batch of the named ``source``; and its metrics.

    Rows that straddle the end of an episode weigh nothing; the authors of QC leave out their steps alone.
    """
    loss = imitation_loss(flow, batch if source is None else batches.batch(source), generator)
    return loss, {"flow/loss": float(loss.detach())}


def cloning_deviations(source: str | None, inherited: Iterable[str], *, chooses: bool) -> list[str]:
    """``inherited`` with the deviation that a ``source`` is; ``chooses`` drops the one that choosing would be."""
    own = [] if source is None else [f"the flow clones the source {source!r} only"]
    return own + [text for text in inherited if not (chooses and text.startswith("collects with the best"))]
