"""A policy without a velocity: it returns its noise, scaled."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flowrl.policies.interface import ChunkPolicy, Context
from flowrl.policies.observation import Observation
from flowrl.spec import Spec


class ConstantPolicy(ChunkPolicy):
    """``scale * noise`` whatever it sees; two candidates per noise, one on each side."""

    kind = "constant"
    sample_name = "scaled noise"
    candidates_per_noise = 2

    def __init__(self, spec: Spec, scale: float = 0.5) -> None:
        super().__init__(spec)
        self.scale = scale

    def encode(self, observation: Observation) -> Context:
        return Context(self.normalised_state(observation.state))

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        return self.scale * noise

    def candidates(self, context: Context, noise: Tensor) -> Tensor:
        both = self.scale * noise
        return both.repeat_interleave(2, 0) * both.new_tensor([1.0, -1.0]).repeat(len(both))[:, None]

    def config(self) -> dict[str, Any]:
        return {"scale": self.scale}
