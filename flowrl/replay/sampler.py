"""Cut batches of action chunks from a replay, mixing named sources by stated fractions.

A source is a set of start rows. Rows are drawn uniformly within a source; a batch takes from each source
its fraction of the batch, exactly where that is whole and on average otherwise. Deterministic for a seed.
"""

from __future__ import annotations

import difflib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from flowrl.errors import ConfigError, ReplayError
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from flowrl.replay.chunks import ChunkRule, Chunks, EndRule, cut
from flowrl.replay.growable import Growable
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Array, Floats, Ints, Outcome, Source

SOURCES = ("all", "demonstrations", "online", "policy", "interventions", "successes")
STREAM_PREFIX = "stream:"
GROWING = frozenset({"online", "policy", "interventions", "successes"})
"""Sources that are rightly empty early in a run: meanwhile the others of a mix take over their share."""


def _everything() -> Mapping[str, float]:
    return {"all": 1.0}


def _no_mixes() -> Mapping[str, Mapping[str, float]]:
    return {}


@dataclass(frozen=True)
class SamplerConfig:
    """What a batch is made of. Raises ConfigError when a value is out of range."""

    batch_size: int = 256
    chunk: int = 5
    """H, steps in a chunk."""
    past: int = 0
    """Earlier observations in a row, and actions before the chunk; see `flowrl.spec.Chunking`."""
    ahead: int = 0
    """Actions beyond the chunk."""
    discount: float = 0.99
    """Per step."""
    end_rule: EndRule = "strict"
    """``strict`` or ``padded``, see `flowrl.replay.chunks.ChunkRule`. The same for all methods compared."""
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    """The reward used is ``reward_scale * (raw + reward_shift)``."""
    drop_invalid: bool = True
    """Never start a chunk whose last step is not valid; with False it is drawn, and masked by ``valid``."""
    mix: Mapping[str, float] = field(default_factory=_everything)
    """Fraction of a batch from each named source; sums to 1."""
    named: Mapping[str, Mapping[str, float]] = field(default_factory=_no_mixes)
    """More mixes, drawn by name: ``batch("success_mix")``."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("chunk", 1), ("past", 0), ("ahead", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"sampler.{name} is {getattr(self, name)}, expected at least {least}")
        if not 0.0 < self.discount <= 1.0:
            raise ConfigError(f"sampler.discount is {self.discount}, expected a number in (0, 1]")
        if self.end_rule not in ("strict", "padded"):
            raise ConfigError(f"sampler.end_rule is {self.end_rule!r}, expected 'strict' or 'padded'")
        for where, mix in {"mix": self.mix, **{f"named.{k}": v for k, v in self.named.items()}}.items():
            _check_mix(f"sampler.{where}", mix)
        clash = [name for name in self.named if name in SOURCES or name.startswith(STREAM_PREFIX)]
        if clash:
            raise ConfigError(f"sampler.named: {clash} are built-in sources; choose other names")

    @property
    def rule(self) -> ChunkRule:
        """The part that says how chunks are cut."""
        return ChunkRule(
            self.chunk,
            self.discount,
            self.end_rule,
            self.reward_scale,
            self.reward_shift,
            self.past,
            self.ahead,
        )


@dataclass(frozen=True)
class _Plan:
    """A mix, ready to be drawn: the start rows of its sources one after another, and each one's part.

    ``edges`` are the cumulative rows that the sources give to a batch. Where all are whole, every batch
    has the same ``counts``, and ``slots`` holds where each of its rows is drawn from.
    """

    names: list[str]
    edges: Array
    starts: Ints
    low: Ints
    size: Ints
    counts: Ints | None = None
    slots: tuple[Ints, Ints] | None = None

    def spread(self, counts: Ints) -> tuple[Ints, Ints]:
        """For each row of a batch, where its source begins in ``starts`` and how many rows it has."""
        return np.repeat(self.low, counts), np.repeat(self.size, counts)


class ChunkSampler:
    """Batches of chunks from a `ReplayReader`; implements `flowrl.algorithms.interface.Batches`.

    New episodes are taken over from the reader at the next `batch`; call ``reader.refresh()`` when the
    replay may have grown.
    """

    def __init__(self, reader: ReplayReader, config: SamplerConfig, seed: int = 0) -> None:
        self.reader, self.config = reader, config
        self._random = np.random.default_rng(seed)
        self._episodes = 0
        self._drawn: dict[str, int] = {}
        self._plans: dict[str | None, _Plan] = {}
        # Per row: running rewards, mask, valid, success; and next row, place in the actions, source.
        self._returns = Growable((3 * config.chunk + 1,), np.float32)
        self._links = Growable((3,), np.int64)
        self._following = Growable((), np.int64)
        self._episode = Growable((), np.int64)
        self._action = Growable((reader.spec.action.size,), np.float32)
        self._starts: dict[str, Growable] = {name: Growable((), np.int64) for name in SOURCES}
        self._horizon = config.rule.horizon
        self._windows: Floats = np.empty((0, self._horizon * reader.spec.action.size), np.float32)
        self._update()

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        """A batch from the configured mix, or from a mix of ``named`` or a source by its name.

        With more than one of ``chunks`` it carries the chunks that follow in the same episodes; the chunks
        it starts with are the same ones.

        Sources: ``all``, ``demonstrations`` (streams of kind demonstration or import), ``online`` (the
        other streams), ``policy`` (rows the policy acted), ``interventions`` (rows a human acted in
        online streams), ``successes`` (rows of successful episodes), ``stream:<name>``. Raises
        ConfigError for an unknown name, ReplayError when what is asked for has no start rows.
        """
        if self.reader.episodes != self._episodes:
            self._update()
        rows = self._draw(source)
        return self._gather(rows) if chunks == 1 else self._sequences(rows, chunks)

    def size(self, source: str) -> int:
        """The number of start rows of a source."""
        self._update()
        return len(self._rows_of(source))

    def shares(self, source: str | None = None) -> dict[str, float]:
        """The fractions in force now, after the share of still empty sources went to the others."""
        self._update()
        return self._effective(self._mix(source))

    @contextmanager
    def apart(self, seed: int) -> Generator[Self]:
        """Batches drawn inside leave the sequence of training batches and its counts as they are."""
        kept = self.state_dict()
        self._random = np.random.default_rng(seed)
        try:
            yield self
        finally:
            self.load_state_dict(kept)

    @property
    def drawn(self) -> dict[str, int]:
        """How many rows each source has given so far."""
        return dict(self._drawn)

    def state_dict(self) -> dict[str, Any]:
        """The random state and the counts, as JSON values; the reader has its own state."""
        return {"random": self._random.bit_generator.state, "drawn": dict(self._drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the sequence of batches from a `state_dict`, given a reader in the same state."""
        self._random.bit_generator.state = state["random"]
        self._drawn = dict(state["drawn"])

    def _mix(self, source: str | None) -> Mapping[str, float]:
        if source is None:
            return self.config.mix
        return self.config.named.get(source) or {source: 1.0}

    def _rows_of(self, source: str) -> Ints:
        if source in self._starts:
            return self._starts[source].view
        if source.removeprefix(STREAM_PREFIX) in self.reader.streams and source.startswith(STREAM_PREFIX):
            return np.empty(0, np.int64)
        known = [*SOURCES, *self.config.named, *(STREAM_PREFIX + name for name in self.reader.streams)]
        near = difflib.get_close_matches(source, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"sampler: there is no source {source!r}; there are {', '.join(known)}{hint}")

    def _effective(self, mix: Mapping[str, float]) -> dict[str, float]:
        present = {name: share for name, share in mix.items() if share > 0 and len(self._rows_of(name))}
        for name in mix:
            if name not in present and mix[name] > 0 and (name not in GROWING or len(mix) == 1):
                raise ReplayError(self._empty(name))
        if not present:
            raise ReplayError(self._empty(", ".join(mix)))
        total = sum(present.values())
        return {name: share / total for name, share in present.items()}

    def _empty(self, name: str) -> str:
        return (
            f"source {name!r} of replay {str(self.reader.path)!r} has no start rows: {self.reader.episodes} "
            f"episodes, {self.reader.rows} rows were read, chunk {self.config.chunk}, end rule "
            f"{self.config.end_rule!r}; collect or import such episodes first, or take it out of the mix"
        )

    def _draw(self, source: str | None) -> Ints:
        """Start rows of one batch, grouped by source."""
        plan = self._plan(source)
        counts = plan.counts
        if counts is None:
            # One random offset rounds all fractions together: the total is exact, each share right on
            # average.
            edges = np.floor(plan.edges + self._random.random())
            edges[-1] = self.config.batch_size
            counts = np.diff(edges, prepend=0.0).astype(np.int64)
        for name, count in zip(plan.names, counts.tolist(), strict=True):
            self._drawn[name] = self._drawn.get(name, 0) + count
        low, size = plan.slots if plan.slots is not None else plan.spread(counts)
        uniform = self._random.random(self.config.batch_size)
        return plan.starts.take((uniform * size).astype(np.int64) + low)

    def _plan(self, source: str | None) -> _Plan:
        """How a mix is drawn until new episodes arrive."""
        if source not in self._plans:
            shares = self._effective(self._mix(source))
            rows = [self._rows_of(name) for name in shares]
            edges = np.round(np.cumsum(list(shares.values())) * self.config.batch_size, 9)
            sizes = np.array([len(starts) for starts in rows], np.int64)
            plan = _Plan(list(shares), edges, np.concatenate(rows), np.cumsum(sizes) - sizes, sizes)
            if (edges == np.round(edges)).all():
                counts = np.diff(edges, prepend=0.0).astype(np.int64)
                plan = replace(plan, counts=counts, slots=plan.spread(counts))
            self._plans[source] = plan
        return self._plans[source]

    def _gather(self, rows: Ints) -> ChunkBatch:
        chunk = self.config.chunk
        links = self._links.view.take(rows, axis=0)
        after = links[:, 0]
        episode = self._episode.view.take(rows)
        # Both ends of a chunk lie in one episode, so they share its instruction.
        tasks = tuple(map(self.reader.tasks.__getitem__, episode.tolist()))
        returns = torch.from_numpy(self._returns.view.take(rows, axis=0))
        rewards, mask, valid, success = returns.split_with_sizes([chunk, chunk, chunk, 1], 1)
        return ChunkBatch(
            observation=self._observed(rows, episode, tasks),
            action=torch.from_numpy(self._windows[links[:, 1]].reshape(len(rows), self._horizon, -1)),
            rewards=rewards,
            mask=mask,
            valid=valid,
            next_observation=self._observed(after, episode, tasks),
            row=torch.from_numpy(rows),
            success=success.squeeze(1),
            source=torch.from_numpy(links[:, 2]),
        )

    def _observed(self, rows: Ints, episode: Ints, tasks: tuple[str, ...]) -> Observation:
        """Observations at rows, -(e + 1) for the final one of episode e, with those before them."""
        now = self._observation(rows, tasks)
        if not self.config.past:
            return now
        table = self.reader.table
        first, length = (table[:, EPISODE[name]].take(episode) for name in ("first_row", "length"))
        present = np.where(rows < 0, first + length, rows)
        earlier = [np.maximum(present - back, first) for back in range(self.config.past, 0, -1)]
        return replace(now, past=tuple(self._observation(before, ()) for before in earlier))

    def _observation(self, rows: Ints, tasks: tuple[str, ...]) -> Observation:
        # Negative numbers count final observations; clipping lets one gather serve all other rows.
        state = self.reader.state.take(rows, axis=0, mode="clip")
        ends = (rows < 0).nonzero()[0]
        if len(ends):
            state[ends] = self.reader.final.take(-rows[ends] - 1, axis=0)
        frames = self.reader.frames
        images = {camera.name: frames.pixels(camera.name, rows) for camera in frames.features}
        return Observation(torch.from_numpy(state), images, tasks)

    def _sequences(self, rows: Ints, chunks: int) -> ChunkBatch:
        """The chunks at ``rows`` with the ``chunks - 1`` that follow each; see `ChunkBatch.present`."""
        following = self._following.view
        starts, present = [rows], [rows >= 0]
        for _ in range(chunks - 1):
            after = following.take(starts[-1])
            present.append(present[-1] & (after >= 0))
            starts.append(np.where(after >= 0, after, starts[-1]))
        later = self._gather(np.concatenate(starts[1:]))
        exists = torch.from_numpy(np.stack(present).astype(np.float32))
        return replace(self._gather(rows), later=later, present=exists)

    def _update(self) -> None:
        """Take over the episodes the reader got since the last call."""
        if self.reader.episodes == self._episodes:
            return
        first = int(self.reader.table[self._episodes, EPISODE["first_row"]])
        chunks = cut(self.reader, self._episodes, self.config.rule)
        source = self.reader.column("source")[first:]
        self._returns.append(
            np.concatenate([chunks.rewards, chunks.mask, chunks.valid, chunks.success[:, None]], axis=1)
        )
        self._links.append(np.stack([chunks.next, chunks.position + len(self._action), source], axis=1))
        self._following.append(chunks.following)
        lengths = self.reader.table[self._episodes :, EPISODE["length"]]
        self._episode.append(np.repeat(np.arange(self._episodes, self.reader.episodes), lengths))
        self._action.append(chunks.action)
        self._add_starts(chunks, first)
        self._windows = _windows(self._action.view, self._horizon)
        self._episodes = self.reader.episodes
        self._plans.clear()

    def _add_starts(self, chunks: Chunks, first: int) -> None:
        table = self.reader.table[self._episodes :]
        lengths = table[:, EPISODE["length"]]
        stream = np.repeat(self.reader.stream_of_episode[self._episodes :], lengths)
        kinds = self.reader.streams
        teaches = np.array([kind.is_demonstration for kind in kinds.values()])[stream]
        source = self.reader.column("source")[first:]
        usable = (
            chunks.startable & (chunks.valid[:, -1] > 0) if self.config.drop_invalid else chunks.startable
        )
        belongs = {
            "all": usable,
            "demonstrations": usable & teaches,
            "online": usable & ~teaches,
            "policy": usable & (source == Source.POLICY),
            "interventions": usable & ~teaches & (source == Source.HUMAN),
            "successes": usable & np.repeat(table[:, EPISODE["outcome"]] == Outcome.SUCCESS, lengths),
        }
        for index, name in enumerate(kinds):
            belongs[STREAM_PREFIX + name] = usable & (stream == index)
        for name, chosen in belongs.items():
            starts = self._starts.setdefault(name, Growable((), np.int64))
            starts.append(first + np.flatnonzero(chosen))


def _windows(action: Floats, steps: int) -> Floats:
    """Every run of so many actions as one row (P, steps * A), overlapping in memory; read only."""
    count, size = action.shape
    return as_strided(action, (count - steps + 1, steps * size), action.strides, writeable=False)


def _check_mix(where: str, mix: Mapping[str, float]) -> None:
    total = sum(mix.values())
    if not mix or min(mix.values()) < 0 or abs(total - 1.0) > 1e-6:
        raise ConfigError(
            f"{where} is {dict(mix)}: fractions must not be negative and sum to 1, not {total:g}"
        )
    for name in mix:
        if name not in SOURCES and not name.startswith(STREAM_PREFIX):
            near = difflib.get_close_matches(name, SOURCES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{where}: there is no source {name!r}; there are {', '.join(SOURCES)} and "
                f"{STREAM_PREFIX}<name>{hint}"
            )
