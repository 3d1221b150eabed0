"""The chunk at every row, precomputed when an episode arrives (algorithms: Q-chunking, arXiv 2507.07969).

For a start t and i = 0..H-1: running discounted rewards, ``mask`` (bootstrap allowed after step i) and
``valid`` (step i is inside the episode), as `flowrl.replay.batch.ChunkBatch` states them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Floats, Ints, Outcome

EndRule = Literal["strict", "padded"]


@dataclass(frozen=True)
class ChunkRule:
    """How chunks are cut: H steps, discount, the end of an episode, the reward.

    The reward used is ``reward_scale * (raw + reward_shift)``. ``strict``: a chunk that straddles the
    end before its last step has ``valid[:, -1] = 0``. ``padded``: a successful episode goes on after its
    end with its last action, reward 0 (after the transformation), mask 0 and valid 1, so that H starts
    carry the end; every other episode keeps the strict rule. Actions also reach ``past`` steps before the
    chunk and ``ahead`` steps beyond it, the first and the last one repeated where the episode is over.
    """

    length: int
    discount: float
    end_rule: EndRule
    reward_scale: float
    reward_shift: float
    past: int = 0
    ahead: int = 0

    @property
    def horizon(self) -> int:
        """Steps of a row of actions."""
        return self.past + self.length + self.ahead


@dataclass(frozen=True)
class Chunks:
    """The chunks that start at R new rows.

    ``rewards``, ``mask``, ``valid`` (R, H); ``next`` (R,) is the row of the observation after the last
    valid step, or ``-(e + 1)`` for the final observation of episode e; ``action`` holds the actions with
    copies of an episode's first and last one around it; ``position`` (R,) is the place in it where the row's
    actions begin, counted from its first row; ``success`` (R,); ``startable`` (R,) is False where no step is usable.
    ``following`` (R,) is the row at which the episode's next chunk starts, -1 where there is none: where
    the chunk is not wholly valid, where it ends the episode, and where nothing can start after it.
    """

    rewards: Floats
    mask: Floats
    valid: Floats
    next: Ints
    action: Floats
    position: Ints
    success: Floats
    startable: NDArray[np.bool_]
    following: Ints


def cut(reader: ReplayReader, first_episode: int, rule: ChunkRule) -> Chunks:
    """The chunks of all episodes from ``first_episode`` on.

    An episode that neither terminated nor has an observation after its last step loses that step: it
    ends one step earlier, and the observation of the lost step is the final one.
    """
    table = reader.table[first_episode:]
    first, length = table[:, EPISODE["first_row"]], table[:, EPISODE["length"]]
    success = table[:, EPISODE["outcome"]] == Outcome.SUCCESS
    terminal = success | (reader.column("terminated")[first + length - 1] == 1)
    has_final = table[:, EPISODE["has_final"]] == 1
    usable = length - (~terminal & ~has_final)

    of = np.repeat(np.arange(len(table)), length)
    base = int(first[0])
    row = base + np.arange(len(of))
    # Steps from this row to the end, this one included: 0 on a lost last step.
    left = (first + usable)[of] - row
    index = np.arange(rule.length)
    inside = index < left[:, None]
    raw = reader.reward[np.minimum(row[:, None] + index, (first + length - 1)[of][:, None])]
    reward = np.where(inside, rule.reward_scale * (raw.astype(np.float64) + rule.reward_shift), 0.0)
    absorbing = success[of] if rule.end_rule == "padded" else np.zeros(len(of), bool)
    ended = terminal[of][:, None] & (index >= left[:, None] - 1)
    taken = np.minimum(left, rule.length)
    # The end of the episode is the final observation, unless the last step was lost or it never mattered.
    final = row + taken == (first + length)[of]
    after = np.where(has_final[of], -(first_episode + of + 1), row + taken - 1)
    startable = (left > 0) & (table[:, EPISODE["outcome"]] != Outcome.DISCARDED)[of]
    goes_on = inside[:, -1] & ~ended[:, -1] & ~final
    following = np.where(goes_on, row + taken, row)
    goes_on &= startable[following - base]
    return Chunks(
        rewards=np.cumsum(reward * rule.discount**index, axis=1).astype(np.float32),
        mask=(~ended).astype(np.float32),
        valid=(inside | absorbing[:, None]).astype(np.float32),
        next=np.where(final, after, row + taken),
        action=_padded_actions(reader, first, length, rule),
        position=np.arange(len(of)) + of * (rule.horizon - 1),
        success=success[of].astype(np.float32),
        startable=startable,
        following=np.where(goes_on, following, -1),
    )


def _padded_actions(reader: ReplayReader, first: Ints, length: Ints, rule: ChunkRule) -> Floats:
    """Actions of the episodes, each after ``past`` copies of its first and before others of its last."""
    repeats = np.ones(int(length.sum()), np.int64)
    last = np.cumsum(length) - 1
    repeats[last - length + 1] += rule.past
    repeats[last] += rule.length - 1 + rule.ahead
    return np.repeat(reader.action[int(first[0]) :], repeats, axis=0)
