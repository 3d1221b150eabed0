"""OGPO end to end on the bandit of the specification, section 9.7."""

from __future__ import annotations

import torch

from flowrl.algorithms.ogpo import OGPO, OGPOConfig
from flowrl.critics.targets import CriticConfig
from tests.algorithms.bandit import random_base, train


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    """By single samples in collection too, so that the critic's choice has no part in the result.

    The published Polyak rate of 0.05 matters: advantages come from the target critic, and at 0.005 it would
    still be half random after this warm-up.
    """
    generator = torch.Generator().manual_seed(0)
    config = OGPOConfig(
        critic=CriticConfig(heads=3, width=64, depth=2, aggregation="mean", polyak=0.05, learning_rate=1e-3),
        learning_rate=2e-3,
        rate_warm_up=0,
        rate_decay=None,
        average_actor=0.1,
        advantage="consensus",
        group=8,
        states=32,
        ratio_clip=0.1,
        collect_best_of=1,
    )
    assert train(OGPO(config, random_base(generator), seed=0), generator, updates=200, warm_up=150) > -0.15
