"""Which policy collected an episode: what importance weights need and a replay does not store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import UsageError
from flowrl.learner.config import AsynchronousConfig
from flowrl.learner.run import Run
from flowrl.ope.candidates import BASE
from flowrl.policies.interface import ChunkPolicy
from flowrl.policies.io import load_policy
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import EPISODE, Ints, Outcome, Source

WORKER = "worker-"
"""How the streams that a run collects itself begin."""


@dataclass(frozen=True)
class Behaviour:
    """A policy and the numbers of the episodes (in a reader) that it alone chose. ``origin`` is in words."""

    policy: ChunkPolicy
    episodes: Ints
    origin: str


def attribute(reader: ReplayReader, run: Run, directory: Path | None) -> Behaviour:
    """The episodes whose behaviour policy is known.

    With a ``directory``: every finished episode that a policy acted throughout, under one version of its
    weights. Without: the warm-up of the run, collected by its base. Interleaved runs number it version 0 and
    go on collecting under 0 until the first update, by another acting rule perhaps, so there the warm-up's
    step count decides; asynchronous runs publish the base as their first version, used by nothing else.

    Raises UsageError saying why no episode qualifies.
    """
    alone = _policy_alone(reader)
    if directory is not None:
        episodes = np.flatnonzero(alone)
        origin = f"{len(episodes)} episodes taken as collected by {directory}"
        policy = load_policy(directory)
    else:
        if reader.path.resolve() != run.replay.resolve():
            raise UsageError(
                f"who collected {reader.path}? importance weights need the policy: name it with --behaviour"
            )
        episodes = np.flatnonzero(alone & _warm_up(reader, run))
        origin = f"{len(episodes)} episodes of the warm-up, collected by the base"
        policy = load_policy(run.base)
        directory = run.base
    if not len(episodes):
        raise UsageError(
            f"no episode of {reader.path} was collected by {BASE if directory == run.base else directory} "
            "alone under one version of its weights: importance weights have nothing to weigh"
        )
    if policy.chunk.executed != policy.chunk.length:
        raise UsageError(
            f"{directory} executes {policy.chunk.executed} of the {policy.chunk.length} actions of a chunk: the "
            "rest was not logged, so that the density of its chunks is not known"
        )
    return Behaviour(policy, episodes, origin)


def _policy_alone(reader: ReplayReader) -> NDArray[np.bool_]:
    """Finished episodes all of whose steps a policy chose, under one version of its weights."""
    table = reader.table
    if not len(table):
        return np.zeros(0, bool)
    acted = np.logical_and.reduceat(reader.column("source") == Source.POLICY, table[:, EPISODE["first_row"]])
    unfinished = np.isin(table[:, EPISODE["outcome"]], (Outcome.INTERRUPTED, Outcome.DISCARDED))
    return acted & ~unfinished & (table[:, EPISODE["version_min"]] == table[:, EPISODE["version_max"]])


def _warm_up(reader: ReplayReader, run: Run) -> NDArray[np.bool_]:
    """Episodes of the run's own streams that the warm-up collected."""
    names, config = list(reader.streams), run.config()
    own = np.array([name.startswith(WORKER) for name in names])[reader.stream_of_episode]
    version = reader.table[:, EPISODE["version_min"]]
    if isinstance(config.driver, AsynchronousConfig):
        return own & (version == 1)
    online = np.array([not kind.is_demonstration for kind in reader.streams.values()])
    lengths = np.where(online[reader.stream_of_episode], reader.table[:, EPISODE["length"]], 0)
    # The driver starts another episode while fewer rows than asked for are there, given streams included.
    given = int(lengths[~own].sum())
    before = given + np.cumsum(np.where(own, lengths, 0)) - lengths
    return own & (version == 0) & (before < config.warm_up.env_steps)
