"""QAM and TRQAM end to end on a one-step bandit: a random base learns from its own logged rewards."""

from __future__ import annotations

import pytest
import torch

from flowrl.algorithms.qam import QAM, TRQAM, QAMConfig, TRQAMConfig
from flowrl.critics.targets import CriticConfig
from tests.algorithms.bandit import random_base, train

CRITIC = CriticConfig(heads=3, width=64, depth=2, learning_rate=1e-3)


@pytest.mark.parametrize("kind", ["qam", "trqam"])
def test_bandit_reward_rises_well_above_the_random_base(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    base = random_base(generator)
    learner = (
        QAM(QAMConfig(critic=CRITIC, learning_rate=1e-3, inverse_temperature=10.0), base)
        if kind == "qam"
        else TRQAM(TRQAMConfig(critic=CRITIC, learning_rate=1e-3, kl_budget=2.0, dual_initial=0.1), base)
    )
    assert train(learner, generator, updates=200) > -0.15
