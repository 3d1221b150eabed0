"""QF3 end to end on the one-step bandit: a random base learns to act from its own logged rewards."""

from __future__ import annotations

import torch

from flowrl.algorithms.qf3 import QF3, QF3Config
from flowrl.critics.targets import CriticConfig
from tests.algorithms.bandit import random_base, train


def test_bandit_reward_rises_well_above_the_random_base() -> None:
    generator = torch.Generator().manual_seed(0)
    config = QF3Config(
        critic=CriticConfig(heads=3, width=64, depth=2, learning_rate=1e-3, aggregation="mean"),
        learning_rate=1e-3,
        alpha=1.0,
        flow_weight=0.1,
        base_weight=0.03,
        q_aggregation="mean",
        collect_best_of=1,
        sde_scale=None,
    )
    after = train(QF3(config, random_base(generator), seed=0), generator)
    assert after > -0.15
