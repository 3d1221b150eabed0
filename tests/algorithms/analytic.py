"""Policies and critics whose right answers are known, shared by the tests of SQAM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from flowrl.critics.encoder import Viewer
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from tests.helpers import chunk_batch, identity_spec, with_later


class LinearFlow(FlowPolicy):
    """``v(s, x, t) = slope[k] x + gain[k] s`` at t = k / K: starts as the flow of N(mean * s, std^2).

    The state is as large as the flat chunk. Every time has its own two parameters, so that a loss which
    is quadratic in the velocity is minimised exactly by one Newton step per time (`minimise`).
    """

    kind = "linear_flow"

    def __init__(self, size: int, flow_steps: int, std: float, mean: float = 0.0) -> None:
        super().__init__(identity_spec(size, size, 1), flow_steps)
        t = torch.arange(flow_steps + 1, dtype=torch.float64) / flow_steps
        slope = gaussian_slope(t, std)
        self.slope = nn.Parameter(slope.to(torch.get_default_dtype()))
        self.gain = nn.Parameter((mean * (1 - slope * t)).to(torch.get_default_dtype()))

    def encode(self, observation: Observation) -> Context:
        return Context(observation.state)

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        index = (t[:, 0] * self.flow_steps).round().long()
        return self.slope[index, None] * x + self.gain[index, None] * context.features

    def config(self) -> dict[str, Any]:
        return {}

    def minimise(self, loss: Tensor, rate: float = 1.0) -> None:
        """Move every time's slope and gain by ``rate`` of the way to the minimiser of ``loss``.

        Times that the loss leaves out stay as they are.
        """
        parameters = (self.slope, self.gain)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        rows = [torch.autograd.grad(g.sum(), parameters, retain_graph=True) for g in gradient]
        hessian = torch.stack([torch.stack(row) for row in rows]).permute(2, 0, 1)
        used = hessian.diagonal(dim1=1, dim2=2).amin(dim=1) > 0
        step = torch.linalg.solve(hessian[used], torch.stack(gradient).T[used].detach())
        with torch.no_grad():
            self.slope[used] -= rate * step[:, 0]
            self.gain[used] -= rate * step[:, 1]

    def moments(self) -> tuple[float, float]:
        """Exact std and mean (per unit of state) of an Euler sample."""
        std, mean = 1.0, 0.0
        for slope, gain in zip(self.slope[:-1].tolist(), self.gain[:-1].tolist(), strict=True):
            std, mean = (
                std * (1 + slope / self.flow_steps),
                mean + (slope * mean + gain) / self.flow_steps,
            )
        return std, mean


def gaussian_slope(t: Tensor, std: float) -> Tensor:
    """``c_t = (t s^2 - (1 - t)) / rho_t``, the slope of the flow to N(mu, s^2)."""
    return (t * std**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * std**2)


class KnownCritic(Viewer):
    """A critic given by a formula ``value(s, a) -> (B,)``, as an ensemble of ``heads`` equal heads."""

    def __init__(self, value: Callable[[Tensor, Tensor], Tensor], heads: int = 1) -> None:
        super().__init__()
        self.value = value
        self.heads = heads

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        return self.value(features, action).expand(self.heads, -1)


class FixedBatches:
    """Batches as a pure function of how many were drawn, by source; the draws can be rewound.

    Of a batch of sequences, no later chunk is present.
    """

    def __init__(self, make: Callable[[int, str | None], ChunkBatch]) -> None:
        self.make = make
        self.drawn = 0
        self.sources: list[str | None] = []

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        self.drawn += 1
        self.sources.append(source)
        return with_later(self.make(self.drawn, source), chunks)

    @classmethod
    def random(cls, rows: int, state: int, action: int, chunk: int) -> Self:
        """Batches of normal states, uniform actions and rewards in [-1, 0], all rows valid."""
        return cls(lambda count, source: random_batch(count, rows, state, action, chunk))


def random_batch(seed: int, rows: int, state: int, action: int, chunk: int) -> ChunkBatch:
    generator = torch.Generator().manual_seed(seed)
    return chunk_batch(
        torch.randn(rows, state, generator=generator),
        torch.rand(rows, chunk, action, generator=generator) * 2 - 1,
        -torch.rand(rows, chunk, generator=generator),
        next_state=torch.randn(rows, state, generator=generator),
    )
