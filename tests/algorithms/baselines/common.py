"""A small base, a known critic in a learner's place, and a critic's size for the bandit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from flowrl.algorithms.base import ActorCritic
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import KnownCritic
from tests.helpers import identity_spec

STATE, ACTION, CHUNK, ROWS, STEPS = 3, 2, 2, 12, 4
SIZE = ACTION * CHUNK
CRITIC = CriticConfig(heads=3, width=16, depth=2)
BANDIT_CRITIC = CriticConfig(heads=3, width=64, depth=2, learning_rate=1e-3, aggregation="mean")


def base() -> FlowMLP:
    return FlowMLP(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=STEPS)


def know(learner: ActorCritic[Any, Any], value: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Put a known critic in the place of the online one and of the target."""
    critic = cast(CriticEnsemble, KnownCritic(value, heads=2))
    learner.critic.online = learner.critic.target = critic


def linear(gradient: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Q(s, a) = g a."""
    return lambda features, action: action @ gradient


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
