"""What the baselines share: an actor's loss by a critic's gradient, and SAC's temperature (arXiv 1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flowrl.algorithms.base import ActorCritic, ActorCriticConfig
from flowrl.config import configclass
from flowrl.critics.ensemble import CriticEnsemble, action_gradient
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.wrapped import WrappedPolicy


@configclass
class SoftConfig(ActorCriticConfig):
    """Hyper-parameters of an actor that is a squashed Gaussian with an entropy to keep."""

    width: int = 256
    """Units of a hidden layer of the squashed Gaussian."""
    depth: int = 3
    """Hidden layers of the squashed Gaussian."""
    temperature: float = 1.0
    """alpha before the first update: how much an entropy of 1 is worth, in units of the value."""
    temperature_rate: float = 3e-4
    """Adam's step size for log alpha."""
    target_entropy: float = -0.5
    """The entropy that alpha aims at, per dimension of the squashed action; log 2 = 0.69 is uniform."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; it must be positive")
        if self.target_entropy >= math.log(2):
            raise ValueError(
                f"target_entropy is {self.target_entropy}; no density on (-1, 1) has log 2 = 0.693 or more"
            )


def ascent_loss(critic: CriticEnsemble, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``-mean_B mean_m Q_m(s, clip(a))``, whose gradient reaches ``action`` (B, D) and not the critic.

    Returns the loss, the critic's gradient at the action (B, D) and the values (M, B), these two detached.
    """
    gradient, values = action_gradient(critic, features, action)
    moved = ((action - action.detach()) * gradient).sum(dim=1)
    return -(values.mean() + moved.mean()), gradient, values


class Temperature(nn.Module):
    """SAC's alpha, learned as its logarithm so that the entropy of the actor stays at a target."""

    def __init__(self, initial: float, target_entropy: float) -> None:
        super().__init__()
        self.target_entropy = target_entropy
        self.log_value = nn.Parameter(torch.tensor(math.log(initial)))

    @property
    def value(self) -> Tensor:
        """alpha, without gradient."""
        return self.log_value.detach().exp()

    def loss(self, log_density: Tensor) -> Tensor:
        """``-alpha mean_B (log pi + target entropy)``, with gradient in log alpha alone; log pi is (B,)."""
        return -self.log_value.exp() * (log_density.detach().mean() + self.target_entropy)


class SoftActorCritic[Config: SoftConfig, Policy: WrappedPolicy](ActorCritic[Config, Policy]):
    """An `ActorCritic` whose actor keeps an entropy by a learned temperature.

    Attributes:
        temperature: alpha.
    """

    def __init__(self, config: Config, policy: Policy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        entropy = config.target_entropy * policy.flat_size
        self.temperature = Temperature(config.temperature, entropy).to(policy.device)

    def soft_loss(
        self, critic: CriticEnsemble, features: Tensor, action: Tensor, log_density: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """The actor's loss ``mean_B [alpha log pi - mean_m Q_m(s, clip(a))]`` and its metrics.

        ``action`` (B, D) and ``log_density`` (B,) carry the actor's gradient; the critic gets none.
        """
        ascent, gradient, values = ascent_loss(critic, features, action)
        loss = ascent + self.temperature.value * log_density.mean()
        return loss, {
            "actor/loss": float(loss.detach()),
            "actor/q": float(values.mean()),
            "actor/q_gradient_norm": float(gradient.norm(dim=1).mean()),
            "actor/entropy": -float(log_density.detach().mean()) / action.shape[1],
        }

    def temper(self, log_density: Tensor) -> dict[str, float]:
        """One step of the temperature, by itself: its gradient must not shrink others in a joint clip."""
        norms = self.step(self.temperature.loss(log_density))
        return {"temperature/value": float(self.temperature.value)} | norms


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Fresh weights made inside depend on ``seed`` alone, and leave torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def wrap[Policy: WrappedPolicy](kind: type[Policy], base: FlowPolicy, seed: int, **settings: Any) -> Policy:
    """A wrapper around a copy of ``base`` with its own weights drawn from ``seed``."""
    with seeded(seed):
        return kind.around(base, **settings)
