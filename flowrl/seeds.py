"""Disjoint seed ranges, so that an evaluation start is never used for anything else.

| range | use |
|---|---|
| 100,000 .. 199,999 | periodic evaluation while training |
| 200,000 .. 299,999 | the reported evaluation, before and after |
| 1,000,000 .. 1,000,999,999 | collection: 10,000,000 per run seed, 100,000 per worker |
| 2^30 .. 2^31 - 1 | scripted demonstrations (`sim.experts`) |
"""

from __future__ import annotations

from flowrl.errors import UsageError

PERIODIC = 100_000
REPORTED = 200_000
EVALUATION_RANGE = 100_000
_COLLECTION = 1_000_000
_PER_RUN = 10_000_000
_PER_WORKER = 100_000
_RUNS = 100


def reported(episodes: int, offset: int = 0) -> list[int]:
    """Start seeds of the reported evaluation; ``offset`` picks another set, disjoint from all training."""
    return _range(REPORTED, episodes, offset)


def periodic(episodes: int) -> list[int]:
    """Start seeds of evaluations made while training."""
    return _range(PERIODIC, episodes, 0)


def collection(run_seed: int, worker: int, episode: int) -> int:
    """The start seed of one collected episode, below 2^30."""
    inside = (worker * _PER_WORKER + episode) % _PER_RUN
    return _COLLECTION + (run_seed % _RUNS) * _PER_RUN + inside


def policy_noise(start_seed: int) -> int:
    """The seed of the policy's own noise in an evaluated episode, fixed by its start."""
    return start_seed * 2 + 1


def _range(start: int, episodes: int, offset: int) -> list[int]:
    if offset + episodes > EVALUATION_RANGE:
        raise UsageError(f"at most {EVALUATION_RANGE} evaluation starts, asked for {offset + episodes}")
    return list(range(start + offset, start + offset + episodes))
