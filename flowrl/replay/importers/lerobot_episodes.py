"""What a LeRobotDataset says about the steps and the end of an episode, in the words of a replay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowrl.errors import DataError
from flowrl.replay.importers.lerobot_features import DONE, REWARD, SUCCESS, TRUNCATED
from flowrl.replay.schema import NO_INTERVENTION, Array, Floats, Outcome, OutcomeBy, Source


@dataclass(frozen=True)
class Ending:
    """How an episode ended."""

    outcome: Outcome
    outcome_by: OutcomeBy
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class Events:
    """An episode of L steps beside its observations and actions.

    ``reward`` (L,), ``source`` and ``intervention_id`` of length L. ``proposed`` (L,) says where a policy
    proposed something; None where the dataset does not say.
    """

    reward: Floats
    source: list[Source]
    intervention_id: list[int]
    proposed: NDArray[np.bool_] | None
    ending: Ending


def events_of(
    columns: Mapping[str, Array], events: Collection[str], restored: bool, source: Source
) -> Events:
    """Read an episode's columns.

    Without a reward it is 1 on the step that first succeeds and 0 elsewhere. ``source`` is who acted where
    the dataset does not say. Raises DataError for a value that a replay does not know.
    """
    length = len(columns["action"])
    flags = {name: columns[name].reshape(-1) > 0 for name in events if name != REWARD}
    success = flags.get(SUCCESS)
    if REWARD in events:
        reward = columns[REWARD].reshape(-1)
    else:
        reward = np.zeros(length, np.float32)
        if success is not None and success.any():
            reward[success.argmax()] = 1.0
    if not restored:
        ending = _judged(success, flags.get(DONE), flags.get(TRUNCATED))
        return Events(reward, [source] * length, [NO_INTERVENTION] * length, None, ending)
    try:
        return Events(
            reward,
            [Source(each) for each in columns["source"].reshape(-1).tolist()],
            columns["intervention_id"].reshape(-1).tolist(),
            columns["policy_proposed"].reshape(-1).astype(np.bool_),
            _restored(columns, flags),
        )
    except ValueError as error:
        raise DataError(f"{error}; the features of flowrl were changed. Export the replay again") from error


def _restored(columns: Mapping[str, Array], flags: Mapping[str, NDArray[np.bool_]]) -> Ending:
    truncated = TRUNCATED in flags and bool(flags[TRUNCATED][-1])
    return Ending(
        Outcome(int(columns["outcome"].reshape(-1)[-1])),
        OutcomeBy(int(columns["outcome_by"].reshape(-1)[-1])),
        DONE in flags and bool(flags[DONE][-1]) and not truncated,
        truncated,
    )


def _judged(
    success: NDArray[np.bool_] | None, done: NDArray[np.bool_] | None, truncated: NDArray[np.bool_] | None
) -> Ending:
    """A foreign dataset's ending.

    ``next.done`` alone does not tell a terminal state from a time limit (LeRobot's own evaluation marks
    both), so without ``next.truncated`` only a success is terminal; any other ending is a cut, after which
    a learner bootstraps.
    """
    succeeded = success is not None and bool(success.any())
    terminated = succeeded
    if done is not None and truncated is not None:
        terminated = succeeded or bool(done[-1] and not truncated[-1])
    outcome = Outcome.SUCCESS if succeeded else Outcome.FAILURE
    if success is None:
        return Ending(Outcome.UNKNOWN, OutcomeBy.NONE, terminated, not terminated)
    return Ending(outcome, OutcomeBy.ENVIRONMENT, terminated, not terminated)
