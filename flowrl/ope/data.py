"""The logged episodes as an estimator sees them: which reward, which episodes train, which are held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import UsageError
from flowrl.ope.observations import LoggedObservations
from flowrl.replay.chunks import ChunkRule, cut
from flowrl.replay.frame_reader import FrameReader
from flowrl.replay.frames import Pixels
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Floats, Ints, Kind, Outcome

RewardChoice = Literal["auto", "raw", "success"]
RewardKind = Literal["raw", "success"]


class EpisodeSubset(ReplayReader):
    """Some whole episodes of a reader, copied, with a reward of one's own: what samplers take as a reader.

    ``episodes`` are their numbers in the reader, ``reward`` (N,) replaces the reader's column. Rows and
    episodes are numbered anew, in the order given. It never grows. Frames are not copied: a sampler's batches
    have states alone, and `observations` has the frames of the reader.
    """

    def __init__(self, reader: ReplayReader, episodes: Ints, reward: Floats) -> None:
        self.path = reader.path
        self._image_bytes = self._decoded_bytes = 0
        self._reset()
        self._spec = reader.spec
        self._kinds = reader.streams
        self._names = list(self._kinds)
        self._allocate(reader.spec)
        blind = replace(reader.spec, observation=reader.spec.state_features)
        self._frames = FrameReader(blind, _no_frames, 0)
        first, length = _spans(reader.table[episodes])
        rows = np.concatenate([np.arange(a, a + n) for a, n in zip(first, length, strict=True)])
        table = reader.table[episodes].copy()
        table[:, EPISODE["first_row"]] = np.cumsum(length) - length
        self._table.append(table)
        self._state.append(reader.state[rows])
        self._action.append(reader.action[rows])
        self._policy_action.append(reader.policy_action[rows])
        self._reward.append(reward[rows])
        self._integers.append(reader.integers[rows])
        self._final.append(reader.final[episodes])
        self._stream_index.append(reader.stream_of_episode[episodes])
        self._tasks = [reader.tasks[episode] for episode in episodes.tolist()]
        self._origin, self._origin_rows, self._origin_episodes = reader, rows, episodes

    @property
    def streams(self) -> dict[str, Kind]:
        """All streams of the reader, also those of which no episode is here."""
        return dict(self._kinds)

    def observations(self, rows: Ints) -> LoggedObservations:
        """The observations at rows of this subset, -(e + 1) for the final one of its episode e, with frames."""
        inside = self._origin_rows[np.maximum(rows, 0)]
        final = -self._origin_episodes[np.maximum(-rows - 1, 0)] - 1
        return LoggedObservations(self._origin, np.where(rows < 0, final, inside))

    def refresh(self) -> int:
        """Nothing arrives."""
        return 0


@dataclass(frozen=True)
class LoggedData:
    """A replay split by whole episodes. ``rewarded`` says which reward the values are sums of.

    ``discount`` is gamma per environment step.
    """

    rewarded: RewardKind
    discount: float
    training: EpisodeSubset
    held_out: EpisodeSubset

    @property
    def episodes(self) -> int:
        """Episodes used, of both parts."""
        return self.training.episodes + self.held_out.episodes

    @property
    def rows(self) -> int:
        """Steps used, of both parts."""
        return self.training.rows + self.held_out.rows

    def initial_observations(self) -> LoggedObservations:
        """The first observation of every episode, training part first."""
        parts = [
            part.observations(part.table[:, EPISODE["first_row"]]) for part in (self.training, self.held_out)
        ]
        return replace(parts[0], rows=np.concatenate([part.rows for part in parts]))

    def returns(self) -> NDArray[np.float64]:
        """The discounted return that every episode earned, training part first."""
        parts = (self.training, self.held_out)
        return np.concatenate([discounted_returns(part, self.discount) for part in parts])


def split(
    reader: ReplayReader, held_out: float, discount: float, reward: RewardChoice, seed: int
) -> LoggedData:
    """Choose the reward and split the usable episodes, stream by stream, at random by whole episodes.

    Discarded and interrupted episodes are left out: what would have followed is not known. Raises
    UsageError when a part would be empty or ``held_out`` is not in (0, 1).
    """
    if not 0 < held_out < 1:
        raise UsageError(f"held-out is {held_out}; it is a share of the episodes, between 0 and 1")
    usable = _usable(reader)
    if len(usable) < 4:
        raise UsageError(
            f"replay {str(reader.path)!r} has {len(usable)} finished episodes; an estimate needs at least 4: "
            "collect more, or name another replay with --replay"
        )
    kind = _reward_kind(reader, usable) if reward == "auto" else reward
    column = reward_column(reader, kind)
    chosen = _held_out(reader, usable, held_out, seed)
    training = EpisodeSubset(reader, usable[~chosen], column)
    return LoggedData(kind, discount, training, EpisodeSubset(reader, usable[chosen], column))


def reward_column(reader: ReplayReader, kind: RewardKind) -> Floats:
    """The rewards (N,) that values are sums of."""
    return _success_reward(reader) if kind == "success" else reader.reward


def discounted_returns(reader: ReplayReader, discount: float) -> NDArray[np.float64]:
    """``sum_t gamma^t r_t`` of every episode (E,)."""
    first, length = _spans(reader.table)
    step = np.arange(reader.rows) - np.repeat(first, length)
    return np.add.reduceat(reader.reward.astype(np.float64) * discount**step, first)


def next_rows(reader: ReplayReader, rule: ChunkRule) -> Ints:
    """Where the observation after the chunk at every row lies (N,), -(e + 1) for the final one of episode e.

    Where a chunk cannot start, any.
    """
    return cut(reader, 0, rule).next


def _no_frames(stream: int, start: int, stop: int) -> Pixels:
    """What a reader without cameras reads."""
    return np.empty(0, np.uint8)


def _spans(table: Ints) -> tuple[Ints, Ints]:
    return table[:, EPISODE["first_row"]], table[:, EPISODE["length"]]


def _usable(reader: ReplayReader) -> Ints:
    if not reader.episodes:
        return np.empty(0, np.int64)
    left_out = np.isin(reader.table[:, EPISODE["outcome"]], (Outcome.DISCARDED, Outcome.INTERRUPTED))
    return np.flatnonzero(~left_out)


def _success_reward(reader: ReplayReader) -> Floats:
    """1 on the last step of every successful episode, else 0."""
    first, length = _spans(reader.table)
    reward = np.zeros(reader.rows, np.float32)
    reward[(first + length - 1)[reader.table[:, EPISODE["outcome"]] == Outcome.SUCCESS]] = 1.0
    return reward


def _reward_kind(reader: ReplayReader, usable: Ints) -> RewardKind:
    """``success`` where the raw reward holds nothing but the success of an episode's last step."""
    first, length = _spans(reader.table[usable])
    rows = np.concatenate([np.arange(a, a + n) for a, n in zip(first, length, strict=True)])
    elsewhere = (reader.reward != 0) & (_success_reward(reader) == 0)
    succeeded = bool((reader.table[usable, EPISODE["outcome"]] == Outcome.SUCCESS).any())
    return "success" if succeeded and not elsewhere[rows].any() else "raw"


def _held_out(reader: ReplayReader, usable: Ints, share: float, seed: int) -> NDArray[np.bool_]:
    """Which usable episodes are held out: the share of each stream, at least one episode in all."""
    random = np.random.default_rng(seed)
    chosen = np.zeros(len(usable), bool)
    streams = reader.stream_of_episode[usable]
    for stream in np.unique(streams):
        members = random.permutation(np.flatnonzero(streams == stream))
        chosen[members[: int(share * len(members))]] = True
    if not chosen.any():
        chosen[random.integers(len(usable))] = True
    return chosen
