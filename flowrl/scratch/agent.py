"""The learner of training from scratch: one critic, one actor, delayed updates (arXiv 1802.09477, 2505.22642)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from flowrl.critics.aggregation import aggregate
from flowrl.critics.chunk_critic import ChunkCritic, CriticView
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from flowrl.scratch.actors import Purpose, make_actor
from flowrl.scratch.config import ScratchConfig
from flowrl.scratch.normaliser import RunningNormaliser
from flowrl.scratch.replay import RingReplay
from flowrl.scratch.vector import FloatArray
from flowrl.spec import Spec
from flowrl.training import adam, clipped_step, polyak_

_NO_LIMIT = math.inf
"""Gradients are not clipped, as in TD3 and FastTD3; a non-finite one still stops the run."""


class Agent:
    """Actor, critic, their targets and optimisers, and the normalisation that both see through.

    ``config.seed`` fixes first weights and draws.
    """

    def __init__(self, config: ScratchConfig, spec: Spec, device: str = "cpu") -> None:
        update = config.update
        self.config = config
        self.actor = make_actor(config.actor, spec, config.seed)
        self.policy = self.actor.policy.to(device)
        self.average = self.policy.frozen_copy() if update.actor_polyak is not None else None
        self.critic = ChunkCritic(config.critic, self.policy, config.discount, config.seed)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.normaliser = RunningNormaliser(spec.state_size)
        self.critic_optimiser = adam({"critic": self.critic.online}, {"critic": config.critic.learning_rate})
        self.actor_optimiser = adam({"actor": self.policy}, {"actor": update.actor_rate})
        for optimiser in (self.critic_optimiser, self.actor_optimiser):
            for group in optimiser.param_groups:  # AdamW is Adam whose decay is decoupled.
                group["weight_decay"], group["decoupled_weight_decay"] = update.weight_decay, True
        self.updates = 0

    def observe(self, states: FloatArray) -> None:
        """Let new states (N, S) move the normalisation."""
        self.normaliser.update(states)
        self.normaliser.write_to(self.policy)

    @torch.no_grad()
    def act(self, states: Tensor) -> Tensor:
        """Flat actions (N, D) in [-1, 1] for raw states (N, S), before exploration noise, on the CPU."""
        context = self.policy.encode(Observation(states.to(self.policy.device)))
        return self.policy.sample(context, self._noise(len(states), "collect")).clamp(-1, 1).cpu()

    def update(self, replay: RingReplay) -> dict[str, float]:
        """One update of the critic, and of the actor when its turn has come. Raises NonFiniteLoss."""
        batch = self.critic.draw(replay)
        view = self.critic.view(batch, self.policy)
        info = self._update_critic(batch, view)
        self.updates += 1
        if self.updates % self.config.update.policy_delay == 0:
            info |= self._update_actor(view)
        return info

    def _update_critic(self, batch: ChunkBatch, view: CriticView) -> dict[str, float]:
        loss, _, info = self.critic.loss(batch, view, self._target_action(view), self.generator)
        norms = clipped_step(self.critic_optimiser, loss, _NO_LIMIT)
        self.critic.track()
        return info | {"critic/gradient_norm": norms["critic"]}

    @torch.no_grad()
    def _target_action(self, view: CriticView) -> Tensor:
        """``clip(a' + clip(noise))``: smooths the target over neighbouring actions, (N, D)."""
        update, context = self.config.update, view.next_context
        policy = self.policy if self.average is None else self.average
        action = policy.sample(context, self._noise(len(context), "target")).clamp(-1, 1)
        smoothing = torch.randn(action.shape, generator=self.generator) * update.target_noise
        limit = update.target_noise_clip
        return (action + smoothing.clamp(-limit, limit).to(action.device)).clamp(-1, 1)

    def _update_actor(self, view: CriticView) -> dict[str, float]:
        context, update = view.context.detach(), self.config.update
        seen = self.critic.online.see(context)

        def value(action: Tensor) -> Tensor:
            values = self.critic.online(seen, action)
            return aggregate(values, update.q_aggregation, self.config.critic.pessimism, self.generator)

        loss, info = self.actor.loss(context, view.action, value, self.generator)
        norms = clipped_step(self.actor_optimiser, loss, _NO_LIMIT)
        if self.average is not None and update.actor_polyak is not None:
            polyak_(self.average, self.policy, update.actor_polyak)
        return info | {"actor/gradient_norm": norms["actor"]}

    def _noise(self, rows: int, purpose: Purpose) -> Tensor:
        return self.actor.noise(rows, purpose, self.generator).to(self.policy.device)

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimisers, normalisation and random state."""
        return {
            "modules": {name: module.state_dict() for name, module in self._modules().items()},
            "critic_optimiser": self.critic_optimiser.state_dict(),
            "actor_optimiser": self.actor_optimiser.state_dict(),
            "normaliser": self.normaliser.state_dict(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, module in self._modules().items():
            module.load_state_dict(state["modules"][name])
        self.critic_optimiser.load_state_dict(state["critic_optimiser"])
        self.actor_optimiser.load_state_dict(state["actor_optimiser"])
        self.normaliser.load_state_dict(state["normaliser"])
        self.normaliser.write_to(self.policy)
        self.generator.set_state(state["generator"])
        self.updates = state["updates"]

    def _modules(self) -> dict[str, torch.nn.Module]:
        modules: dict[str, torch.nn.Module] = {
            "actor": self.policy,
            "critic": self.critic.online,
            "critic_target": self.critic.target,
        }
        return modules if self.average is None else modules | {"average": self.average}
