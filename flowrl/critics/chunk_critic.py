"""A critic of action chunks with its target: what every off-policy algorithm here trains by TD."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from flowrl.critics.heads import C51Head, CategoricalHead, HLGaussHead
from flowrl.critics.hinges import hinges
from flowrl.critics.targets import (
    CriticConfig,
    bootstrap_values,
    classification_loss,
    distribution_target,
    td_loss,
)
from flowrl.critics.traces import trace
from flowrl.policies.interface import ChunkPolicy, Context, concatenate
from flowrl.replay.batch import Batches, ChunkBatch


@dataclass(frozen=True)
class CriticView:
    """A batch of B sequences of L chunks as the critic sees it; L and n are the critic's.

    Attributes:
        context: B rows, the encoded starts of the first chunks: what actors use as well.
        action: flat normalised chunks of replay at these starts, (B, D).
        next_context: N = n * L * B rows, for each of which the algorithm proposes one next action: the states
            after the first chunk of all B, then after the second, ...; and all that n times over.
        later_features: encoded starts of the later chunks, ((L-1) * B, F), where the critic reads them.
        later_action: the chunks there, ((L-1) * B, D).
    """

    context: Context
    action: Tensor
    next_context: Context
    later_features: Tensor | None = None
    later_action: Tensor | None = None


@dataclass(frozen=True)
class _Sequence:
    """What the chunks of a batch obtained, (L, B) each: R_i, its mask, and whether it may be used."""

    rewards: Tensor
    mask: Tensor
    usable: Tensor
    present: Tensor

    @classmethod
    def of(cls, batch: ChunkBatch, chunks: int) -> _Sequence:
        def column(name: str) -> Tensor:
            first: Tensor = getattr(batch, name)[:, -1]
            later: list[Tensor] = [] if batch.later is None else [getattr(batch.later, name)[:, -1]]
            return torch.cat([first, *later]).view(chunks, len(batch))

        mask = column("mask")
        present = torch.ones_like(mask) if batch.present is None else batch.present
        return cls(column("rewards"), mask, present * column("valid"), present)

    def apart(self) -> _Sequence:
        """Every chunk a sequence of its own: (1, L * B)."""
        parts = (self.rewards, self.mask, self.usable, self.present)
        return _Sequence(*(part.reshape(1, -1) for part in parts))


class ChunkCritic:
    """An online ensemble and its Polyak target over flat normalised chunks of ``policy``.

    All options of `CriticConfig` are behind the same four calls: `draw` a batch, `view` it, propose an
    action for every row of ``view.next_context``, ask for the `loss`; after the optimiser's step, `track`.

    ``discount`` is gamma per environment step. ``seed`` fixes the initial weights. Raises ConfigError when an
    own encoder is configured and the policy's spec has no camera.

    Attributes:
        online, target: the ensembles, each with its own encoder where one is configured.
        feature_size: F, the size of what they see.
    """

    def __init__(self, config: CriticConfig, policy: ChunkPolicy, discount: float, seed: int) -> None:
        self.config = config
        self.discount = discount
        self.chunk_length = policy.chunk.length
        own, spec = config.encoder, policy.spec
        settings = None if own is None else own.settings(spec)
        self.feature_size = policy.feature_size if own is None else own.feature_size(spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            online = config.build(self.feature_size, policy.flat_size, policy.action_view, settings)
        self.online = online.to(policy.device)
        self.target = deepcopy(self.online).requires_grad_(False)

    @property
    def chunks(self) -> int:
        """L, consecutive chunks that a target looks at."""
        return self.config.hinge_chunks if self._hinged else self.config.backup_chunks

    def next_rows(self, rows: int) -> int:
        """N, next actions asked for by a batch of ``rows``."""
        return self.config.next_samples * self.chunks * rows

    def draw(self, batches: Batches, source: str | None = None) -> ChunkBatch:
        """A batch with as many later chunks as this critic needs."""
        return batches.batch(source, self.chunks)

    def view(
        self, batch: ChunkBatch, policy: ChunkPolicy, generator: torch.Generator | None = None
    ) -> CriticView:
        """Encode a batch of `draw` with ``policy``, and for the critic's own encoder where it has one.

        The own encoder sees frames shifted at random by ``generator``; without one, as they are.
        """
        look = self.online.look
        next_context = look(policy, batch.next_observation, generator)
        features = action = None
        if batch.later is not None:
            following = look(policy, batch.later.next_observation, generator)
            next_context = concatenate(next_context, following)
            if self._hinged:
                features = self.online.see(look(policy, batch.later.observation, generator))
                action = policy.flat_action(batch.later.action)
        samples = self.config.next_samples
        return CriticView(
            context=look(policy, batch.observation, generator),
            action=policy.flat_action(batch.action),
            next_context=next_context if samples == 1 else next_context.tile(samples),
            later_features=features,
            later_action=action,
        )

    def td_target(
        self,
        batch: ChunkBatch,
        view: CriticView,
        next_action: Tensor,
        generator: torch.Generator,
        next_bonus: Tensor | None = None,
    ) -> Tensor:
        """The target of every chunk that gets TD, by the target ensemble; see docs/critics.md.

        For one chunk ``R_H + gamma^H mask (Agg_m Q_m(s', clip(a')) + bonus)``. Rows are the B first chunks,
        or all L * B with hinges: (R,), and with the head c51 distributions (R, Z). ``next_action`` (N, D) and
        ``next_bonus`` (N,) belong to the rows of ``view.next_context``.
        """
        chunks = _Sequence.of(batch, self.chunks)
        return self._targets(chunks, self._next_logits(view, next_action), generator, next_bonus)

    def loss(
        self,
        batch: ChunkBatch,
        view: CriticView,
        next_action: Tensor,
        generator: torch.Generator,
        policy_action: Tensor | None = None,
        next_bonus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, dict[str, float]]:
        """The temporal loss and, with a ``policy_action`` (B, D) at the first chunk's start, the value gap.

        The temporal loss is TD, with the weighted hinges where configured. All actions pass through the
        online ensemble in one evaluation. ``next_action`` (N, D) and ``next_bonus`` (N,) are as for
        `td_target`; ``generator`` draws heads where the aggregation does.
        """
        rows, chunks = len(batch), _Sequence.of(batch, self.chunks)
        next_logits = self._next_logits(view, next_action)
        target = self._targets(chunks, next_logits, generator, next_bonus)
        logits = self._online_logits(view, policy_action)
        values = self.online.head.values(logits)
        temporal = self._td_loss(chunks, logits[:, : len(target)], target)
        data = values[:, :rows].detach()
        info = {
            "critic/td_loss": float(temporal.detach()),
            "critic/q_data": float(data.mean()),
            "critic/q_target": self._mean_target(target[:rows]),
            "critic/head_std": float(data.std(dim=0, correction=0).mean()),
        }
        if self._hinged:
            penalty, added = self._hinges(
                chunks, values[:, : len(target)], next_logits, generator, next_bonus
            )
            temporal, info = temporal + self.config.hinge * penalty, info | added
        gap = None if policy_action is None else value_gap(values[:, -rows:], values[:, :rows])
        if gap is not None:
            info["critic/value_gap"] = float(gap.detach())
            info["critic/q_policy"] = info["critic/q_data"] + info["critic/value_gap"]
        return temporal, gap, info

    def track(self) -> None:
        """Move the target towards the online ensemble by its Polyak rate."""
        self.target.track_(self.online, self.config.polyak)

    @property
    def _hinged(self) -> bool:
        return self.config.hinge > 0

    @property
    def _chunk_discount(self) -> float:
        return self.discount**self.chunk_length

    @torch.no_grad()
    def _next_logits(self, view: CriticView, next_action: Tensor) -> Tensor:
        return self.target.logits(self.target.see(view.next_context), next_action)

    def _online_logits(self, view: CriticView, policy_action: Tensor | None) -> Tensor:
        """Outputs at the first chunks, then the later ones where they are read, then the policy's chunks."""
        here = self.online.see(view.context)
        features, actions = [here], [view.action]
        if view.later_features is not None and view.later_action is not None:
            features.append(view.later_features)
            actions.append(view.later_action)
        if policy_action is not None:
            features.append(here)
            actions.append(policy_action)
        return self.online.logits(torch.cat(features), torch.cat(actions))

    @torch.no_grad()
    def _targets(
        self, chunks: _Sequence, next_logits: Tensor, generator: torch.Generator, bonus: Tensor | None
    ) -> Tensor:
        """One return for each first chunk, over all chunks; with hinges one for each chunk, over it alone."""
        if self._hinged:
            chunks = chunks.apart()
        config, head = self.config, self.target.head
        returns = trace(chunks.rewards, chunks.mask, chunks.usable, self._chunk_discount, config.trace)
        if isinstance(head, C51Head):
            probabilities = next_logits.softmax(dim=-1)
            return distribution_target(probabilities, head.atoms, returns, config, generator, bonus)
        values = bootstrap_values(
            head.values(next_logits), len(chunks.rewards), config, config.aggregation, generator, bonus
        )
        return returns.returns(values)

    def _td_loss(self, chunks: _Sequence, logits: Tensor, target: Tensor) -> Tensor:
        """Meaned over the chunks that are present, of which those not wholly valid have weight 0."""
        usable, present = chunks.usable.view(-1)[: len(target)], chunks.present.view(-1)[: len(target)]
        weight, head = usable * (len(present) / present.sum()), self.online.head
        if isinstance(head, HLGaussHead):
            target = head.histogram(target)
        if isinstance(head, CategoricalHead):
            return classification_loss(logits, target, weight)
        return td_loss(head.values(logits), target, weight, self.config.expectile)

    def _hinges(
        self,
        chunks: _Sequence,
        values: Tensor,
        next_logits: Tensor,
        generator: torch.Generator,
        bonus: Tensor | None,
    ) -> tuple[Tensor, dict[str, float]]:
        next_head_values = self.target.head.values(next_logits)
        lower, upper, pairs = hinges(
            values.view(len(values), *chunks.rewards.shape),
            bootstrap_values(next_head_values, self.chunks, self.config, "mean", generator, bonus),
            chunks.rewards,
            chunks.mask,
            chunks.usable,
            self._chunk_discount,
        )
        return lower + upper, {
            "critic/lower_hinge": float(lower.detach()),
            "critic/upper_hinge": float(upper.detach()),
            "critic/hinge_pairs": pairs,
        }

    def _mean_target(self, target: Tensor) -> float:
        head = self.target.head
        return float((target @ head.atoms if isinstance(head, C51Head) else target).mean())


def value_gap(policy_values: Tensor, data_values: Tensor) -> Tensor:
    """``mean_B [mean_m Q_m(s, a_pi) - mean_m Q_m(s, a_data)]``: the value penalty of arXiv 2610.10437.

    Minimising it flattens the critic in the direction in which the policy leaves the data. Its scale
    is the reward's scale. Both arguments are (M, B) of the online ensemble.
    """
    return (policy_values.mean(dim=0) - data_values.mean(dim=0)).mean()
