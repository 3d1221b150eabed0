"""What algorithms share: their books, not their mathematics.

An algorithm derives from `ActorCritic` (or from `PolicyLearner`, when it has no critic), names what it
trains in `optimise` and writes `update`. Options of the critic, the moving average of the actor, the
acting rule and saving then work as everywhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flowrl.acting import Actor
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.chunk_critic import ChunkCritic, CriticView
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import ChunkPolicy, Context, FlowPolicy
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import flow_curvature
from flowrl.replay.batch import ChunkBatch
from flowrl.training import adam, clipped_step, polyak_


@configclass
class PolicyLearnerConfig:
    """Hyper-parameters that every algorithm has."""

    discount: float = 0.99
    """gamma, per environment step; a chunk is discounted by gamma^H."""
    learning_rate: float = 3e-4
    """Adam's step size for every network but the critic."""
    gradient_clip: float = 1.0
    """Limit on the joint gradient's norm, or on each actor's when critic_gradient_clip is set."""
    average_actor: float | None = None
    """Act with a moving average of the policy of this rate; None acts with the policy itself."""


@configclass
class ActorCriticConfig(PolicyLearnerConfig):
    """Hyper-parameters that every algorithm with a critic has."""

    critic: CriticConfig = CriticConfig()
    """The critic ensemble and its TD target."""
    critic_gradient_clip: float | None = None
    """Clip critic and actors separately, the critic at this norm. None clips all of them jointly."""
    collect_best_of: int = 1
    """Collect with the best of N samples by the critic while one sample is evaluated."""


class PolicyLearner[Config: PolicyLearnerConfig, Policy: ChunkPolicy](ABC):
    """An algorithm that trains one policy to act.

    ``policy`` is copied; ``seed`` fixes all random draws.

    Attributes:
        policy: the trained policy.
        average: its moving average, when the configuration asks for one.
        generator: source of every random number.
    """

    def __init__(self, config: Config, policy: Policy, seed: int = 0) -> None:
        self.config = config
        self.policy = policy.trainable_copy()
        self.average = policy.frozen_copy() if config.average_actor is not None else None
        self.generator = torch.Generator().manual_seed(seed)
        self._modules: dict[str, nn.Module] = {}

    def optimise(
        self,
        trained: Mapping[str, tuple[nn.Module, float]],
        kept: Mapping[str, nn.Module] | None = None,
    ) -> None:
        """Name the trained networks with their learning rates, and the others that a checkpoint keeps.

        The average is added. The names appear in metrics (``<name>/gradient_norm``).
        """
        networks = {name: network for name, (network, _) in trained.items()}
        self.optimiser = adam(networks, {name: rate for name, (_, rate) in trained.items()})
        self._modules = networks | dict(kept or {})
        if self.average is not None:
            self._modules["average"] = self.average

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The networks that a checkpoint holds, by name: those that learn and those kept beside them."""
        return self._modules

    @abstractmethod
    def update(self, batches: Batches) -> dict[str, float]:
        """One update; returns metrics."""

    def warm_up(self, batches: Batches) -> dict[str, float]:
        """Nothing: there is no critic."""
        return {}

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """Nothing beyond what `update` returns."""
        return {}

    # Parts of an update

    def limits(self) -> Mapping[str, float] | float:
        """The limits on gradient norms, as `flowrl.training.clipped_step` takes them."""
        return self.config.gradient_clip

    def step(self, loss: Tensor) -> dict[str, float]:
        """Back-propagate, clip and step; returns the gradient norms. Raises NonFiniteLoss."""
        norms = clipped_step(self.optimiser, loss, self.limits())
        return {f"{name}/gradient_norm": norm for name, norm in norms.items()}

    def average_policy(self) -> None:
        """Move the acting average towards the policy."""
        if self.average is not None and self.config.average_actor is not None:
            polyak_(self.average, self.policy, self.config.average_actor)

    def normal(self, rows: int, size: int) -> Tensor:
        """Standard normal draws (rows, size), made on the CPU so that a seed means the same everywhere."""
        return torch.randn(rows, size, generator=self.generator).to(self.policy.device)

    def uniform(self, rows: int) -> Tensor:
        """Uniform flow times (rows, 1), made like `normal`."""
        return torch.rand(rows, 1, generator=self.generator).to(self.policy.device)

    # Acting

    @property
    def acting(self) -> Policy:
        """The policy that acts: the average when there is one."""
        return self.policy if self.average is None else self.average

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """One sample of the acting policy, for both purposes."""
        return Actor(self.acting)

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        rate = self.config.average_actor
        return [] if rate is None else [f"acts with a moving average of the policy (rate {rate})"]

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, optimiser and random state; subclasses add what else they carry."""
        return {
            "modules": {name: module.state_dict() for name, module in self._modules.items()},
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, module in self._modules.items():
            module.load_state_dict(state["modules"][name])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])


class ActorCritic[Config: ActorCriticConfig, Policy: ChunkPolicy](PolicyLearner[Config, Policy]):
    """A `PolicyLearner` with a critic over chunks; ``seed`` fixes the critic's first weights, too.

    Attributes:
        critic: the critic with its target.
    """

    def __init__(self, config: Config, policy: Policy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.critic = ChunkCritic(config.critic, policy, config.discount, seed)

    def optimise(
        self,
        trained: Mapping[str, tuple[nn.Module, float]],
        kept: Mapping[str, nn.Module] | None = None,
    ) -> None:
        """As in `PolicyLearner`; the critic and its target are added."""
        critic = {"critic": (self.critic.online, self.config.critic.learning_rate)}
        super().optimise(critic | dict(trained), {"critic_target": self.critic.target} | dict(kept or {}))

    def warm_up(self, batches: Batches) -> dict[str, float]:
        """One TD update of the critic alone, on actions of the policy as it is."""
        batch, view = self.draw(batches)
        loss, _, info = self.temporal_loss(batch, view)
        info |= self.step(loss)
        self.critic.track()
        return info

    @property
    def reference(self) -> FlowPolicy | None:
        """The frozen relative of the policy whose velocity the actor's loss looks at, if there is one."""
        return None

    def draw(self, batches: Batches) -> tuple[ChunkBatch, CriticView]:
        """A batch with as many following chunks as the critic's backup needs, and what the critic sees."""
        batch = self.critic.draw(batches)
        return batch, self.view(batch)

    def view(self, batch: ChunkBatch) -> CriticView:
        """A batch of the critic's as the policy, its reference and the critic see it."""
        view = self.critic.view(batch, self.policy, self.generator)
        if self.reference is None:
            return view
        return replace(view, context=self.reference.beside(batch.observation, view.context))

    def next_action(self, context: Context) -> Tensor:
        """The action chunks (N, D) whose values TD targets take, without gradient: one sample for each."""
        return self.policy.sample(context, self.normal(len(context), self.policy.noise_size))

    def temporal_loss(
        self, batch: ChunkBatch, view: CriticView, policy_action: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, dict[str, float]]:
        """The critic's TD loss, the value gap to ``policy_action`` (B, D) if given, and metrics."""
        with torch.no_grad():
            next_action = self.next_action(view.next_context)
        return self.critic.loss(batch, view, next_action, self.generator, policy_action)

    def limits(self) -> Mapping[str, float] | float:
        """Joint, or one limit for the critic and one for each other network."""
        config = self.config
        if config.critic_gradient_clip is None:
            return config.gradient_clip
        names = [group["name"] for group in self.optimiser.param_groups]
        return dict.fromkeys(names, config.gradient_clip) | {"critic": config.critic_gradient_clip}

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """The acting policy, one sample; the best of N while collecting when so configured."""
        best_of = self.config.collect_best_of if purpose == "collect" else 1
        return Actor(self.acting, self.critic.target if best_of > 1 else None, best_of)

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        config = self.config
        found = {
            f"collects with the best of {config.collect_best_of} samples": config.collect_best_of > 1,
            "critic and actors are clipped separately": config.critic_gradient_clip is not None,
        }
        return super().deviations() + [text for text, used in found.items() if used]


@torch.no_grad()
def flow_diagnostics(policy: FlowPolicy, base: FlowPolicy, observation: Observation) -> dict[str, float]:
    """How far a flow has moved from its base, and how straight it is.

    The noise is the same every time and not the learner's: logging must not change training.
    """
    context = base.beside(observation, policy.encode(observation))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(len(context), policy.flat_size, generator=generator).to(policy.device)
    endpoint, bend = flow_curvature(policy.velocity, context, noise, policy.flow_steps)
    # As critics see it: only what is executed, in units of the bounds.
    saturated = (policy.action_view.unclipped(endpoint).abs() > 1).float().mean(dim=0)
    saturated = saturated.view(policy.chunk.length, -1)
    return {
        "actor/endpoint_shift": float(
            (endpoint - base.sample(context.base or context, noise)).norm(dim=1).mean()
        ),
        "actor/flow_curvature": float(bend.mean()),
        "actor/saturated_worst_dimension": float(saturated.mean(dim=0).max()),
    }
