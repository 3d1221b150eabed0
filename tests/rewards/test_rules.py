"""Scores and words become labels: every case of a small table, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.replay.rewards import Labels
from flowrl.replay.schema import Outcome, OutcomeBy
from flowrl.rewards.rules import by_classifier, by_human, by_outcome
from flowrl.rewards.validation import first_success

O, B = Outcome, OutcomeBy  # noqa: E741

# Episodes of 3 recorded steps: terminated, outcome, by; and their (shaped) rewards.
RECORDED = Labels(
    np.array([0.1, 0.2, 1] + [0.1, 0.2, 0.3] * 4, np.float32),
    np.array(
        [
            [3, 1, O.SUCCESS, B.ENVIRONMENT],
            [3, 0, O.TIMEOUT, B.ENVIRONMENT],
            [3, 1, O.FAILURE, B.ENVIRONMENT],
            [3, 0, O.UNKNOWN, B.NONE],
            [3, 1, O.DISCARDED, B.HUMAN],
        ],
        np.int64,
    ),
)


@pytest.mark.parametrize(
    ("scores", "steps"),
    [([0.1, 0.2, 0.3], None), ([0.1, 0.5, 0.9], 1), ([0.9, 0.1, 0.5], 2), ([0.9, 0.1], None), ([0.9], None)],
)
def test_success_comes_after_a_step(scores: list[float], steps: int | None) -> None:
    assert first_success(np.array(scores), 0.5) == steps


def test_recorded_outcomes_become_a_sparse_reward() -> None:
    labels = by_outcome(RECORDED)
    assert labels.reward.tolist() == pytest.approx([0, 0, 1] + [0] * 9 + [0.1, 0.2, 0.3])
    assert np.array_equal(labels.episodes, RECORDED.episodes)


def test_a_success_without_an_end_flag_terminates() -> None:
    pressed = Labels(np.zeros(2, np.float32), np.array([[2, 0, O.SUCCESS, B.HUMAN]], np.int64))
    assert by_outcome(pressed).episodes.tolist() == [[2, 1, O.SUCCESS, B.HUMAN]]


def test_a_classifier_that_sees_success_everywhere() -> None:
    early = np.array([0.0, 0.0, 1.0, 1.0])
    labels = by_classifier(RECORDED, [early] * 5, 0.5)
    assert labels.reward.tolist() == pytest.approx([0, 1, 0] * 4 + [0.1, 0.2, 0.3])
    assert labels.episodes.tolist() == [[2, 1, O.SUCCESS, B.CLASSIFIER]] * 4 + [[3, 1, O.DISCARDED, B.HUMAN]]


def test_a_classifier_that_sees_no_success() -> None:
    labels = by_classifier(RECORDED, [np.zeros(4)] * 5, 0.5)
    assert labels.reward.tolist() == pytest.approx([0] * 12 + [0.1, 0.2, 0.3])
    assert labels.episodes.tolist() == [
        # It was terminal as a success only, so the value after it is bootstrapped.
        [3, 0, O.FAILURE, B.CLASSIFIER],
        [3, 0, O.TIMEOUT, B.ENVIRONMENT],
        [3, 1, O.FAILURE, B.ENVIRONMENT],
        [3, 0, O.FAILURE, B.CLASSIFIER],
        [3, 1, O.DISCARDED, B.HUMAN],
    ]


def test_a_person_changes_what_was_judged_and_nothing_else() -> None:
    rest = by_outcome(RECORDED)
    labels = by_human(RECORDED, rest, {0: False, 2: False, 3: True})
    assert labels.reward.tolist() == pytest.approx([0] * 11 + [1] + [0.1, 0.2, 0.3])
    assert labels.episodes.tolist() == [
        [3, 0, O.FAILURE, B.HUMAN],
        [3, 0, O.TIMEOUT, B.ENVIRONMENT],
        # It ended by itself, not as a success: that is still so.
        [3, 1, O.FAILURE, B.HUMAN],
        [3, 1, O.SUCCESS, B.HUMAN],
        [3, 1, O.DISCARDED, B.HUMAN],
    ]
    assert rest.reward[2] == 1


def test_a_person_overrules_a_classifier_about_where_an_episode_ends() -> None:
    rest = by_classifier(RECORDED, [np.array([0.0, 1.0, 0.0, 0.0])] * 5, 0.5)
    labels = by_human(RECORDED, rest, {0: True, 1: False})
    assert labels.reward[:9].tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert labels.episodes[:3].tolist() == [
        [3, 1, O.SUCCESS, B.HUMAN],
        [3, 0, O.FAILURE, B.HUMAN],
        [1, 1, O.SUCCESS, B.CLASSIFIER],
    ]
