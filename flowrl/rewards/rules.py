"""From scores or a person's word to the labels of an episode. Rewards are sparse: 1 on the step of success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flowrl.replay.rewards import LABEL, Labels
from flowrl.replay.schema import Ints, Outcome, OutcomeBy
from flowrl.rewards.metrics import Scores
from flowrl.rewards.validation import first_success


def by_outcome(recorded: Labels) -> Labels:
    """The recorded outcomes as a sparse reward: 1 on the last step of each success, which terminates it."""
    labels = recorded.episodes.copy()
    success = labels[:, LABEL["outcome"]] == Outcome.SUCCESS
    labels[success, LABEL["terminated"]] = 1
    return _with_reward(recorded, labels)


def by_classifier(recorded: Labels, scores: Sequence[Scores], threshold: float) -> Labels:
    """What a classifier says of episodes by the scores of their observations.

    The first observation after a step that reaches the threshold ends the episode there: reward 1, terminated,
    success. Otherwise there is no reward, and an end that was a recorded success is a cut. Episodes that were
    discarded stay so; an interrupted one or one cut by its time limit keeps that outcome without a success.
    """
    labels = recorded.episodes.copy()
    without = _without_success(recorded, OutcomeBy.CLASSIFIER)
    for episode, values in enumerate(scores):
        if labels[episode, LABEL["outcome"]] == Outcome.DISCARDED:
            continue
        length = first_success(values, threshold)
        labels[episode] = (
            without[episode]
            if length is None
            else (length, 1, int(Outcome.SUCCESS), int(OutcomeBy.CLASSIFIER))
        )
    return _with_reward(recorded, labels)


def by_human(recorded: Labels, rest: Labels, judged: Mapping[int, bool]) -> Labels:
    """``rest``, and for each judged episode (counted from 0) what a person said of it.

    A success has reward 1 on its last recorded step. A failure has none, and an end that was a recorded success
    is a cut.
    """
    labels, reward = rest.episodes.copy(), rest.reward.copy()
    failed = _without_success(recorded, OutcomeBy.HUMAN)
    length = recorded.column("length")
    start = np.cumsum(length) - length
    for episode, success in judged.items():
        steps = int(length[episode])
        labels[episode] = (
            (steps, 1, int(Outcome.SUCCESS), int(OutcomeBy.HUMAN))
            if success
            else (steps, failed[episode, LABEL["terminated"]], int(Outcome.FAILURE), int(OutcomeBy.HUMAN))
        )
        reward[start[episode] : start[episode] + steps] = 0.0
        if success:
            reward[start[episode] + steps - 1] = 1.0
    return Labels(reward, labels)


def _without_success(recorded: Labels, by: OutcomeBy) -> Ints:
    """The labels (E, 4) where none succeeds; an end that was a success is none without it, but a cut."""
    labels = recorded.episodes.copy()
    labels[recorded.column("outcome") == Outcome.SUCCESS, LABEL["terminated"]] = 0
    claimed = np.isin(labels[:, LABEL["outcome"]], (Outcome.SUCCESS, Outcome.UNKNOWN))
    labels[claimed, LABEL["outcome"]] = Outcome.FAILURE
    labels[claimed, LABEL["outcome_by"]] = by
    return labels


def _with_reward(recorded: Labels, labels: Ints) -> Labels:
    """Reward 1 on the last step that counts of each success, 0 elsewhere; discarded episodes keep theirs."""
    length, outcome = recorded.column("length"), labels[:, LABEL["outcome"]]
    start = np.cumsum(length) - length
    kept = np.repeat(outcome == Outcome.DISCARDED, length)
    reward = np.where(kept, recorded.reward, np.float32(0.0)).astype(np.float32)
    success = outcome == Outcome.SUCCESS
    reward[(start + labels[:, LABEL["length"]] - 1)[success]] = 1.0
    return Labels(reward, labels)
