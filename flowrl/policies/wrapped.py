"""Policies built around a flow policy, and the tanh Gaussian network that several of them share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowrl.activations import Activation
from flowrl.policies.action_view import ActionView
from flowrl.policies.interface import ChunkPolicy, Context, FlowPolicy, Trainable
from flowrl.policies.io import create_flow_policy
from flowrl.policies.networks import mlp
from flowrl.policies.observation import Observation
from flowrl.spec import Spec

_BASE = "base."


class WrappedPolicy(ChunkPolicy):
    """A policy that owns a flow policy, ``base``, and sees through its encoder.

    Args:
        spec: with chunking and normalisation.
        base: the flow policy, or its kind and settings, ``{"kind": ..., "config": {...}}``.
    """

    def __init__(self, spec: Spec, base: Mapping[str, Any] | FlowPolicy) -> None:
        super().__init__(spec)
        if not isinstance(base, FlowPolicy):
            base = create_flow_policy(base["kind"], spec, base["config"])
        self.base: FlowPolicy = base

    @classmethod
    def around(cls, base: FlowPolicy, **settings: Any) -> Self:
        """A fresh wrapper with a copy of ``base`` inside, on its device."""
        policy = cls(base.spec, base=deepcopy(base), **settings)
        return policy.to(base.device).train_only(base.trainable)

    def train_only(self, what: Trainable) -> Self:
        """As in `ChunkPolicy`, for the flow policy inside; what is built around it learns in any case."""
        self.base.train_only(what)
        self.trainable = what
        return self

    @property
    def encoder_parts(self) -> list[nn.Module]:
        """Those of the flow policy."""
        return self.base.encoder_parts

    def stored_tensors(self) -> dict[str, Tensor]:
        """The flow policy's, their names after ``base.``, and what is built around it."""
        inside = {_BASE + name: tensor for name, tensor in self.base.stored_tensors().items()}
        around = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(_BASE)}
        return inside | around

    def load_stored(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `stored_tensors` gave."""
        inside = {name.removeprefix(_BASE): t for name, t in tensors.items() if name.startswith(_BASE)}
        self.base.load_stored(inside)
        self.load_state_dict(
            {name: t for name, t in tensors.items() if not name.startswith(_BASE)}, strict=False
        )

    def encode(self, observation: Observation) -> Context:
        """What the flow policy makes of the observation."""
        return self.base.encode(observation)

    @property
    def action_view(self) -> ActionView:
        """That of the flow policy."""
        return self.base.action_view

    def clip(self, flat: Tensor) -> Tensor:
        """As the flow policy does."""
        return self.base.clip(flat)

    def flat_action(self, raw: Tensor) -> Tensor:
        """As the flow policy does."""
        return self.base.flat_action(raw)

    def raw_action(self, flat: Tensor) -> Tensor:
        """As the flow policy does."""
        return self.base.raw_action(flat)

    @property
    def flat_size(self) -> int:
        """That of the flow policy."""
        return self.base.flat_size

    @property
    def feature_size(self) -> int:
        """That of the flow policy."""
        return self.base.feature_size

    def config(self) -> dict[str, Any]:
        """The flow policy's kind and settings; subclasses add their own."""
        return {"base": {"kind": self.base.kind, "config": self.base.config()}}


class TanhGaussian(nn.Module):
    """``tanh(mean(s) + std(s) xi)``: a squashed Gaussian over (-1, 1)^D (SAC, arXiv 1812.05905, appendix C).

    The logarithm of the standard deviation is squashed into ``log_std_range`` by a tanh, which leaves
    it a gradient everywhere.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        width: int,
        depth: int,
        activation: Activation = "gelu",
        layer_norm: bool = False,
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        zero_init_last: bool = False,
    ) -> None:
        super().__init__()
        self.log_std_range = log_std_range
        self.network = mlp(
            inputs,
            width,
            depth,
            2 * outputs,
            activation=activation,
            layer_norm=layer_norm,
            zero_init_last=zero_init_last,
        )

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, D) before the tanh, of features (B, F)."""
        mean, raw = self.network(features).chunk(2, dim=-1)
        low, high = self.log_std_range
        return mean, (low + 0.5 * (high - low) * (raw.tanh() + 1)).exp()

    def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions (B, D) from standard normal noise (B, D), and their log-density (B,)."""
        mean, std = self.moments(features)
        point = mean + std * noise
        return point.tanh(), self._log_density(point, mean, std)

    def log_prob(self, features: Tensor, action: Tensor, margin: float = 1e-6) -> Tensor:
        """Log-density (B,) of actions (B, D); those beyond ``1 - margin`` are taken at that place."""
        mean, std = self.moments(features)
        return self._log_density(torch.atanh(action.clamp(-1 + margin, 1 - margin)), mean, std)

    @staticmethod
    def _log_density(point: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        gaussian = -0.5 * ((point - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(u)^2) in a form that neither overflows nor loses digits.
        squash = 2 * (math.log(2) - point - F.softplus(-2 * point))
        return (gaussian - squash).sum(dim=-1)
