"""Policies and a Markov chain whose values are known in closed form."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowrl.policies.interface import ChunkPolicy, Context, FlowPolicy
from flowrl.policies.observation import Observation
from flowrl.replay.schema import Array, Kind, Outcome, OutcomeBy, Step
from flowrl.replay.writer import CommitRule, StreamWriter
from flowrl.spec import Spec
from tests.helpers import identity_spec

LEVELS = 3
DISCOUNT = 0.9


class GaussianPolicy(ChunkPolicy):
    """Actions ``N(mean + gain * s, std^2)`` in every dimension, with their density; s is a scalar."""

    kind = "gaussian"

    def __init__(self, spec: Spec, mean: float = 0.0, std: float = 0.1, gain: float = 0.0) -> None:
        super().__init__(spec)
        self.mean, self.std, self.gain = mean, std, gain

    def encode(self, observation: Observation) -> Context:
        return Context(self.normalised_state(observation.state))

    def sample(self, context: Context, noise: Tensor) -> Tensor:
        return self.mean + self.gain * context.features[:, :1] + self.std * noise

    def log_prob(self, context: Context, action: Tensor) -> Tensor:
        error = (action - self.mean - self.gain * context.features[:, :1]) / self.std
        return -(0.5 * error.square() + math.log(self.std * math.sqrt(2 * math.pi))).sum(dim=1)

    def config(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std, "gain": self.gain}


class LinearFlow(FlowPolicy):
    """``v(s, x, t) = M x + b + c s``: the K-step Euler map is linear, so samples are Gaussian."""

    kind = "linear_flow"

    def __init__(self, spec: Spec, matrix: Tensor, bias: Tensor, slope: float, flow_steps: int) -> None:
        super().__init__(spec, flow_steps)
        self.register_buffer("matrix", matrix)
        self.register_buffer("bias", bias)
        self.slope = slope

    def encode(self, observation: Observation) -> Context:
        return Context(self.normalised_state(observation.state))

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        drift = self.get_buffer("bias") + self.slope * context.features[:, :1]
        return x @ self.get_buffer("matrix").T + drift

    def config(self) -> dict[str, Any]:
        return {}

    def law(self, state: float) -> torch.distributions.MultivariateNormal:
        """The exact law of a sample at a scalar state, in double precision."""
        matrix = self.get_buffer("matrix").double()
        step = torch.eye(len(matrix), dtype=torch.double) + matrix / self.flow_steps
        drift = (self.get_buffer("bias").double() + self.slope * state) / self.flow_steps
        mean, factor = torch.zeros_like(drift), torch.eye(len(matrix), dtype=torch.double)
        for _ in range(self.flow_steps):
            mean, factor = step @ mean + drift, step @ factor
        return torch.distributions.MultivariateNormal(mean, factor @ factor.T)


def chain_value(mean_action: float) -> float:
    """V of level 0: each step climbs one of LEVELS levels with probability p = (1 + E[a]) / 2.

    The last climb earns 1 and ends the episode: with ``q = p / (1 - (1 - p) gamma)`` the value of the top
    level is q and each level below is worth gamma q of the one above.
    """
    p = (1 + mean_action) / 2
    q = p / (1 - (1 - p) * DISCOUNT)
    return q * (DISCOUNT * q) ** (LEVELS - 1)


def chain_spec(chunk: int = 2) -> Spec:
    return identity_spec(1, 1, chunk)


def write_chain(replay: Path, episodes: int, seed: int = 0, reward: float = 1.0) -> None:
    """Episodes of the chain under actions drawn uniformly from [-1, 1]."""
    random = np.random.default_rng(seed)
    rule = CommitRule(seconds=math.inf, rows=2**31, open_seconds=math.inf)
    spec = chain_spec().interface()
    with StreamWriter.create(replay, "worker-0", spec, Kind.POLICY, rule) as writer:
        for episode in range(episodes):
            writer.begin_episode(seed=episode, task="chain")
            level = 0
            while level < LEVELS:
                action = random.uniform(-1, 1, 1).astype(np.float32)
                before, level = level, level + int(random.random() < (1 + action[0]) / 2)
                done = level == LEVELS
                observation = np.array([before], np.float32)
                writer.append(Step(observation, action, reward * done, terminated=done, policy_version=0))
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.ENVIRONMENT, np.array([level], np.float32))


def write_episodes(
    replay: Path, states: Array, actions: Array, rewards: Array, stream: str = "policy"
) -> None:
    """Episodes of equal length given as arrays (n, T), (n, T), (n, T), scalar states and actions."""
    rule = CommitRule(seconds=math.inf, rows=2**31, open_seconds=math.inf)
    spec = chain_spec().interface()
    with StreamWriter.create(replay, stream, spec, Kind.POLICY, rule) as writer:
        for episode in range(len(states)):
            writer.begin_episode(seed=episode, task="arrays")
            for step in range(states.shape[1]):
                last = step == states.shape[1] - 1
                observation = states[episode, step : step + 1].astype(np.float32)
                action = actions[episode, step : step + 1].astype(np.float32)
                writer.append(
                    Step(
                        observation, action, float(rewards[episode, step]), terminated=last, policy_version=0
                    )
                )
            writer.close_episode(Outcome.UNKNOWN, OutcomeBy.NONE, np.zeros(1, np.float32))
