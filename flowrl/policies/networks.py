"""The parts that policy networks share: time embeddings and a plain MLP."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional

from flowrl import activations
from flowrl.activations import Activation
from flowrl.errors import ConfigError

TimeEmbeddingKind = Literal["scalar", "fourier", "sinusoidal"]
"""``scalar``: t itself, as in the public code of SQAM and QAM (arXiv 2610.10437, 2601.14234).
``fourier``: t with sine and cosine of pi t and 2 pi t. ``sinusoidal``: 64 values at geometric
frequencies, for networks that see time through a layer of their own."""

SINUSOIDAL_SIZE = 64
LAYER_NORM_EPSILON = 1e-6
"""As in the authors' code (flax's default), so that their weights give the same values."""

SINUSOIDAL_RANGE = (1.0, 100.0)
"""Lowest and highest angular frequency, for times in [0, 1]: neighbouring levels of a diffusion of 100
steps differ by one radian at most, so what lies between two trained levels is interpolated."""


class TimeEmbedding(nn.Module):
    """Embed flow times (B, 1) as (B, E). Has no parameters; ``size`` is E."""

    frequencies: Tensor

    def __init__(self, kind: TimeEmbeddingKind) -> None:
        super().__init__()
        if kind not in get_args(TimeEmbeddingKind):
            raise ConfigError(
                f"time_embedding is {kind!r}; expected one of {', '.join(get_args(TimeEmbeddingKind))}"
            )
        self._keep_t = kind != "sinusoidal"
        self.register_buffer("frequencies", _frequencies(kind), persistent=False)
        self.size = int(self._keep_t) + 2 * len(self.frequencies)

    def forward(self, t: Tensor) -> Tensor:
        """Times (B, 1) to (B, E)."""
        if not len(self.frequencies):
            return t
        angles = t * self.frequencies
        waves = [angles.sin(), angles.cos()]
        return torch.cat([t, *waves] if self._keep_t else waves, dim=-1)


class Attention(nn.Module):
    """Queries from one set of tokens (B, N, W), keys and values from another (B, M, W): (B, N, W).

    Raises ConfigError when ``width`` is no positive multiple of ``heads``.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or width < 1 or width % heads:
            raise ConfigError(f"width {width} must be a positive multiple of heads {heads}")
        self._heads = heads
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor, seen: Tensor) -> Tensor:
        """``tokens`` ask, ``seen`` answers."""
        query = rearrange(self.query(tokens), "b n (h w) -> b h n w", h=self._heads)
        key, value = rearrange(self.key_value(seen), "b n (two h w) -> two b h n w", two=2, h=self._heads)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out(rearrange(mixed, "b h n w -> b n (h w)"))


def mlp(
    inputs: int,
    width: int,
    depth: int,
    outputs: int,
    *,
    layer_norm: bool = False,
    zero_init_last: bool = False,
    activation: Activation = "gelu_tanh",
) -> nn.Sequential:
    """``depth`` hidden layers of ``width`` with their activation, LayerNorm after each if asked."""
    if width < 1 or depth < 1:
        raise ConfigError(f"an MLP needs width and depth of at least 1, got width {width} and depth {depth}")
    layers: list[nn.Module] = []
    size = inputs
    for _ in range(depth):
        layers += [nn.Linear(size, width), activations.module(activation)]
        if layer_norm:
            layers.append(nn.LayerNorm(width, eps=LAYER_NORM_EPSILON))
        size = width
    last = nn.Linear(size, outputs)
    if zero_init_last:
        zero_(last)
    return nn.Sequential(*layers, last)


def zero_(layer: nn.Linear) -> None:
    """Set a layer's weight and bias to zero, so that what it adds starts as nothing."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)


def _frequencies(kind: TimeEmbeddingKind) -> Tensor:
    if kind == "scalar":
        return torch.empty(0)
    if kind == "fourier":
        return torch.tensor([math.pi, 2 * math.pi])
    low, high = SINUSOIDAL_RANGE
    return torch.logspace(math.log10(low), math.log10(high), SINUSOIDAL_SIZE // 2)
