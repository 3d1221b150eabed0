"""OGPO: off-policy generative policy optimisation (arXiv 2605.03065 and its public code).

A critic is learned off-policy. The policy is improved by PPO over the denoising chain: from states of the
replay, the moving average of the policy draws groups of stochastic chains, the critic values their ends,
and the likelihood of each whole chain is raised or lowered by its advantage in its group. No environment
step is needed for that. Equations are numbered as in docs/algorithms/ogpo.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flowrl.acting import Actor
from flowrl.algorithms.base import ActorCritic, ActorCriticConfig, flow_diagnostics
from flowrl.algorithms.groups import AdvantageKind, advantages
from flowrl.algorithms.interface import Batches
from flowrl.algorithms.likelihood import chain_log_density, rescore
from flowrl.config import configclass
from flowrl.critics.targets import CriticConfig
from flowrl.errors import ReplayError
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.observation import Observation
from flowrl.policies.pretrain import imitation_loss
from flowrl.policies.samplers import StochasticPath, tapered_sde
from flowrl.replay.batch import ChunkBatch


@configclass
class OGPOConfig(ActorCriticConfig):
    """Hyper-parameters of OGPO; defaults are the authors' for their Robomimic tasks.

    The names of the publication: OGPO is the default; OGPO+ has ``success_weight`` 1; OGPO+CA has
    ``advantage`` consensus as well.
    """

    kind: Literal["ogpo"] = "ogpo"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(aggregation="mean", polyak=0.05, learning_rate=4.5e-5)
    """The critic ensemble and its TD target."""
    learning_rate: float = 4.5e-5
    """Adam's step size for the policy, at its highest."""
    rate_warm_up: int = 2000
    """Updates over which the policy's step size rises linearly to learning_rate; 0 starts there."""
    rate_decay: int | None = 50_000
    """Update at which it has fallen, by half a cosine, to rate_end; None never lets it fall."""
    rate_end: float = 2e-5
    """The policy's step size from rate_decay on."""
    gradient_clip: float = 1000.0
    """Limit on the norm of the policy's gradient, or on the joint one without critic_gradient_clip."""
    critic_gradient_clip: float | None = 1000.0
    """Limit on the norm of the critic's gradient; None clips critic and policy jointly."""
    average_actor: float | None = 0.005
    """Rate of the policy's moving average, which draws chains, proposes next actions and acts; required."""
    collect_best_of: int = 8
    """N of the algorithm's acting rule: the best of N SDE samples by the minimum of two random heads."""
    evaluate_by: Literal["own", "sde", "ode"] = "own"
    """The rule that is evaluated: the algorithm's own, one SDE sample, or one ODE sample."""
    group: int = 32
    """G, chains drawn from each state."""
    states: int | None = None
    """States of each batch, drawn at random, from which chains start; at most the batch, which None takes."""
    noise_scale: float = 0.05
    """sigma_0 of the stochastic sampler; its drift is right for small values only."""
    ratio_clip: float = 0.01
    """eps: how far the normalised ratio may move from 1; goes with the normalisation by (K + 1) D."""
    advantage: AdvantageKind = "group"
    """group: mean of heads less the group's mean; consensus: 0 unless all heads agree; penultimate: see page."""
    success_weight: float = 0.0
    """Weight of the policy's imitation loss on successes; 0 draws no such batch."""
    success_source: str = "successes"
    """The named replay source of successes; while it is empty, the replay batch stands in."""
    success_td: bool = False
    """A second TD step of the critic each update, on a batch of success_source."""

    def __post_init__(self) -> None:
        if self.average_actor is None or not 0 < self.average_actor <= 1:
            raise ValueError(
                f"average_actor is {self.average_actor}; OGPO samples from the average: set a rate in (0, 1]"
            )
        if self.group < 2:
            raise ValueError(
                f"group is {self.group}; an advantage over the group's mean needs at least 2 chains"
            )
        if self.states is not None and self.states < 1:
            raise ValueError(f"states is {self.states}; it must be at least 1, or null for the whole batch")
        if not self.noise_scale > 0:
            raise ValueError(f"noise_scale is {self.noise_scale}; without noise a chain has no likelihood")
        if not 0 < self.ratio_clip < 1:
            raise ValueError(f"ratio_clip is {self.ratio_clip}; it must lie between 0 and 1")
        if self.success_weight < 0:
            raise ValueError(f"success_weight is {self.success_weight}; it must not be negative")
        if self.advantage == "penultimate" and self.critic.heads < 3:
            raise ValueError(
                f"advantage penultimate passes over the most cautious of {self.critic.heads} heads; take 3 or "
                "more, or advantage consensus"
            )
        if self.rate_warm_up < 0 or (self.rate_decay is not None and self.rate_decay <= self.rate_warm_up):
            raise ValueError(
                f"rate_warm_up is {self.rate_warm_up}, rate_decay {self.rate_decay}; updates must satisfy "
                "0 <= rate_warm_up < rate_decay"
            )


def scheduled_rate(update: int, config: OGPOConfig) -> float:
    """The policy's step size at an update, counted from 0: a linear rise, then half a cosine (6)."""
    rate, rise, end = config.learning_rate, config.rate_warm_up, config.rate_decay
    if update < rise:
        return rate * (update + 1) / rise
    if end is None:
        return rate
    done = min((update - rise) / (end - rise), 1.0)
    return config.rate_end + (rate - config.rate_end) * 0.5 * (1 + math.cos(math.pi * done))


def clipped_ratio_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, dict[str, float]]:
    """``-mean min(r A, clip(r, 1 - eps, 1 + eps) A)`` with ``r = exp(log_ratio)`` (4); both are (B, G)."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    seen = ratio.detach()
    return loss, {
        "actor/ppo_loss": float(loss.detach()),
        "actor/clip_fraction": float(((seen - 1).abs() > clip).float().mean()),
        "actor/ratio_min": float(seen.min()),
        "actor/ratio_max": float(seen.max()),
        "actor/log_ratio": float(log_ratio.detach().mean()),
        "actor/advantage_nonzero": float((advantage != 0).float().mean()),
        "actor/advantage_std": float(advantage.std(correction=0)),
    }


@dataclass(frozen=True)
class Chains:
    """G chains from each of B states, row after row of a state: B * G rows.

    ``path`` is what the average drew, ``log_density`` (B * G,) its own.
    """

    observation: Observation
    path: StochasticPath
    log_density: Tensor


class OGPO(ActorCritic[OGPOConfig, FlowPolicy]):
    """The learner of OGPO: critic and target, policy and its moving average.

    ``policy`` is the cloned base, of any kind with a velocity. ``seed`` fixes all random draws.
    """

    def __init__(self, config: OGPOConfig, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.base = policy.frozen_copy()
        self.optimise({"policy": (self.policy, config.learning_rate)}, {"base": self.base})
        self.updates = 0
        self._set_rate()

    def update(self, batches: Batches) -> dict[str, float]:
        """One step of critic and policy, then the averages, then the critic's step on successes if any."""
        batch, view = self.draw(batches)
        loss, info = self.actor_loss(self.sample_chains(self.start_states(batch)))
        if self.config.success_weight > 0:
            cloning, added = self.success_loss(batches, batch)
            loss, info = loss + self.config.success_weight * cloning, info | added
        temporal, _, critic_info = self.temporal_loss(batch, view)
        info |= critic_info | {"actor/learning_rate": scheduled_rate(self.updates, self.config)}
        info |= self.step(temporal + loss)
        self.critic.track()
        self.average_policy()
        self.updates += 1
        self._set_rate()
        if self.config.success_td:
            info |= self._success_step(batches)
        return info

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """How far the policy has moved from its base, and how straight its flow is; draws one batch."""
        return flow_diagnostics(self.policy, self.base, batches.batch().observation)

    def start_states(self, batch: ChunkBatch) -> Observation:
        """The states from which chains start: random rows, because a batch is grouped by source."""
        states, observation = self.config.states, batch.observation
        if states is None or states >= len(batch):
            return observation
        rows = torch.randperm(len(batch), generator=self.generator)[:states].to(observation.state.device)
        return observation.rows(rows)

    @torch.no_grad()
    def sample_chains(self, observation: Observation) -> Chains:
        """Groups of chains of the acting average from B states."""
        context = self.acting.encode(observation).interleave(self.config.group)
        path = self._path(context)
        return Chains(observation, path, chain_log_density(path))

    def actor_loss(self, chains: Chains) -> tuple[Tensor, dict[str, float]]:
        """PPO over whole chains, whose reward is the target critic's value of their ends (1 to 4)."""
        config, path = self.config, chains.path
        critic = self.critic.target
        context = critic.look(self.policy, chains.observation).interleave(config.group)
        with torch.no_grad():
            values = critic(critic.see(context), self.policy.clip(path.end))
        advantage = advantages(values.unflatten(1, (-1, config.group)), config.advantage)
        scored = rescore(self.policy.velocity, context, path.states, config.noise_scale, self.policy.clip)
        terms = (self.policy.flow_steps + 1) * self.policy.flat_size
        log_ratio = (chain_log_density(scored) - chains.log_density) / terms
        loss, info = clipped_ratio_loss(log_ratio.view_as(advantage), advantage, config.ratio_clip)
        return loss, info | {
            "actor/q_chains": float(values.mean()),
            "actor/means_clipped": float((path.means.abs() >= 1).float().mean()),
        }

    def success_loss(self, batches: Batches, replay: ChunkBatch) -> tuple[Tensor, dict[str, float]]:
        """The imitation loss on a batch of successes, on the ``replay`` batch while there are none (5)."""
        successes = self._successes(batches)
        loss = imitation_loss(self.policy, replay if successes is None else successes, self.generator)
        return loss, {
            "actor/success_loss": float(loss.detach()),
            "actor/success_share": float(successes is not None),
        }

    def next_action(self, context: Context) -> Tensor:
        """One SDE sample of the acting average for each row."""
        return self._path(context).end

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """The best of N SDE samples by the minimum of two heads; another rule for evaluation if configured."""
        config = self.config
        rule = "own" if purpose == "collect" else config.evaluate_by
        if rule == "ode":
            return Actor(self.acting)
        if rule == "sde" or config.collect_best_of == 1:
            return Actor(self.acting, sde_scale=config.noise_scale)
        return Actor(
            self.acting,
            self.critic.target,
            config.collect_best_of,
            score="subsample_min2",
            sde_scale=config.noise_scale,
        )

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have; the average and the acting rule are its own."""
        config = self.config
        source = config.success_source
        uses_successes = config.success_weight > 0 or config.success_td
        found = {
            f"evaluates one {config.evaluate_by.upper()} sample": config.evaluate_by != "own",
            f"successes are drawn from {source!r}": uses_successes and source != "successes",
            "the policy's step size does not fall": config.rate_decay is None,
            "critic and policy are clipped jointly": config.critic_gradient_clip is None,
        }
        return [text for text, used in found.items() if used]

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, optimiser, random state and the number of updates, for the step size."""
        return super().state_dict() | {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.updates = state["updates"]

    def _path(self, context: Context) -> StochasticPath:
        policy = self.acting
        noise = self.normal(len(context), policy.flat_size)
        return tapered_sde(
            policy.velocity,
            context,
            noise,
            policy.flow_steps,
            self.config.noise_scale,
            lambda mean: self.normal(*mean.shape),
            policy.clip,
        )

    def _set_rate(self) -> None:
        """Set the policy's step size of the coming update; a step that is refused then leaves it."""
        for group in self.optimiser.param_groups:
            if group["name"] == "policy":
                group["lr"] = scheduled_rate(self.updates, self.config)

    def _successes(self, batches: Batches, chunks: int = 1) -> ChunkBatch | None:
        """A batch of successes; None while there are none, for which the sampler has no batch."""
        try:
            return batches.batch(self.config.success_source, chunks)
        except ReplayError:
            return None

    def _success_step(self, batches: Batches) -> dict[str, float]:
        """A TD step of the critic alone on successes; none while there are none."""
        batch = self._successes(batches, self.critic.chunks)
        if batch is None:
            return {}
        loss, _, _ = self.temporal_loss(batch, self.critic.view(batch, self.policy, self.generator))
        norms = self.step(loss)
        self.critic.track()
        return {
            "critic/success_td_loss": float(loss.detach()),
            "critic/success_gradient_norm": norms["critic/gradient_norm"],
        }
