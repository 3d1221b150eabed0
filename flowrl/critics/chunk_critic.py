"""A critic of action chunks with its target: what every off-policy algorithm here trains by TD."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from flowrl.critics.targets import CriticConfig, aggregate, chunk_target, td_loss
from flowrl.policies.interface import Context, ChunkPolicy
from flowrl.replay.batch import Batches, ChunkBatch
from flowrl.training import polyak_


@dataclass(frozen=True)
class CriticView:
    """A batch as the critic sees it.

    Attributes:
        context: B rows, the encoded starts of the first chunks: what actors use as well.
        action: flat normalised chunks of replay at these starts, (B, D).
        next_context: N rows for each of which the algorithm proposes one next action.
    """

    context: Context
    action: Tensor
    next_context: Context


class ChunkCritic:
    """An online ensemble and its Polyak target over flat normalised chunks of ``policy``.

    ``discount`` is gamma per environment step. ``seed`` fixes the initial weights.
    """

    def __init__(self, config: CriticConfig, policy: ChunkPolicy, discount: float, seed: int) -> None:
        self.config = config
        self.discount = discount
        self.chunk_length = policy.chunk.length
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            online = config.build(policy.feature_size, policy.flat_size)
        self.online = online.to(policy.device)
        self.target = deepcopy(self.online).requires_grad_(False)

    @property
    def chunks(self) -> int:
        """L, consecutive chunks that a target looks at."""
        return 1

    def next_rows(self, rows: int) -> int:
        """N, next actions asked for by a batch of ``rows``."""
        return self.chunks * rows

    def draw(self, batches: Batches, source: str | None = None) -> ChunkBatch:
        """A batch with as many later chunks as this critic needs."""
        return batches.batch(source, self.chunks)

    def view(self, batch: ChunkBatch, policy: ChunkPolicy) -> CriticView:
        """Encode a batch with ``policy``."""
        return CriticView(
            context=policy.encode(batch.observation),
            action=policy.flat_action(batch.action),
            next_context=policy.encode(batch.next_observation),
        )

    @torch.no_grad()
    def td_target(
        self,
        batch: ChunkBatch,
        view: CriticView,
        next_action: Tensor,
        generator: torch.Generator,
        next_bonus: Tensor | None = None,
    ) -> Tensor:
        """``R_H + gamma^H mask (Agg_m Q_m(s', clip(a')) + bonus)`` by the target ensemble, (B,).

        ``next_action`` (N, D) and ``next_bonus`` (N,) belong to the rows of ``view.next_context``.
        """
        config = self.config
        next_values = self.target(view.next_context.features, next_action.clamp(-1, 1))
        next_value = aggregate(next_values, config.aggregation, config.pessimism, generator)
        return chunk_target(
            batch.rewards[:, -1],
            batch.mask[:, -1],
            next_value if next_bonus is None else next_value + next_bonus,
            self.discount,
            self.chunk_length,
            config.target_low,
            config.target_high,
        )

    def loss(
        self,
        batch: ChunkBatch,
        view: CriticView,
        next_action: Tensor,
        generator: torch.Generator,
        policy_action: Tensor | None = None,
        next_bonus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, dict[str, float]]:
        """The TD loss and, with a ``policy_action`` (B, D) at the first chunk's start, the value gap.

        Both action sets pass through the online ensemble in one evaluation. ``next_action`` (N, D) and
        ``next_bonus`` (N,) are as for `td_target`; ``generator`` draws heads where the aggregation does.
        """
        target = self.td_target(batch, view, next_action, generator, next_bonus)
        features, action = view.context.features, view.action
        if policy_action is None:
            values, gap = self.online(features, action), None
        else:
            both = torch.cat([action, policy_action])
            values, policy_values = self.online(features.repeat(2, 1), both).chunk(2, dim=1)
            gap = value_gap(policy_values, values)
        loss = td_loss(values, target, batch.valid[:, -1])
        data = values.detach()
        info = {
            "critic/td_loss": float(loss.detach()),
            "critic/q_data": float(data.mean()),
            "critic/q_target": float(target.mean()),
            "critic/head_std": float(data.std(dim=0, correction=0).mean()),
        }
        if gap is not None:
            info["critic/value_gap"] = float(gap.detach())
            info["critic/q_policy"] = info["critic/q_data"] + info["critic/value_gap"]
        return loss, gap, info

    def track(self) -> None:
        """Move the target towards the online ensemble by its Polyak rate."""
        polyak_(self.target, self.online, self.config.polyak)


def value_gap(policy_values: Tensor, data_values: Tensor) -> Tensor:
    """``mean_B [mean_m Q_m(s, a_pi) - mean_m Q_m(s, a_data)]``: the value penalty of arXiv 2610.10437.

    Minimising it flattens the critic in the direction in which the policy leaves the data. Its scale
    is the reward's scale. Both arguments are (M, B) of the online ensemble.
    """
    return (policy_values.mean(dim=0) - data_values.mean(dim=0)).mean()
