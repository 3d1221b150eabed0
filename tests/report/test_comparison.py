from __future__ import annotations

import pytest

from flowrl.evaluation import Evaluation
from flowrl.report.comparison import Control, clearly_better, gain_sentence, mcnemar_exact, pair
from flowrl.rollout import Episode
from tests.report.builders import evaluation, rate


@pytest.mark.parametrize(
    ("fixed", "broken", "expected"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (9, 1, 2 * (1 + 10) / 2**10),
        (1, 9, 2 * (1 + 10) / 2**10),
        (24, 0, 2 / 2**24),
        (6, 0, 0.03125),
    ],
)
def test_mcnemar_equals_the_binomial_tail(fixed: int, broken: int, expected: float) -> None:
    assert mcnemar_exact(fixed, broken) == pytest.approx(expected, rel=1e-12)


def test_pairing_matches_starts_by_seed_and_leaves_out_the_uncommon() -> None:
    before = evaluation([True, False, False, True])
    after = Evaluation(
        before.rule, (*reversed(evaluation([False, True, False]).episodes), Episode(7, True, 1))
    )
    paired = pair(before, after)
    assert [p.seed for p in paired.pairs] == [200_000, 200_001, 200_002]
    assert (paired.fixed, paired.broken) == (1, 1)


def test_five_more_successes_of_fifty_are_not_clearly_better_but_six_without_a_loss_are() -> None:
    assert not clearly_better(rate(40), rate(45))
    assert clearly_better(rate(40), rate(46))
    assert not clearly_better(rate(46), rate(40))


def test_different_starts_are_compared_by_their_intervals() -> None:
    other = Evaluation("rule", tuple(Episode(i, i < 46, 30) for i in range(50)))
    assert not clearly_better(rate(40), other)
    assert clearly_better(rate(20), other)


def test_the_gain_sentence_credits_the_critic_when_every_control_stays_clearly_below() -> None:
    controls = [Control("best of 16", "", rate(26)), Control("cloning", "", rate(31))]
    text = gain_sentence(rate(23), rate(47), controls)
    assert "48 points" in text
    assert "“best of 16” 52% (+6 points; its interval does not overlap" in text
    assert "“cloning” 62% (+16 points" in text
    assert "the rest comes from learning with the critic" in text


def test_the_gain_sentence_names_a_control_that_the_episodes_cannot_tell_from_the_tuned_policy() -> None:
    controls = [Control("best of 16", "", rate(26)), Control("cloning", "", rate(45))]
    text = gain_sentence(rate(23), rate(47), controls)
    assert "cannot tell the tuned policy from “cloning”, so the gain may come from that alone" in text
    assert "critic." not in text


def test_the_gain_sentence_claims_nothing_when_there_is_no_clear_gain() -> None:
    text = gain_sentence(rate(23), rate(26), [Control("cloning", "", rate(24))])
    assert "no gain to explain" in text
    assert "46% before and 52% after" in text


def test_the_gain_sentence_without_controls_says_what_is_open() -> None:
    assert "No control was run" in gain_sentence(rate(23), rate(47), [])
