"""What SQAM, QAM and TRQAM share: the matching loss, the path KL, the dual variable and the slow base.

All three regress the velocity of a policy, ``v_fast``, on that of a base plus a push along the critic's
gradient, weighted by the noise of the memoryless SDE (arXiv 2601.14234, 2605.27079, 2610.10437). They
differ in the states at which they do so and in the size of the push. Equations are numbered as in
docs/algorithms/sqam.md and docs/algorithms/qam.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from flowrl.algorithms.base import ActorCritic, ActorCriticConfig, flow_diagnostics
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.policies.interface import FlowPolicy
from flowrl.replay.batch import ChunkBatch
from flowrl.training import polyak_


@configclass
class AdjointMatchingConfig(ActorCriticConfig):
    """Hyper-parameters of the slow base."""

    base_polyak: float = 0.005
    """Rate of the moving average of the slow base that serves as v_base."""
    base_source: str | None = None
    """Deviation when set: the named replay source on which the slow base trains, for example successes."""
    freeze_base: bool = False
    """Deviation: never train the slow base."""


@configclass
class TrustRegionConfig(AdjointMatchingConfig):
    """Hyper-parameters of the dual variable that keeps the path KL at a budget."""

    kl_budget: float = 1.0
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


class BaseDraws(Protocol):
    """The random numbers of the slow base's step."""

    @property
    def base_noise(self) -> Tensor:
        """(B, D)."""
        ...

    @property
    def base_time(self) -> Tensor:
        """(B, 1), uniform on [0, 1]."""
        ...


def squared_noise_scale(tau: Tensor, h: float) -> Tensor:
    """``g_tau^2 = 2 (1 - tau + h) / (tau + h)``, the memoryless schedule with its offset h (1)."""
    return 2 * (1 - tau + h) / (tau + h)


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

    def step(self, kl: float, config: TrustRegionConfig) -> None:
        """Move lambda towards the budget; the KL is clipped at twice the budget before it is averaged."""
        clipped = min(kl, 2 * config.kl_budget)
        self.average += config.kl_average * (clipped - self.average)
        moved = self.value + config.dual_rate * (self.average - config.kl_budget)
        self.value = min(max(moved, config.dual_low), config.dual_high)


@torch.no_grad()
def matching_info(
    loss: Tensor, shift: Tensor, endpoint: Tensor, gradient: Tensor, values: Tensor
) -> dict[str, float]:
    """Metrics of a matching step.

    ``shift`` is (K * B, D), one time after the other; ``endpoint`` and the critic's ``gradient`` there are
    (B, D), its ``values`` (M, B).
    """
    info = {
        "actor/adjoint_loss": float(loss.detach()),
        "actor/q_target_network": float(values.mean()),
        "actor/q_gradient_norm": float(gradient.norm(dim=1).mean()),
        "actor/saturated": float((endpoint.abs() > 1).float().mean()),
    }
    thirds = shift.square().sum(dim=1).view(-1, len(endpoint)).mean(dim=1).tensor_split(3)
    for name, part in zip(("early", "middle", "late"), thirds, strict=True):
        info[f"actor/shift_{name}"] = float(part.mean()) if len(part) else 0.0
    return info


class AdjointMatching[Config: AdjointMatchingConfig](ActorCritic[Config, FlowPolicy]):
    """Critic and target, a slow base with its average, and the fast policy that is matched to it.

    ``policy`` is the behaviour-cloned base, copied for every role. ``seed`` fixes all random draws.

    Attributes:
        fast: the policy that is tuned and acts.
        slow: the base that goes on imitating replay.
        slow_target: its moving average, v_base of the matching loss.
    """

    def __init__(self, config: Config, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.fast = self.policy
        self.slow = policy.trainable_copy()
        self.slow_target = policy.frozen_copy()
        rate = config.learning_rate
        self.optimise(
            {"fast": (self.fast, rate), "slow": (self.slow, rate)}, {"slow_target": self.slow_target}
        )

    def diagnostics(self, batches: Batches) -> dict[str, float]:
        """How far the policy has moved from its base, and how straight its flow is; draws one batch."""
        return flow_diagnostics(self.fast, self.slow_target, batches.batch().observation)

    @property
    def reference(self) -> FlowPolicy:
        """The average of the slow base."""
        return self.slow_target

    def base_batch(self, batch: ChunkBatch, batches: Batches) -> ChunkBatch:
        """What the slow base imitates: the critic's ``batch``, or a fresh one of the configured source."""
        source = self.config.base_source
        return batch if source is None else batches.batch(source)

    def base_loss(self, batch: ChunkBatch, draws: BaseDraws) -> Tensor:
        """Flow matching of the slow base on replay chunks, rows masked where the chunk straddles an end."""
        if self.config.freeze_base:
            return torch.zeros(())
        context = self.slow.encode(batch.observation)
        action = self.slow.flat_action(batch.action)
        return self.slow.imitation_loss(
            context, action, draws.base_noise, draws.base_time, batch.valid[:, -1]
        )

    def track(self) -> None:
        """Move every moving average: the critic's target, the slow target, the acting policy."""
        self.critic.track()
        polyak_(self.slow_target, self.slow, self.config.base_polyak)
        self.average_policy()

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have."""
        config = self.config
        found = {
            f"the slow base trains on the source {config.base_source!r} only": config.base_source is not None,
            "the slow base is frozen": config.freeze_base,
        }
        return [text for text, used in found.items() if used] + super().deviations()


class TrustRegion[Config: TrustRegionConfig](AdjointMatching[Config]):
    """Adjoint matching whose temperature is a dual variable.

    Attributes:
        dual: lambda and the average of the path KL.
    """

    def __init__(self, config: Config, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.dual = Dual(config.dual_initial)

    @property
    def dual_effective(self) -> float:
        """lambda_eff, the inverse temperature's inverse that scales the noise of the loss."""
        return self.config.dual_scale * self.dual.value

    def adapt(self, kl: float) -> dict[str, float]:
        """Move the dual variable after a step at which the path KL was ``kl``; returns metrics."""
        self.dual.step(kl, self.config)
        return {
            "dual/lambda": self.dual.value,
            "dual/path_kl": kl,
            "dual/path_kl_average": self.dual.average,
        }

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, optimiser, random state and the dual variable."""
        return super().state_dict() | {"dual": asdict(self.dual)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.dual = Dual(**state["dual"])
