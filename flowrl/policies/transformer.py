"""A flow policy over action tokens: a small diffusion transformer (DiT, arXiv 2212.09748).

The sequence is the tokens of the observation followed by H action tokens, with full attention. Flow
time enters every block through adaLN-zero, so that the velocity starts as zero and every block as
the identity.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional

from flowrl.errors import ConfigError
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.networks import LAYER_NORM_EPSILON, TimeEmbedding, TimeEmbeddingKind, zero_
from flowrl.policies.observation import Observation
from flowrl.spec import Spec


class FlowTransformer(FlowPolicy):
    """Velocity by self-attention over observation tokens and H action tokens.

    Args:
        spec: with chunking and normalisation.
        width: W, size of a token; a multiple of ``heads``.
        depth: number of blocks.
        heads: attention heads.
        time_embedding: see `flowrl.policies.networks.TimeEmbeddingKind`.
        flow_steps: K, Euler steps of `sample`.

    Raises:
        ConfigError: ``width`` is not a positive multiple of ``heads``, or ``depth`` is below 1.
        DataError: the spec has no chunking or no normalisation.
    """

    kind = "flow_transformer"

    def __init__(
        self,
        spec: Spec,
        *,
        width: int = 64,
        depth: int = 3,
        heads: int = 4,
        time_embedding: TimeEmbeddingKind = "sinusoidal",
        flow_steps: int = 10,
    ) -> None:
        super().__init__(spec, flow_steps)
        if heads < 1 or width < 1 or width % heads:
            raise ConfigError(f"width {width} must be a positive multiple of heads {heads}")
        if depth < 1:
            raise ConfigError(f"a transformer needs a depth of at least 1, got {depth}")
        self._config: dict[str, Any] = {
            "width": width,
            "depth": depth,
            "heads": heads,
            "time_embedding": time_embedding,
        }
        self.embed_time = TimeEmbedding(time_embedding)
        self.time_mlp = nn.Sequential(
            nn.Linear(self.embed_time.size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.state_token = nn.Linear(spec.state_size, width)
        self.action_token = nn.Linear(spec.action.size, width)
        self.action_position = nn.Parameter(0.02 * torch.randn(self.chunk.length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = Head(width, spec.action.size)

    @property
    def head_parts(self) -> list[nn.Module]:
        """The last norm and projection."""
        return [self.head]

    def encode(self, observation: Observation) -> Context:
        """Raw observations to a context whose features are the normalised state (B, S)."""
        return Context(self.normalised_state(observation.state))

    def observation_tokens(self, context: Context) -> Tensor:
        """The tokens that condition the action tokens, (B, N, W): one for the state."""
        return self.state_token(context.features).unsqueeze(1)

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        """The velocity at x (B, D) and flow time t (B, 1): (B, D)."""
        chunk = rearrange(x, "b (h a) -> b h a", a=self.spec.action.size)
        time = self.time_mlp(self.embed_time(t))
        prefix = self.observation_tokens(context)
        tokens = torch.cat([prefix, self.action_token(chunk) + self.action_position], dim=1)
        for block in self.blocks:
            tokens = block(tokens, time)
        velocity = self.head(tokens[:, prefix.shape[1] :], time)
        return rearrange(velocity, "b h a -> b (h a)")

    def config(self) -> dict[str, Any]:
        """Constructor arguments beyond the spec, as JSON values."""
        return {**self._config, "flow_steps": self.flow_steps}


class Block(nn.Module):
    """Self-attention, then an MLP, each shifted, scaled and gated by the time: (B, N, W) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        zero_(self.modulation)
        self.norm_attention, self.norm_mlp = _norm(width), _norm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor, time: Tensor) -> Tensor:
        """``time`` (B, W) conditions tokens (B, N, W)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            self.modulation(time).unsqueeze(1).chunk(6, dim=-1)
        )  # each (B, 1, W)
        tokens = tokens + gate1 * self._attend(self.norm_attention(tokens) * (1 + scale1) + shift1)
        return tokens + gate2 * self.mlp(self.norm_mlp(tokens) * (1 + scale2) + shift2)

    def _attend(self, tokens: Tensor) -> Tensor:
        query, key, value = rearrange(
            self.query_key_value(tokens), "b n (three h w) -> three b h n w", three=3, h=self._heads
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.attention_out(rearrange(mixed, "b h n w -> b n (h w)"))


class Head(nn.Module):
    """The last norm, modulated by the time, and a projection that starts at zero."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.modulation = nn.Linear(width, 2 * width)
        self.projection = nn.Linear(width, outputs)
        zero_(self.modulation)
        zero_(self.projection)

    def forward(self, tokens: Tensor, time: Tensor) -> Tensor:
        """Tokens (B, H, W) with time (B, W) to (B, H, outputs)."""
        shift, scale = self.modulation(time).unsqueeze(1).chunk(2, dim=-1)
        return self.projection(self.norm(tokens) * (1 + scale) + shift)


def _norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=LAYER_NORM_EPSILON, elementwise_affine=False)
