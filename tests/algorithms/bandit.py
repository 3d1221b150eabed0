"""The one-step bandit of the specification, section 9.7: every algorithm learns it from its own rewards.

Contexts c are uniform on [-1, 1]^2, the reward of an action a is -||a - 0.5 c||^2, the base is
N(0, 0.3^2 I) whatever the context. The base earns -0.347, or -0.289 by ten Euler steps, which narrow its
standard deviation to 0.2469; the best policy earns 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flowrl.algorithms.interface import Algorithm
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.replay.batch import ChunkBatch
from flowrl.training import adam, clipped_step
from tests.helpers import chunk_batch, identity_spec

ROWS = 128
BASE_REWARD = -2 * 0.2469**2 - 0.25 * 2 / 3


def reward(context: Tensor, action: Tensor) -> Tensor:
    return -(action - 0.5 * context).square().sum(dim=1)


class BanditReplay:
    """Contexts, actions and rewards seen so far.

    A batch is drawn uniformly from them; one of a named source, from the better half of the rewards.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.context, self.action = torch.empty(0, 2), torch.empty(0, 2)

    def collect(self, algorithm: Algorithm, rows: int) -> float:
        """Act in fresh contexts, remember, return the mean reward."""
        context = torch.rand(rows, 2, generator=self.generator) * 2 - 1
        action = algorithm.actor("collect").act(Observation(context), self.generator)[:, 0]
        self.context, self.action = torch.cat([self.context, context]), torch.cat([self.action, action])
        return float(reward(context, action).mean())

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        rows = torch.arange(len(self.context))
        if source is not None:
            rows = reward(self.context, self.action).argsort(descending=True)[: len(rows) // 2]
        pick = rows[torch.randint(len(rows), (ROWS,), generator=self.generator)]
        context, action = self.context[pick], self.action[pick]
        end = torch.zeros(ROWS, 1)
        return chunk_batch(context, action[:, None], reward(context, action)[:, None], mask=end)


def random_base(generator: torch.Generator) -> FlowMLP:
    """A network cloned from N(0, 0.3^2 I), whatever the context."""
    policy = FlowMLP(identity_spec(2, 2, 1), width=64, depth=2, flow_steps=10)
    optimiser = adam({"policy": policy}, {"policy": 2e-3})
    for _ in range(300):
        context = policy.encode(Observation(torch.rand(ROWS, 2, generator=generator) * 2 - 1))
        action, noise = (torch.randn(ROWS, 2, generator=generator) for _ in range(2))
        t = torch.rand(ROWS, 1, generator=generator)
        clipped_step(optimiser, policy.imitation_loss(context, 0.3 * action, noise, t), 1.0)
    return policy


def train(algorithm: Algorithm, generator: torch.Generator, updates: int = 300, warm_up: int = 150) -> float:
    """Collect, warm up, then update and collect in turn; returns the mean reward at the end."""
    replay = BanditReplay(generator)
    replay.collect(algorithm, 4000)
    for _ in range(warm_up):
        algorithm.warm_up(replay)
    for update in range(updates):
        algorithm.update(replay)
        if update % 50 == 49:
            replay.collect(algorithm, 200)
    return replay.collect(algorithm, 4000)
