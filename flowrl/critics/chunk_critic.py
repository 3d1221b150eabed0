"""A critic of action chunks with its target: what every off-policy algorithm here trains by TD."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from flowrl.critics.targets import CriticConfig, aggregate, chunk_target, td_loss
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.replay.batch import ChunkBatch
from flowrl.training import polyak_


class ChunkCritic:
    """An online ensemble and its Polyak target over flat normalised chunks of ``policy``.

    ``discount`` is gamma per environment step. ``seed`` fixes the initial weights.
    """

    def __init__(self, config: CriticConfig, policy: FlowPolicy, discount: float, seed: int) -> None:
        self.config = config
        self.discount = discount
        self.chunk_length = policy.chunk.length
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            online = config.build(policy.feature_size, policy.flat_size)
        self.online = online.to(policy.device)
        self.target = deepcopy(self.online).requires_grad_(False)

    @torch.no_grad()
    def td_target(
        self, batch: ChunkBatch, next_context: Context, next_action: Tensor, generator: torch.Generator
    ) -> Tensor:
        """``R_H + gamma^H mask Agg_m Q_m(s', clip(a'))`` by the target ensemble, (B,)."""
        config = self.config
        next_values = self.target(next_context.features, next_action.clamp(-1, 1))
        return chunk_target(
            batch.rewards[:, -1],
            batch.mask[:, -1],
            aggregate(next_values, config.aggregation, config.pessimism, generator),
            self.discount,
            self.chunk_length,
            config.target_low,
            config.target_high,
        )

    def loss(
        self,
        batch: ChunkBatch,
        context: Context,
        action: Tensor,
        target: Tensor,
        policy_action: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, dict[str, float]]:
        """The TD loss on replay chunks (B, D) and, with a ``policy_action`` (B, D), the value gap.

        Both action sets pass through the online ensemble in one evaluation.
        """
        if policy_action is None:
            values, gap = self.online(context.features, action), None
        else:
            both = torch.cat([action, policy_action])
            values, policy_values = self.online(context.features.repeat(2, 1), both).chunk(2, dim=1)
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
