"""Acting rules: how a policy, perhaps with a critic's help, turns an observation into an action chunk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flowrl import checkpoint
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.errors import UsageError
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.io import load_policy, save_policy
from flowrl.policies.observation import Observation


@dataclass(frozen=True)
class Actor:
    """A policy under one acting rule.

    ``best_of`` candidates are sampled by the ODE and the one with the highest mean critic value is
    taken; with 1 the critic is not used. ``zero_noise`` starts every sample from noise 0, which makes
    the policy deterministic.
    """

    policy: FlowPolicy
    critic: CriticEnsemble | None = None
    best_of: int = 1
    zero_noise: bool = False

    def __post_init__(self) -> None:
        if self.best_of < 1:
            raise UsageError(f"best_of must be at least 1, got {self.best_of}")
        if self.best_of > 1 and self.critic is None:
            raise UsageError(f"acting by the best of {self.best_of} samples needs a critic")

    @property
    def rule(self) -> str:
        """The rule in words, as reports name it."""
        start = "zero noise" if self.zero_noise else "random noise"
        steps = f"{self.policy.flow_steps} Euler steps"
        if self.best_of == 1:
            return f"one ODE sample, {start}, {steps}"
        return f"best of {self.best_of} ODE samples by the critic's mean, {start}, {steps}"

    @torch.no_grad()
    def act(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Raw action chunks (B, H, A) for B raw observations."""
        context = self.policy.encode(observation.to(self.policy.device)).interleave(self.best_of)
        shape = (len(context), self.policy.flat_size)
        noise = torch.zeros(shape) if self.zero_noise else torch.randn(shape, generator=generator)
        action = self.policy.sample(context, noise.to(self.policy.device)).clamp(-1, 1)
        if self.critic is not None and self.best_of > 1:
            values = self.critic(context.features, action).mean(dim=0).view(-1, self.best_of)
            rows = torch.arange(len(values), device=values.device) * self.best_of + values.argmax(dim=1)
            action = action[rows]
        return self.policy.raw_action(action)

    def state(self) -> dict[str, Any]:
        """The rule and the critic, beside the policy's own directory: what `load_actor` needs."""
        critic = None
        if self.critic is not None:
            critic = {"config": self.critic.config(), "weights": self.critic.state_dict()}
        return {"best_of": self.best_of, "zero_noise": self.zero_noise, "critic": critic}


def save_actor(actor: Actor, directory: Path) -> None:
    """Write an actor as a directory with its policy inside. Raises CheckpointError when the disk refuses."""

    def write(path: Path) -> None:
        save_policy(actor.policy, path, durable=False)

    checkpoint.save(directory, actor.state(), extra_dirs={"policy": write})


def load_actor(directory: Path) -> Actor:
    """Read what `save_actor` or the learner's publication wrote. Raises CheckpointError when damaged."""
    state = checkpoint.load(directory)
    critic = None
    if state["critic"] is not None:
        critic = CriticEnsemble(**state["critic"]["config"])
        critic.load_state_dict(state["critic"]["weights"])
        critic.requires_grad_(False)
    return Actor(load_policy(directory / "policy"), critic, state["best_of"], state["zero_noise"])
