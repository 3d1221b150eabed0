"""Seam 4, the algorithm: owns its networks, optimisers, target copies and update ratio."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from flowrl.acting import Actor
from flowrl.replay.batch import Batches

__all__ = ["Algorithm", "Batches"]


class Algorithm(Protocol):
    """What the learner loop, the checkpoint and the actors know of an algorithm."""

    def update(self, batches: Batches) -> dict[str, float]:
        """One update. Returns metrics named ``critic/...``, ``actor/...``; tensors never leave it."""
        ...

    def warm_up(self, batches: Batches) -> dict[str, float]:
        """One update of the critics alone, before the policy may move."""
        ...

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """Costlier metrics, asked for once per log interval; changes nothing that training depends on."""
        ...

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """The live acting networks under the algorithm's rule for collection or for evaluation."""
        ...

    def deviations(self) -> list[str]:
        """Options that deviate from the publication, in words; every report names them."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-equal resume needs: nested dictionaries of tensors and JSON values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...
