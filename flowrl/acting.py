"""Acting rules: how a policy, perhaps with a critic's help, turns an observation into an action chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flowrl import checkpoint
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.critics.targets import Aggregation, aggregate
from flowrl.errors import UsageError
from flowrl.policies.interface import ChunkPolicy, Context, FlowPolicy
from flowrl.policies.io import load_policy, save_policy
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import tapered_sde


@dataclass(frozen=True)
class Actor:
    """A policy under one acting rule.

    Attributes:
        policy: what proposes.
        critic: what chooses, when there is a choice.
        best_of: noises drawn for each observation. Their candidates (one each, unless the policy makes
            more of a noise) are ranked by the critic; with one candidate the critic is not used.
        zero_noise: start every sample from noise 0, which makes the policy deterministic.
        score: how the heads' values become the candidate's rank; ``subsample_min2`` draws a fresh pair
            of heads for every candidate.
        sde_scale: sample a flow by `tapered_sde` with this scale instead of its ODE.

    Raises UsageError when the rule lacks what it needs.
    """

    policy: ChunkPolicy
    critic: CriticEnsemble | None = None
    best_of: int = 1
    zero_noise: bool = False
    score: Aggregation = "mean"
    sde_scale: float | None = None

    def __post_init__(self) -> None:
        if self.best_of < 1:
            raise UsageError(f"best_of must be at least 1, got {self.best_of}")
        if self.best_of > 1 and self.critic is None:
            raise UsageError(f"acting by the best of {self.best_of} samples needs a critic")
        if self.sde_scale is not None and not isinstance(self.policy, FlowPolicy):
            raise UsageError(f"a policy of kind {self.policy.kind!r} has no velocity to sample by an SDE")

    @property
    def candidates(self) -> int:
        """Actions from which one is chosen for every observation; 1 without a critic."""
        if self.critic is None:
            return 1
        return self.best_of * (1 if self.sde_scale is not None else self.policy.candidates_per_noise)

    @property
    def plain(self) -> bool:
        """Whether the policy's own directory says all there is to this rule."""
        return self.candidates == 1 and self.sde_scale is None and not self.zero_noise

    @property
    def rule(self) -> str:
        """The rule in words, as reports name it."""
        name = self.policy.sample_name
        if self.sde_scale is not None:
            name = f"SDE sample (scale {self.sde_scale:g})"
        if self.candidates == 1:
            words = [f"one {name}"]
        else:
            heads = {"mean": "mean", "min": "minimum"}.get(self.score, self.score)
            words = [f"best of {self.candidates} {name}s by the critic's {heads}"]
        if self.policy.noise_size:
            words.append("zero noise" if self.zero_noise else "random noise")
        words.append(self.policy.sample_detail)
        return ", ".join(word for word in words if word)

    def common(self) -> Actor:
        """The same policy by one plain sample, the rule under which different algorithms compare."""
        return Actor(self.policy)

    def with_policy(self, policy: ChunkPolicy) -> Actor:
        """The same rule, critic included, around another policy."""
        return replace(self, policy=policy)

    @torch.no_grad()
    def act(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Raw action chunks (B, H, A) for B raw observations."""
        context = self.encode(observation.to(self.policy.device))
        return self.policy.raw_action(self.choose(context, generator))

    def encode(self, observation: Observation) -> Context:
        """A batch of raw observations as `choose` takes it: for the policy, and for the critic where there is one."""
        return (
            self.policy.encode(observation)
            if self.critic is None
            else self.critic.look(self.policy, observation)
        )

    @torch.no_grad()
    def choose(self, context: Context, generator: torch.Generator) -> Tensor:
        """Flat normalised chunks (B, D) within the bounds, for encoded observations."""
        context = context.interleave(self.best_of)
        if self.critic is None or self.candidates == 1:
            return self.policy.clip(self._sample(context, generator))
        actions = self.policy.clip(self._propose(context, generator))
        features = self.critic.see(context).repeat_interleave(self.candidates // self.best_of, 0)
        values = aggregate(self.critic(features, actions), self.score, 0.5, generator, fresh_pairs=True)
        best = values.view(-1, self.candidates).argmax(dim=1)
        return actions[torch.arange(len(best), device=best.device) * self.candidates + best]

    def _propose(self, context: Context, generator: torch.Generator) -> Tensor:
        if self.sde_scale is not None:
            return self._sample(context, generator)
        return self.policy.candidates(context, self._noise(len(context), generator))

    def _sample(self, context: Context, generator: torch.Generator) -> Tensor:
        noise = self._noise(len(context), generator)
        if self.sde_scale is None:
            return self.policy.sample(context, noise)
        policy = self.policy
        assert isinstance(policy, FlowPolicy)

        def normal(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator).to(like.device)

        steps, scale = policy.flow_steps, self.sde_scale
        return tapered_sde(policy.velocity, context, noise, steps, scale, normal, policy.clip).end

    def _noise(self, rows: int, generator: torch.Generator) -> Tensor:
        shape = (rows, self.policy.noise_size)
        noise = torch.zeros(shape) if self.zero_noise else torch.randn(shape, generator=generator)
        return noise.to(self.policy.device)

    def state(self) -> dict[str, Any]:
        """The rule and the critic, beside the policy's own directory: what `load_actor` needs."""
        critic = None
        if self.critic is not None:
            critic = {"config": self.critic.config(), "weights": self.critic.state_dict()}
        return {
            "best_of": self.best_of,
            "zero_noise": self.zero_noise,
            "score": self.score,
            "sde_scale": self.sde_scale,
            "critic": critic,
        }


def save_actor(actor: Actor, directory: Path) -> None:
    """Write an actor as a directory with its policy inside. Raises CheckpointError when the disk refuses."""

    def write(path: Path) -> None:
        save_policy(actor.policy, path, durable=False)

    checkpoint.save(directory, actor.state(), extra_dirs={"policy": write})


def load_actor(directory: Path) -> Actor:
    """Read what `save_actor` or the learner's publication wrote. Raises CheckpointError when damaged."""
    state = checkpoint.load(directory)
    critic = None
    if (stored := state.pop("critic")) is not None:
        critic = CriticEnsemble(**stored["config"])
        critic.load_state_dict(stored["weights"])
        critic.requires_grad_(False)
    return Actor(load_policy(directory / "policy"), critic, **state)
