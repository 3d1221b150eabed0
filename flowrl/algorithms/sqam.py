"""SQAM: Q-learning with scalar adjoint matching (arXiv 2610.10437).

A flow policy ``v_fast`` is fine-tuned towards the tilt of a base policy by the critic,
``pi(a|s) ~ pi_base(a|s) exp(Q(s, a) / lambda)``, without back-propagating through its sampler. The adjoint
of the memoryless SDE is replaced by a scalar multiple of the critic's gradient at the end point,
``-tau grad_a Q(s, a_1)``, and a dual variable ``lambda`` keeps the path KL to the base at a budget.
Equations are numbered as in docs/algorithms/sqam.md.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flowrl.algorithms.base import ActorCritic, ActorCriticConfig, flow_diagnostics
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.ensemble import action_gradient
from flowrl.policies.interface import Context, FlowPolicy, concatenate
from flowrl.policies.samplers import interpolate
from flowrl.replay.batch import ChunkBatch
from flowrl.training import polyak_


@configclass
class SQAMConfig(ActorCriticConfig):
    """Hyper-parameters of SQAM; defaults are the authors' released ones."""

    kind: Literal["sqam"] = "sqam"
    """Name of the algorithm."""
    discount: float = 0.995
    """gamma, per environment step; a chunk is discounted by gamma^H."""
    bridge_states: int | None = None
    """States per end point at which the adjoint is matched; None means the policy's flow steps K."""
    kl_budget: float = 0.5
    """eps_KL: the path KL to the base, divided by H, that the dual variable aims at."""
    dual_initial: float = 1.0
    """lambda before the first update."""
    dual_rate: float = 0.01
    """Step size of the dual variable, per update."""
    dual_low: float = 0.01
    """Smallest lambda."""
    dual_high: float = 100.0
    """Largest lambda."""
    dual_scale: float = 3.0
    """lambda_eff = dual_scale * lambda."""
    kl_average: float = 0.1
    """Weight of the newest path KL in its moving average."""
    value_penalty: float = 0.3
    """c: weight of Q(s, a_policy) - Q(s, a_data) in the critic's loss; scales with the reward."""
    base_polyak: float = 0.005
    """Rate of the moving average of the slow base that serves as v_base."""
    base_source: str | None = None
    """Deviation when set: the named replay source on which the slow base trains, for example successes."""
    freeze_base: bool = False
    """Deviation: never train the slow base."""


@dataclass(frozen=True)
class Draws:
    """Every random number of one update, (B, D) unless said, so that an update can be repeated exactly."""

    endpoint: Tensor
    next_action: Tensor  # (N, D), for every row of the critic's next contexts
    bridge: Tensor  # (K * B, D), the batch tiled K times
    base_noise: Tensor
    base_time: Tensor  # (B, 1)

    @classmethod
    def sample(
        cls,
        rows: int,
        size: int,
        bridges: int,
        generator: torch.Generator,
        device: torch.device,
        next_rows: int | None = None,
    ) -> Draws:
        """Fresh draws, made on the CPU so that a seed means the same on every ``device``; N is B unless given."""
        counts = (rows, rows if next_rows is None else next_rows, bridges * rows, rows)
        normal = [torch.randn(n, size, generator=generator) for n in counts]
        draws = [*normal, torch.rand(rows, 1, generator=generator)]
        return cls(*(draw.to(device) for draw in draws))


def bridge_times(bridges: int, rows: int, device: torch.device | None = None) -> Tensor:
    """tau = 1/K, 2/K, ..., 1, each for a whole batch of ``rows``: (K * B, 1)."""
    times = torch.arange(1, bridges + 1, device=device) / bridges
    return times.repeat_interleave(rows)[:, None]


def squared_noise_scale(tau: Tensor, h: float) -> Tensor:
    """``g_tau^2 = 2 (1 - tau + h) / (tau + h)``, the memoryless schedule with its offset h (1)."""
    return 2 * (1 - tau + h) / (tau + h)


def scalar_adjoint(gradient: Tensor, tau: Tensor) -> Tensor:
    """``-tau grad_a Q(s, a_1)`` (2): exact when the base velocity does not depend on x."""
    return -tau * gradient


def adjoint_matching_loss(
    shift: Tensor, adjoint: Tensor, squared_scale: Tensor, dual_effective: float, rows: int
) -> Tensor:
    """``sum_tau mean_B || (2 / sigma) (v_fast - v_base) + sigma adjoint ||^2``, sigma^2 = g^2 / lambda (3).

    ``shift`` = v_fast - v_base and ``adjoint`` are (K * B, D), ``squared_scale`` is (K * B, 1).
    """
    sigma = (squared_scale / dual_effective).sqrt()
    return (2 / sigma * shift + sigma * adjoint).square().sum() / rows


def path_kl(shift: Tensor, squared_scale: Tensor, h: float, rows: int, chunk_length: int) -> Tensor:
    """``sum_tau mean_B (2 h / g^2) || v_fast - v_base ||^2 / H`` (4), a number without gradient."""
    return (2 * h / squared_scale * shift.detach().square()).sum() / rows / chunk_length


@dataclass
class Dual:
    """The dual variable lambda, which keeps the path KL at its budget (5)."""

    value: float
    average: float = 0.0

    def step(self, kl: float, config: SQAMConfig) -> None:
        """Move lambda towards the budget; the KL is clipped at twice the budget before it is averaged."""
        clipped = min(kl, 2 * config.kl_budget)
        self.average += config.kl_average * (clipped - self.average)
        moved = self.value + config.dual_rate * (self.average - config.kl_budget)
        self.value = min(max(moved, config.dual_low), config.dual_high)


class SQAM(ActorCritic[SQAMConfig, FlowPolicy]):
    """The learner of SQAM: critic and target, slow base and its average, fast policy.

    ``policy`` is the behaviour-cloned base, copied for every role. ``seed`` fixes all random draws.
    """

    def __init__(self, config: SQAMConfig, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.fast = self.policy
        self.slow = deepcopy(policy).requires_grad_(True)
        self.slow_target = policy.frozen_copy()
        rate = config.learning_rate
        self.optimise(
            {"fast": (self.fast, rate), "slow": (self.slow, rate)}, {"slow_target": self.slow_target}
        )
        self.dual = Dual(config.dual_initial)

    def update(self, batches: Batches) -> dict[str, float]:
        """One update of critic, base, policy and dual variable."""
        config = self.config
        batch = self.critic.draw(batches)
        base_batch = batch if config.base_source is None else batches.batch(config.base_source)
        draws = self._draws(len(batch), config.bridge_states or self.fast.flow_steps)
        loss, info, kl = self.losses(batch, base_batch, draws)
        info |= self.step(loss)
        self.dual.step(kl, config)
        self._average()
        return info | {
            "dual/lambda": self.dual.value,
            "dual/path_kl": kl,
            "dual/path_kl_average": self.dual.average,
        }

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """How far the policy has moved from its base, and how straight its flow is; draws one batch."""
        return flow_diagnostics(self.fast, self.slow_target, self.fast.encode(batches.batch().observation))

    def losses(
        self, batch: ChunkBatch, base_batch: ChunkBatch, draws: Draws
    ) -> tuple[Tensor, dict[str, float], float]:
        """The joint loss of one update, its metrics and the path KL; changes nothing."""
        view = self.critic.view(batch, self.fast)
        with torch.no_grad():
            noise = torch.cat([draws.endpoint, draws.next_action])
            sampled = self.fast.sample(concatenate(view.context, view.next_context), noise)
            endpoint, next_action = sampled.tensor_split([len(batch)])
        temporal, gap, critic_info = self.critic.loss(
            batch, view, next_action, self.generator, endpoint.clamp(-1, 1)
        )
        assert gap is not None
        actor_loss, actor_info, kl = self.actor_loss(view.context, endpoint, draws.bridge)
        base_loss = self.base_loss(base_batch, draws)
        info = critic_info | actor_info | {"base/loss": float(base_loss.detach())}
        return temporal + self.config.value_penalty * gap + actor_loss + base_loss, info, kl

    def actor_loss(
        self, context: Context, endpoint: Tensor, bridge_noise: Tensor
    ) -> tuple[Tensor, dict[str, float], float]:
        """Scalar adjoint matching on bridge states that end at the policy's own ``endpoint`` (B, D)."""
        rows = len(endpoint)
        bridges = len(bridge_noise) // rows
        h = 1 / bridges
        gradient, values = action_gradient(self.critic.target, context.features, endpoint)
        tau = bridge_times(bridges, rows, endpoint.device)
        squared_scale = squared_noise_scale(tau, h)
        x = interpolate(bridge_noise, endpoint.repeat(bridges, 1), tau)
        tiled = context.tile(bridges)
        with torch.no_grad():
            base = self.slow_target.velocity(tiled, x, tau)
        shift = self.fast.velocity(tiled, x, tau) - base
        adjoint = scalar_adjoint(gradient.repeat(bridges, 1), tau)
        loss = adjoint_matching_loss(shift, adjoint, squared_scale, self.dual_effective, rows)
        kl = float(path_kl(shift, squared_scale, h, rows, self.fast.chunk.length))
        info = {
            "actor/adjoint_loss": float(loss.detach()),
            "actor/q_target_network": float(values.mean()),
            "actor/q_gradient_norm": float(gradient.norm(dim=1).mean()),
            "actor/saturated": float((endpoint.abs() > 1).float().mean()),
        }
        thirds = shift.detach().square().sum(dim=1).view(bridges, rows).mean(dim=1).tensor_split(3)
        for name, part in zip(("early", "middle", "late"), thirds, strict=True):
            info[f"actor/shift_{name}"] = float(part.mean()) if len(part) else 0.0
        return loss, info, kl

    def base_loss(self, batch: ChunkBatch, draws: Draws) -> Tensor:
        """Flow matching of the slow base on replay chunks, rows masked where the chunk straddles an end."""
        if self.config.freeze_base:
            return torch.zeros(())
        context = self.slow.encode(batch.observation)
        action = self.slow.flat_action(batch.action)
        return self.slow.imitation_loss(
            context, action, draws.base_noise, draws.base_time, batch.valid[:, -1]
        )

    @property
    def dual_effective(self) -> float:
        """lambda_eff, the inverse temperature's inverse that scales the noise of the loss."""
        return self.config.dual_scale * self.dual.value

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        config = self.config
        found = {
            f"the slow base trains on the source {config.base_source!r} only": config.base_source is not None,
            "the slow base is frozen": config.freeze_base,
        }
        return [text for text, used in found.items() if used] + super().deviations()

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, optimiser, random state and the dual variable."""
        return super().state_dict() | {"dual": asdict(self.dual)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.dual = Dual(**state["dual"])

    def _draws(self, rows: int, bridges: int) -> Draws:
        policy, next_rows = self.fast, self.critic.next_rows(rows)
        return Draws.sample(rows, policy.flat_size, bridges, self.generator, policy.device, next_rows)

    def _average(self) -> None:
        self.critic.track()
        polyak_(self.slow_target, self.slow, self.config.base_polyak)
        self.average_policy()
