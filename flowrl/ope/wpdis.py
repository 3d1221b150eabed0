"""Weighted per-decision importance sampling over chunks (Precup, Sutton and Singh 2000).

Decision j of episode i is the chunk that starts at step jH. With ``rho = pi(a | s) / b(a | s)`` the
density ratio of candidate and behaviour,

    w_ij = prod_{l <= j} rho_il,    J = sum_j gamma^{jH} (sum_i w_ij R_ij) / (sum_i w_ij)

where R_ij are the rewards of the chunk, discounted from its start. An episode that is over keeps its last
weight and earns 0. The last chunk of an episode that its end cut short has ratio 1: what was not executed
was not logged, so its density is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from flowrl.ope.data import EpisodeSubset
from flowrl.ope.likelihood import Densities, chunk_densities, joined
from flowrl.ope.observations import Blocks
from flowrl.policies.interface import ChunkPolicy
from flowrl.replay.schema import EPISODE, Floats

Array = NDArray[np.float64]
FEW_EPISODES = 4
"""Fewer episodes with densities than this give no estimate."""


@dataclass(frozen=True)
class Decisions:
    """The episodes of one behaviour policy as decisions.

    Attributes:
        rewards: R_ij discounted to the start of the episode, (n, T); 0 after the end.
        index: which of the P density rows decision (i, j) is, (n, T); -1 where it has ratio 1.
        observations: at the starts of the P whole chunks.
        action: their executed actions, (P, H, A).
    """

    rewards: Array
    index: NDArray[np.int64]
    observations: Blocks
    action: Floats

    @classmethod
    def of(cls, episodes: EpisodeSubset, chunk: int, discount: float) -> Decisions:
        """Cut every episode at 0, H, 2H, ...: where its policy chose, if it executes whole chunks."""
        first, length = (episodes.table[:, EPISODE[name]] for name in ("first_row", "length"))
        count = -(-length // chunk)
        rewards = np.zeros((len(first), int(count.max())))
        index = np.full(rewards.shape, -1, np.int64)
        step = np.arange(episodes.rows) - np.repeat(first, length)
        of = np.repeat(np.arange(len(first)), length)
        np.add.at(rewards, (of, step // chunk), episodes.reward.astype(np.float64) * discount**step)
        whole = np.arange(index.shape[1]) < (length // chunk)[:, None]
        index[whole] = np.arange(int(whole.sum()))
        episode, decision = np.nonzero(whole)
        rows = first[episode] + decision * chunk
        action = episodes.action[rows[:, None] + np.arange(chunk)]
        return cls(rewards, index, episodes.observations(rows), action)

    def densities(self, policy: ChunkPolicy) -> Densities:
        """Log-densities (P,) of the logged chunks under a policy."""
        parts, start = list[Densities](), 0
        for block in self.observations.blocks():
            action = torch.from_numpy(self.action[start : start + len(block)])
            parts.append(chunk_densities(policy, block, action))
            start += len(block)
        return joined(parts)

    def log_ratios(self, policy: Densities, behaviour: Densities) -> Array:
        """Log-ratios (n, T) of two policies: 0 at decisions without density and after the end."""
        difference = (policy.log_prob - behaviour.log_prob).numpy()
        padded = np.append(difference, 0.0)
        return padded[self.index]


@dataclass(frozen=True)
class Weighted:
    """The estimator for one candidate on n episodes, of which those with ``usable`` (n,) take part.

    ``log_ratios`` and ``rewards`` are (n, T); rewards are discounted to the start of the episode.
    """

    log_ratios: Array
    rewards: Array

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Episodes all of whose decisions have a density."""
        return np.logical_and.reduce(np.isfinite(self.log_ratios), axis=1)

    @cached_property
    def weights(self) -> Array:
        """w_ij (n, T), divided by the largest of each decision; 0 for episodes that take no part."""
        log = np.cumsum(np.where(self.usable[:, None], self.log_ratios, 0.0), axis=1)
        log = np.where(self.usable[:, None], log, -np.inf)
        top = log.max(axis=0, keepdims=True)
        return np.exp(log - np.where(np.isfinite(top), top, 0.0))

    @property
    def estimate(self) -> float:
        """J, NaN with fewer than `FEW_EPISODES` episodes."""
        return float(self.resampled(np.ones((1, len(self.usable))))[0])

    def resampled(self, counts: Array) -> Array:
        """J for draws with ``counts`` (R, n) of each episode: (R,). NaN where nothing was drawn."""
        if self.usable.sum() < FEW_EPISODES:
            return np.full(len(counts), math.nan)
        total = counts @ self.weights
        with np.errstate(invalid="ignore"):
            return ((counts @ (self.weights * self.rewards)) / total).sum(axis=1)

    @property
    def effective(self) -> Array:
        """Effective sample size ``(sum_i w_ij)^2 / sum_i w_ij^2`` of every decision, (T,)."""
        squares = (self.weights**2).sum(axis=0)
        return np.divide(
            self.weights.sum(axis=0) ** 2, squares, out=np.zeros_like(squares), where=squares > 0
        )

    @property
    def effective_share(self) -> float:
        """The smallest effective sample size of a decision, as a share of all n episodes."""
        return float(self.effective.min()) / len(self.usable)
