"""A deterministic policy for low-dimensional states: what a flow trained from scratch is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flowrl.activations import Activation
from flowrl.policies.interface import ChunkPolicy, Context
from flowrl.policies.networks import mlp
from flowrl.policies.observation import Observation
from flowrl.spec import Spec


class DeterministicMLP(ChunkPolicy):
    """``action = tanh(MLP(s))`` on the normalised state; takes no noise.

    The last layer starts at zero, so that the untrained policy acts in the middle of every range.

    Raises:
        ConfigError: a width or depth is not usable.
        DataError: the spec has no chunking or no normalisation.
    """

    kind = "deterministic_mlp"
    sample_name = "deterministic action"

    def __init__(
        self,
        spec: Spec,
        *,
        width: int = 256,
        depth: int = 2,
        activation: Activation = "silu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__(spec)
        self._config: dict[str, Any] = {
            "width": width,
            "depth": depth,
            "activation": activation,
            "layer_norm": layer_norm,
        }
        self.network = mlp(
            spec.state_size,
            width,
            depth,
            self.flat_size,
            activation=activation,
            layer_norm=layer_norm,
            zero_init_last=True,
        )

    def encode(self, observation: Observation) -> Context:
        """Raw observations to a context whose features are the normalised state (B, S)."""
        return Context(self.normalised_state(observation.state))

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        """The action (B, D), inside (-1, 1); ``noise`` is (B, 0)."""
        return torch.tanh(self.network(context.features))

    @property
    def noise_size(self) -> int:
        """0: the action follows from the state alone."""
        return 0

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return dict(self._config)
