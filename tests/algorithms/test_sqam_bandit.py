"""SQAM end to end on a one-step bandit: a random base learns to act from its own logged rewards."""

from __future__ import annotations

import pytest
import torch

from flowrl.algorithms.sqam import SQAM, SQAMConfig
from flowrl.critics.targets import CriticConfig
from tests.algorithms.bandit import BASE_REWARD, BanditReplay, random_base, train


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    generator = torch.Generator().manual_seed(0)
    config = SQAMConfig(
        critic=CriticConfig(heads=3, width=64, depth=2, learning_rate=1e-3),
        learning_rate=1e-3,
        value_penalty=0.0,
        kl_budget=2.0,
        dual_initial=0.2,
    )
    sqam = SQAM(config, random_base(generator), seed=0)
    assert BanditReplay(generator).collect(sqam, 4000) == pytest.approx(BASE_REWARD, abs=0.03)
    assert train(sqam, generator) > -0.15
