"""The network of a success classifier: camera frames, and the state where it is asked for, to one logit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flowrl.policies.networks import mlp
from flowrl.policies.observation import Observation
from flowrl.policies.vision import CameraEncoder
from flowrl.rewards.config import ClassifierConfig
from flowrl.spec import Feature


class SuccessNetwork(nn.Module):
    """Observations of B rows to logits of success (B,).

    ``state_size`` is S, 0 when the state is not seen; its scale is set by `fit_state`.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, cameras: Sequence[Feature], state_size: int, config: ClassifierConfig) -> None:
        super().__init__()
        self.encoder = CameraEncoder(
            cameras,
            width=config.width,
            queries=config.queries,
            depth=config.depth,
            heads=config.heads,
            backbone=config.backbone,
            shift=config.shift,
        )
        self.register_buffer("mean", torch.zeros(state_size))
        self.register_buffer("scale", torch.ones(state_size))
        inputs = len(cameras) * config.queries * config.width + state_size
        self.head = mlp(inputs, config.width, 1, 1)

    def fit_state(self, state: Tensor) -> None:
        """Normalise the state by the rows (N, S) of training; a constant dimension counts for nothing."""
        deviation = state.std(dim=0, correction=0)
        self.mean.copy_(state.mean(dim=0))
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, torch.full_like(deviation, torch.inf)))

    def forward(self, observation: Observation) -> Tensor:
        """Raw observations to logits (B,)."""
        seen = self.encoder(observation.images).flatten(1)
        if len(self.mean):
            seen = torch.cat([seen, (observation.state - self.mean) / self.scale], dim=1)
        return self.head(seen).squeeze(1)
