"""The two actors of training from scratch: everything in which QF3 and TD3 differ."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from flowrl.acting import Actor
from flowrl.algorithms.qf3 import LossWeights, PathPoint, Value, qf3_loss, value_through_action
from flowrl.policies.deterministic import DeterministicMLP
from flowrl.policies.interface import ChunkPolicy, Context
from flowrl.policies.mlp import FlowMLP
from flowrl.scratch.config import DeterministicActorConfig, FlowActorConfig
from flowrl.spec import Spec

Purpose = Literal["collect", "target"]


class ScratchActor(Protocol):
    """A policy and how it acts, learns and is deployed."""

    @property
    def policy(self) -> ChunkPolicy:
        """The trained policy."""
        ...

    def noise(self, rows: int, purpose: Purpose, generator: torch.Generator) -> Tensor:
        """What ``policy.sample`` starts from, (rows, noise_size)."""
        ...

    def loss(
        self, context: Context, action: Tensor, value: Value, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss on replay actions (B, D) whose critic is ``value``, and metrics."""
        ...

    def deployed(self) -> Actor:
        """The deterministic acting rule under which the policy is evaluated and used."""
        ...


class FlowActor:
    """QF3: a flow with sinusoidal time and a last layer that starts at zero (arXiv 2610.08789, section 4)."""

    def __init__(self, config: FlowActorConfig, spec: Spec) -> None:
        self.config = config
        self.policy = FlowMLP(
            spec,
            width=config.width,
            depth=config.depth,
            time_embedding="sinusoidal",
            activation=config.activation,
            layer_norm=config.layer_norm,
            zero_init_last=True,
            flow_steps=config.flow_steps,
        )

    def noise(self, rows: int, purpose: Purpose, generator: torch.Generator) -> Tensor:
        """Standard normal or zero, as configured for the purpose."""
        chosen = self.config.collect_noise if purpose == "collect" else self.config.target_noise
        size = self.policy.noise_size
        return torch.zeros(rows, size) if chosen == "zero" else torch.randn(rows, size, generator=generator)

    def loss(
        self, context: Context, action: Tensor, value: Value, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, float]]:
        """`flowrl.algorithms.qf3.qf3_loss` without a base."""
        point = PathPoint.sample(action, generator)
        velocity = self.policy.velocity(context, point.x, point.t)
        return qf3_loss(value, velocity, point, LossWeights(self.config.alpha, self.config.flow_weight))

    def deployed(self) -> Actor:
        """One ODE sample from zero noise."""
        return Actor(self.policy, zero_noise=True)


class DeterministicActor:
    """TD3: the critic's gradient straight into a tanh policy (arXiv 1802.09477)."""

    def __init__(self, config: DeterministicActorConfig, spec: Spec) -> None:
        self.policy = DeterministicMLP(
            spec,
            width=config.width,
            depth=config.depth,
            activation=config.activation,
            layer_norm=config.layer_norm,
        )

    def noise(self, rows: int, purpose: Purpose, generator: torch.Generator) -> Tensor:
        """Nothing, (rows, 0)."""
        return torch.zeros(rows, 0)

    def loss(
        self, context: Context, action: Tensor, value: Value, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, float]]:
        """``mean -Q(s, pi(s))``; the replay actions play no part."""
        proposed = self.policy.sample(context, context.features[:, :0])
        loss = -value_through_action(value, proposed).mean()
        saturated = float((proposed.detach().abs() > 0.98).float().mean())
        return loss, {"actor/loss": float(loss.detach()), "actor/saturated": saturated}

    def deployed(self) -> Actor:
        """The policy as it is."""
        return Actor(self.policy)


def make_actor(config: FlowActorConfig | DeterministicActorConfig, spec: Spec, seed: int) -> ScratchActor:
    """The actor of a configuration; ``seed`` fixes its first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match config:
            case FlowActorConfig():
                return FlowActor(config, spec)
            case DeterministicActorConfig():
                return DeterministicActor(config, spec)
