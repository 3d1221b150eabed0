"""A flow policy for low-dimensional states: one MLP for the velocity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flowrl.activations import Activation
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.networks import TimeEmbedding, TimeEmbeddingKind, mlp
from flowrl.policies.observation import Observation
from flowrl.spec import Spec


class FlowMLP(FlowPolicy):
    """``velocity = MLP(concat(s, x, embed(t)))`` on the normalised state.

    Args:
        spec: with chunking and normalisation.
        width: units of a hidden layer.
        depth: number of hidden layers.
        time_embedding: see `flowrl.policies.networks.TimeEmbeddingKind`.
        activation: of the hidden layers; the authors' is GELU in its tanh form.
        layer_norm: LayerNorm after the activation of each hidden layer.
        zero_init_last: start from the zero velocity.
        flow_steps: K, Euler steps of `sample`.

    Raises:
        ConfigError: a width, depth or time embedding is not usable.
        DataError: the spec has no chunking or no normalisation.
    """

    kind = "flow_mlp"

    def __init__(
        self,
        spec: Spec,
        *,
        width: int = 256,
        depth: int = 3,
        time_embedding: TimeEmbeddingKind = "fourier",
        activation: Activation = "gelu_tanh",
        layer_norm: bool = False,
        zero_init_last: bool = False,
        flow_steps: int = 10,
    ) -> None:
        super().__init__(spec, flow_steps)
        self._config: dict[str, Any] = {
            "width": width,
            "depth": depth,
            "time_embedding": time_embedding,
            "activation": activation,
            "layer_norm": layer_norm,
            "zero_init_last": zero_init_last,
        }
        self.embed_time = TimeEmbedding(time_embedding)
        self.network = mlp(
            spec.state_size + self.flat_size + self.embed_time.size,
            width,
            depth,
            self.flat_size,
            activation=activation,
            layer_norm=layer_norm,
            zero_init_last=zero_init_last,
        )

    @property
    def head_parts(self) -> list[nn.Module]:
        """The last layer."""
        return [self.network[-1]]

    def encode(self, observation: Observation) -> Context:
        """Raw observations to a context whose features are the normalised state (B, S)."""
        return Context(self.normalised_state(observation.state))

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity at x (B, D) and flow time t (B, 1): (B, D)."""
        return self.network(torch.cat([context.features, x, self.embed_time(t)], dim=-1))

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return {**self._config, "flow_steps": self.flow_steps}
