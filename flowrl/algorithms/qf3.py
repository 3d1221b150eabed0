"""QF3: flow matching on replay actions with filtered Q-gradients (arXiv 2610.08789).

The velocity is trained by flow matching on replay actions. A critic is evaluated at the *one-step
prediction* of the flow's end point, and its gradient reaches only those action dimensions whose
prediction lies near the replay action: no sampler is back-propagated through, and no dimension is pulled
further from the data than a clip in velocity space allows. Equations are numbered as in
docs/algorithms/qf3.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flowrl.acting import Actor
from flowrl.algorithms.base import ActorCritic, ActorCriticConfig, flow_diagnostics
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.aggregation import Aggregation, aggregate
from flowrl.critics.chunk_critic import CriticView
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.pretrain import imitation_loss
from flowrl.policies.samplers import interpolate
from flowrl.replay.batch import ChunkBatch


@configclass
class QF3Config(ActorCriticConfig):
    """Hyper-parameters of QF3 for fine-tuning; defaults are the authors' for Robomimic Square.

    With ``success_weight`` 100 it is what the publication calls QF3+.
    """

    kind: Literal["qf3"] = "qf3"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(aggregation="mean", polyak=0.05)
    """The critic ensemble and its TD target."""
    gradient_clip: float = 1000.0
    """Limit on the norm of the policy's gradient, or on the joint one without critic_gradient_clip."""
    critic_gradient_clip: float | None = 1000.0
    """Limit on the norm of the critic's gradient; None clips critic and policy jointly."""
    alpha: float = 0.12
    """Clip of the velocity gap, per dimension: the critic moves no dimension that is further from replay."""
    flow_weight: float = 0.01
    """lambda_cfm, weight of flow matching on replay, a sum over D."""
    base_weight: float = 12.5
    """lambda_base, weight of the squared distance from the base's velocity, a sum over D."""
    success_weight: float = 0.0
    """Weight of the policy's imitation loss on successes, a mean over D; 0 draws no such batch."""
    success_source: str = "successes"
    """The named replay source of successes; it must hold some, so mix demonstrations in."""
    q_aggregation: Aggregation = "min"
    """How the heads' values become the one that the policy climbs."""
    policy_delay: int = 1
    """Critic updates for each update of the policy."""
    target_actor: Literal["current", "average"] = "current"
    """Which policy proposes the next actions of TD targets; average needs average_actor."""
    collect_best_of: int = 8
    """N of the algorithm's acting rule, the best of N samples by the critic's mean; 1 takes one sample."""
    sde_scale: float | None = 0.05
    """sigma_0 of the stochastic sampler that draws these samples; None draws them by the ODE."""
    evaluate_by: Literal["own", "ode", "zero"] = "own"
    """The rule that is evaluated: the algorithm's own, one ODE sample, or the ODE from zero noise."""

    def __post_init__(self) -> None:
        weights = {name: getattr(self, name) for name in ("flow_weight", "base_weight", "success_weight")}
        for name, value in {"alpha": self.alpha, **weights}.items():
            if value < 0:
                raise ValueError(f"{name} is {value}; it must not be negative")
        if self.policy_delay < 1:
            raise ValueError(f"policy_delay is {self.policy_delay}; it must be at least 1")
        if self.target_actor == "average" and self.average_actor is None:
            raise ValueError("target_actor is average, and there is none: set average_actor to its rate")


Value = Callable[[Tensor], Tensor]
"""Flat chunks (B, D) of a batch of states to their values (B,)."""


@dataclass(frozen=True)
class PathPoint:
    """Points on the paths from ``noise`` (B, D) to replay actions ``action`` (B, D), at times ``t`` (B, 1)."""

    action: Tensor
    noise: Tensor
    t: Tensor

    @classmethod
    def sample(cls, action: Tensor, generator: torch.Generator) -> PathPoint:
        """One noise and one uniform time per action, drawn on the CPU so that a seed means the same anywhere."""
        noise, t = (
            torch.randn(action.shape, generator=generator),
            torch.rand(len(action), 1, generator=generator),
        )
        return cls(action, noise.to(action.device), t.to(action.device))

    @property
    def x(self) -> Tensor:
        """``x_t = (1 - t) eps + t a``, (B, D)."""
        return interpolate(self.noise, self.action, self.t)

    def gap(self, velocity: Tensor) -> Tensor:
        """``delta = v - (a - eps)``: how far a velocity (B, D) is from the one that leads to the action (1)."""
        return velocity - (self.action - self.noise)

    def prediction(self, velocity: Tensor) -> Tensor:
        """``x_t + (1 - t) v = a + (1 - t) delta``: where one Euler step to t = 1 would end (2)."""
        return self.x + (1 - self.t) * velocity

    def clipped_prediction(self, velocity: Tensor, clip: float) -> Tensor:
        """``a + (1 - t) clip(delta, -alpha, alpha)``, constant in every dimension outside the clip (3).

        The clip is in velocity space: in action space it allows ``alpha / (1 - t)``, which bends the flow.
        """
        gap = self.gap(velocity)
        inside = torch.where(in_clip(gap, clip), gap, gap.detach().clamp(-clip, clip))
        return self.action + (1 - self.t) * inside


@dataclass(frozen=True)
class LossWeights:
    """alpha and the two weights of (4); both multiply sums over D."""

    clip: float
    flow: float
    base: float = 0.0


def in_clip(gap: Tensor, clip: float) -> Tensor:
    """Which dimensions the critic may move, ``|delta| < alpha``: a mask like ``gap``."""
    return gap.detach().abs() < clip


def value_through_action(value: Value, action: Tensor) -> Tensor:
    """``value(action)`` (B,) whose gradient reaches ``action`` (B, D) and no parameter of ``value``."""
    point = action.detach().requires_grad_(True)
    # A view for the same reason as in `flowrl.critics.ensemble.action_gradient`.
    values = value(point.view_as(point))
    (gradient,) = torch.autograd.grad(values.sum(), point)
    return values.detach() + (gradient * (action - action.detach())).sum(dim=1)


def qf3_loss(
    value: Value,
    velocity: Tensor,
    point: PathPoint,
    weights: LossWeights,
    base_velocity: Tensor | None = None,
    row_weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """``mean_B [-Q(s, clipped prediction) + lambda_cfm ||delta||^2 + lambda_base ||v - v_base||^2]`` (4).

    ``velocity`` and ``base_velocity`` are (B, D), taken at ``point.x`` and ``point.t``; without a base its
    term is absent. All norms sum over D. ``row_weight`` (B,) leaves rows out; the mean divides by B.
    """
    gap = point.gap(velocity)
    values = value_through_action(value, point.clipped_prediction(velocity, weights.clip))
    rows = weights.flow * gap.square().sum(dim=1) - values
    info = {
        "actor/q_prediction": float(values.detach().mean()),
        "actor/in_clip": float(in_clip(gap, weights.clip).float().mean()),
    } | gap_by_time(gap, point.t)
    if base_velocity is not None:
        shift = (velocity - base_velocity.detach()).square().sum(dim=1)
        rows = rows + weights.base * shift
        info["actor/base_shift"] = float(shift.detach().mean())
    loss = (rows if row_weight is None else row_weight * rows).mean()
    return loss, info | {"actor/loss": float(loss.detach())}


def gap_by_time(gap: Tensor, t: Tensor) -> dict[str, float]:
    """Mean ``||delta||^2`` over the rows of each third of the flow; 0 where a third has no row."""
    squared, thirds = gap.detach().square().sum(dim=1), (3 * t[:, 0]).long().clamp(max=2)
    sums = squared.new_zeros(3).index_add(0, thirds, squared)
    counts = squared.new_zeros(3).index_add(0, thirds, torch.ones_like(squared))
    means = (sums / counts.clamp(min=1)).tolist()
    return dict(zip(("actor/gap_early", "actor/gap_middle", "actor/gap_late"), means, strict=True))


class QF3(ActorCritic[QF3Config, FlowPolicy]):
    """The learner of QF3 when it fine-tunes: critic and target, the policy and its frozen base.

    ``policy`` is the cloned base, of any kind with a velocity. ``seed`` fixes all random draws.
    """

    def __init__(self, config: QF3Config, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.base = policy.frozen_copy()
        self.optimise({"policy": (self.policy, config.learning_rate)}, {"base": self.base})
        self.updates = 0

    def update(self, batches: Batches) -> dict[str, float]:
        """One update of the critic, and of the policy when its turn has come."""
        batch, view = self.draw(batches)
        loss, _, info = self.temporal_loss(batch, view)
        turn = (self.updates + 1) % self.config.policy_delay == 0
        if turn:
            actor_loss, actor_info = self.actor_loss(batch, view)
            loss, info = loss + actor_loss, info | actor_info
            if self.config.success_weight > 0:
                cloning, added = self.success_loss(batches)
                loss, info = loss + self.config.success_weight * cloning, info | added
        info |= self.step(loss)
        self.updates += 1
        self.critic.track()
        if turn:
            self.average_policy()
        return info

    @property
    def reference(self) -> FlowPolicy:
        """The frozen base."""
        return self.base

    def actor_loss(self, batch: ChunkBatch, view: CriticView) -> tuple[Tensor, dict[str, float]]:
        """(4) on a batch of replay; rows whose chunk straddles the end of an episode are left out."""
        config, context = self.config, view.context
        point = PathPoint.sample(view.action, self.generator)
        velocity = self.policy.velocity(context, point.x, point.t)
        with torch.no_grad():
            base = self.base.base_velocity(context, point.x, point.t)
        weights = LossWeights(config.alpha, config.flow_weight, config.base_weight)
        return qf3_loss(self.value_of(context), velocity, point, weights, base, batch.valid[:, -1])

    def value_of(self, context: Context) -> Value:
        """The online critic at encoded states: actions (B, D), which it clips, to values (B,)."""
        features, config = self.critic.online.see(context).detach(), self.config

        def value(action: Tensor) -> Tensor:
            values = self.critic.online(features, action)
            return aggregate(values, config.q_aggregation, config.critic.pessimism, self.generator)

        return value

    def success_loss(self, batches: Batches) -> tuple[Tensor, dict[str, float]]:
        """The policy's imitation loss on a batch of successes: the addition of QF3+."""
        loss = imitation_loss(self.policy, batches.batch(self.config.success_source), self.generator)
        return loss, {"actor/success_loss": float(loss.detach())}

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """How far the policy has moved from its base, and how straight its flow is; draws one batch."""
        return flow_diagnostics(self.policy, self.base, batches.batch().observation)

    def next_action(self, context: Context) -> Tensor:
        """One ODE sample for each row, of the policy or of its average."""
        policy = self.acting if self.config.target_actor == "average" else self.policy
        return policy.sample(context, self.normal(len(context), policy.noise_size))

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """The best of N samples by the critic; another rule for evaluation if configured."""
        config = self.config
        rule = "own" if purpose == "collect" else config.evaluate_by
        if rule != "own":
            return Actor(self.acting, zero_noise=rule == "zero")
        best_of = config.collect_best_of
        critic = self.critic.target if best_of > 1 else None
        return Actor(self.acting, critic, best_of, sde_scale=config.sde_scale)

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have; the average and the acting rules are its own."""
        config = self.config
        source = config.success_source
        found = {
            f"successes are drawn from {source!r}": config.success_weight > 0 and source != "successes",
            "critic and policy are clipped jointly": config.critic_gradient_clip is None,
        }
        return [text for text, used in found.items() if used]

    def state_dict(self) -> dict[str, Any]:
        """What every algorithm has, and the number of updates, which the delay counts."""
        return {**super().state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.updates = state["updates"]
