"""ALOE end to end on the bandit of the specification, section 9.7."""

from __future__ import annotations

import torch

from flowrl.algorithms.aloe import ALOE, ALOEConfig
from flowrl.critics.targets import CriticConfig
from tests.algorithms.bandit import random_base, train


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    """Cloned again and again from what it collected itself: each round tilts the last one's behaviour."""
    generator = torch.Generator().manual_seed(0)
    config = ALOEConfig(
        critic=CriticConfig(heads=3, width=64, depth=2, aggregation="min", learning_rate=1e-3),
        learning_rate=1e-3,
        temperature=0.05,
    )
    assert train(ALOE(config, random_base(generator), seed=0), generator, updates=200, warm_up=150) > -0.15
