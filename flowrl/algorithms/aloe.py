"""ALOE-style improvement: cloning weighted by action-level advantages (after arXiv 2602.12691).

A pessimistic ensemble of critics is learned off-policy on everything in replay, corrections by people
included. The policy is improved by flow matching on replay chunks alone, each weighted by the exponential
of its advantage over the policy's own samples; no gradient of the critic reaches the policy. The
publication leaves settings open, which docs/algorithms/aloe.md lists; hence "style". Equations are
numbered as there.
"""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import Tensor

from flowrl.algorithms.base import ActorCritic, ActorCriticConfig, flow_diagnostics
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.chunk_critic import CriticView
from flowrl.critics.targets import CriticConfig, aggregate
from flowrl.policies.interface import FlowPolicy, concatenate
from flowrl.replay.batch import ChunkBatch
from flowrl.replay.schema import Source

FEW = 0.1
"""Effective share of a batch below which its weights are said to have collapsed."""
_log = logging.getLogger(__name__)


@configclass
class ALOEConfig(ActorCriticConfig):
    """Hyper-parameters of ALOE; what the publication does not state is a proposal."""

    kind: Literal["aloe"] = "aloe"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(heads=5, aggregation="min", polyak=0.005, learning_rate=3e-5)
    """The critic ensemble; its aggregation also gives the values of advantages."""
    value_samples: int = 4
    """n, samples of the policy whose mean value is V(s)."""
    temperature: float = 0.5
    """beta: a chunk weighs exp(A / beta); in units of the reward. Infinite clones replay as it is."""
    exponent_limit: float | None = 5.0
    """c: A / beta is clipped to [-c, c]; None leaves it to the bounds of the weight."""
    weight_low: float = 0.0
    """w_min, the smallest weight."""
    weight_high: float | None = None
    """w_max, the largest weight; None has none."""
    source: str | None = None
    """Deviation when set: the named replay source that the policy clones; None is the critic's batch."""
    normalise_weights: bool = False
    """Divide the weights by their mean over the batch, so that the loss keeps its scale."""

    def __post_init__(self) -> None:
        if self.value_samples < 1:
            raise ValueError(f"value_samples is {self.value_samples}; it must be at least 1")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; it must be positive")
        if self.exponent_limit is not None and not self.exponent_limit > 0:
            raise ValueError(f"exponent_limit is {self.exponent_limit}; it must be positive, or null")
        high = float("inf") if self.weight_high is None else self.weight_high
        if not 0 <= self.weight_low < high:
            raise ValueError(
                f"weight_low is {self.weight_low}, weight_high {self.weight_high}; they must satisfy "
                "0 <= weight_low < weight_high"
            )
        if self.exponent_limit is None and self.weight_high is None:
            raise ValueError("nothing bounds the weights: set exponent_limit or weight_high")


def advantage_weights(advantage: Tensor, config: ALOEConfig) -> tuple[Tensor, Tensor]:
    """``w = clip(exp(clip(A / beta, -c, c)), w_min, w_max)``, and where a bound holds (2); all are (B,)."""
    exponent = advantage / config.temperature
    weight = exponent.exp()
    if config.exponent_limit is not None:
        weight = exponent.clamp(-config.exponent_limit, config.exponent_limit).exp()
    weight = weight.clamp(config.weight_low, config.weight_high)
    return weight, weight != exponent.exp()


def effective_share(weight: Tensor, count: Tensor) -> Tensor:
    """``(sum w)^2 / (n sum w^2)``, the effective sample size of weights (B,) as a share of ``count`` rows."""
    return weight.sum().square() / _positive(count * weight.square().sum())


def _positive(total: Tensor) -> Tensor:
    """A sum of weights as a divisor: where no row counts, the share is 0."""
    return total.clamp(min=torch.finfo(total.dtype).tiny)


class ALOE(ActorCritic[ALOEConfig, FlowPolicy]):
    """The learner: critic and target, policy. ``policy`` is the base; ``seed`` fixes all random draws."""

    def __init__(self, config: ALOEConfig, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.base = policy.frozen_copy()
        self.optimise({"policy": (self.policy, config.learning_rate)}, {"base": self.base})
        self._warned = False

    def update(self, batches: Batches) -> dict[str, float]:
        """One step of critic and policy."""
        batch, view = self.draw(batches)
        temporal, _, info = self.temporal_loss(batch, view)
        if self.config.source is not None:
            batch = self.critic.draw(batches, self.config.source)
            view = self.critic.view(batch, self.policy, self.generator)
        advantage, value = self.advantage(view)
        loss, actor_info = self.actor_loss(batch, view, advantage)
        info |= actor_info | {"critic/q_policy": float(value.mean())}
        info |= self.step(temporal + loss)
        self.critic.track()
        self.average_policy()
        if info["actor/effective_share"] < FEW:
            self._warn(info["actor/effective_share"])
        return info

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """How far the policy has moved from its base, and how straight its flow is; draws one batch."""
        return flow_diagnostics(self.policy, self.base, batches.batch().observation)

    @torch.no_grad()
    def advantage(self, view: CriticView) -> tuple[Tensor, Tensor]:
        """``A = Q(s, a) - V(s)`` and V, both (B,), by the aggregated online heads (1)."""
        samples, rows = self.config.value_samples, len(view.context)
        tiled = view.context.tile(samples)
        proposed = self.policy.sample(tiled, self.normal(len(tiled), self.policy.noise_size))
        seen = self.critic.online.see(concatenate(view.context, tiled))
        heads = self.critic.online(seen, torch.cat([view.action, proposed]))
        critic = self.config.critic
        values = aggregate(heads, critic.aggregation, critic.pessimism, self.generator)
        value = values[rows:].view(samples, rows).mean(dim=0)
        return values[:rows] - value, value

    def actor_loss(
        self, batch: ChunkBatch, view: CriticView, advantage: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """The imitation loss on the batch, rows weighted by their ``advantage`` (B,) (3)."""
        rows, valid = len(batch), batch.valid[:, -1]
        weight, bounded = advantage_weights(advantage, self.config)
        weight, count = weight * valid, valid.sum()
        if self.config.normalise_weights:
            weight = weight * (count / _positive(weight.sum()))
        noise, t = self.normal(rows, self.policy.flat_size), self.uniform(rows)
        loss = self.policy.imitation_loss(view.context, view.action, noise, t, weight)
        human = (batch.source == Source.HUMAN).to(weight.dtype)
        return loss, {
            "actor/loss": float(loss.detach()),
            "actor/advantage_mean": float(advantage.mean()),
            "actor/advantage_std": float(advantage.std(correction=0)),
            "actor/weight_max": float(weight.max()),
            "actor/weights_bounded": float(bounded.float().mean()),
            "actor/effective_share": float(effective_share(weight, count)),
            "actor/human_share": float(human.mean()),
            "actor/human_weight": float((human * weight).sum() / _positive(weight.sum())),
        }

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        config = self.config
        found = {
            f"the policy clones the source {config.source!r} only": config.source is not None,
            "weights are divided by their mean over the batch": config.normalise_weights,
            f"heads are aggregated by {config.critic.aggregation}": config.critic.aggregation != "min",
        }
        return super().deviations() + [text for text, used in found.items() if used]

    def _warn(self, share: float) -> None:
        """Say it once: the metric shows how it goes on."""
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "the weights of a batch have the effective size of %.1f %% of its rows, expected at least %g %%: "
            "raise algorithm.temperature (now %g), or lower exponent_limit or weight_high; the metric "
            "actor/effective_share shows how it goes on",
            100 * share,
            100 * FEW,
            self.config.temperature,
        )
