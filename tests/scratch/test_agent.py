"""The agent: delays, smoothing, decoupled decay, isolation of gradients, resume, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from flowrl.critics.targets import CriticConfig
from flowrl.errors import NonFiniteLoss
from flowrl.policies.observation import Observation
from flowrl.scratch.actors import FlowActor, make_actor
from flowrl.scratch.agent import Agent
from flowrl.scratch.collector import Collector, Exploration
from flowrl.scratch.config import (
    DeterministicActorConfig,
    ExplorationConfig,
    FlowActorConfig,
    ScratchConfig,
    UpdateConfig,
)
from flowrl.scratch.evaluation import Returns, evaluate
from flowrl.scratch.normaliser import initial_spec
from flowrl.scratch.replay import RingReplay
from flowrl.scratch.vector import VectorEnvironment
from tests.scratch.tasks import Bandit, PointMass, best_point_mass_return, interface

FLOW = FlowActorConfig(width=32, depth=2, flow_weight=0.01)
"""Rewards here are small: with a heavier weight the flow matches its own noise for longer than a test lasts."""
TD3 = DeterministicActorConfig(width=32, depth=2)
ACTORS = pytest.mark.parametrize("actor", [FLOW, TD3], ids=["qf3", "td3"])


def settings(actor: FlowActorConfig | DeterministicActorConfig, **update: object) -> ScratchConfig:
    return ScratchConfig(
        actor=actor,
        critic=CriticConfig(heads=2, width=32, depth=2, aggregation="min", polyak=0.05, learning_rate=3e-3),
        discount=0.9,
        update=UpdateConfig(**{"batch_size": 64, "actor_rate": 3e-3, **update}),  # type: ignore[arg-type]
        exploration=ExplorationConfig(low=0.05, high=0.4),
    )


class Set:
    """An agent with an environment, a ring and a collector."""

    def __init__(self, config: ScratchConfig, env: VectorEnvironment) -> None:
        spec = initial_spec(env.interface)
        self.agent = Agent(config, spec)
        self.replay = RingReplay(
            2000, env.count, spec.state_size, spec.action.size, batch_size=config.update.batch_size
        )
        exploration = Exploration(config.exploration, env.count, config.seed)
        self.collector = Collector(env, exploration, self.replay, config.seed)

    def collect(self, steps: int, uniform: bool = False) -> None:
        for _ in range(steps):
            self.collector.step(None if uniform else self.agent.act)
            self.agent.observe(self.collector.observation)

    def train(self, steps: int, updates: int) -> None:
        """Collect ``steps`` times, with ``updates`` updates after each."""
        for _ in range(steps):
            self.collect(1)
            for _ in range(updates):
                self.agent.update(self.replay)

    def measure(self, env: VectorEnvironment) -> Returns:
        return evaluate(env, self.agent.actor.deployed(), range(1000, 1000 + env.count))


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@ACTORS
def test_a_bandit_is_solved(actor: FlowActorConfig | DeterministicActorConfig) -> None:
    """Doing nothing earns -0.083, uniform actions -0.417; the best is 0."""
    learner = Set(settings(actor), Bandit(16))
    before = learner.measure(Bandit(64))
    learner.collect(30, uniform=True)
    learner.train(250, updates=1)
    assert before.mean == pytest.approx(-1 / 12, abs=0.04)
    assert learner.measure(Bandit(64)).mean > -0.02


@ACTORS
def test_a_point_mass_goes_to_the_middle(actor: FlowActorConfig | DeterministicActorConfig) -> None:
    """From x the best return is known; doing nothing earns -15 |x|, -7.5 on average."""
    learner = Set(settings(actor), PointMass(16))
    learner.collect(30, uniform=True)
    learner.train(400, updates=1)
    env = PointMass(64)
    starts = env.reset(range(1000, 1064))[:, 0]
    best = float(np.mean([best_point_mass_return(float(x)) for x in starts]))
    found = learner.measure(env)
    assert best == pytest.approx(-0.6, abs=0.2)
    assert found.mean > best - 1.0
    assert set(found.lengths) == {15}


def test_the_categorical_critic_learns_as_well() -> None:
    config = settings(FLOW)
    critic = replace(config.critic, head="c51", atoms=51, value_low=-2.0, value_high=0.5)
    learner = Set(replace(config, critic=critic), Bandit(16))
    learner.collect(30, uniform=True)
    learner.train(250, updates=1)
    assert learner.measure(Bandit(64)).mean > -0.02


@ACTORS
def test_the_actor_moves_at_every_second_update(actor: FlowActorConfig | DeterministicActorConfig) -> None:
    learner = Set(settings(actor, policy_delay=2), Bandit(4))
    learner.collect(10, uniform=True)
    moved = list[bool]()
    for _ in range(4):
        before, critic = flat(learner.agent.policy), flat(learner.agent.critic.online)
        info = learner.agent.update(learner.replay)
        moved.append(not torch.equal(flat(learner.agent.policy), before))
        assert not torch.equal(flat(learner.agent.critic.online), critic)
        assert moved[-1] == ("actor/loss" in info)
    assert moved == [False, True, False, True]


@ACTORS
def test_the_actors_loss_leaves_the_critic_alone(actor: FlowActorConfig | DeterministicActorConfig) -> None:
    learner = Set(settings(actor, policy_delay=1, actor_rate=1.0), Bandit(4))
    twin = Set(settings(actor, policy_delay=10_000), Bandit(4))
    for which in (learner, twin):
        which.collect(10, uniform=True)
        which.agent.update(which.replay)
    assert torch.equal(flat(learner.agent.critic.online), flat(twin.agent.critic.online))


@ACTORS
def test_training_resumes_bit_for_bit(actor: FlowActorConfig | DeterministicActorConfig) -> None:
    config = settings(actor, actor_polyak=0.1, weight_decay=0.01)
    whole, halted = (Set(config, Bandit(4)) for _ in range(2))
    resumed = Set(replace(config, seed=7), Bandit(4))
    for which in (whole, halted):
        which.collect(10, uniform=True)
        for _ in range(5):
            which.agent.update(which.replay)
    resumed.agent.load_state_dict(halted.agent.state_dict())
    resumed.replay.load_state_dict(halted.replay.state_dict())
    for which in (whole, resumed):
        metrics = [which.agent.update(which.replay) for _ in range(5)]
    assert metrics[-1]
    for name, module in whole.agent._modules().items():
        assert torch.equal(flat(module), flat(resumed.agent._modules()[name])), name
    states = torch.randn(4, 1)
    assert torch.equal(whole.agent.act(states), resumed.agent.act(states))
    assert resumed.agent.updates == 10


def test_smoothing_noise_is_clipped_and_stays_in_range() -> None:
    learner = Set(settings(TD3, target_noise=5.0, target_noise_clip=0.5), Bandit(16))
    learner.collect(10, uniform=True)
    view = learner.agent.critic.view(learner.replay.batch(), learner.agent.policy)
    action = learner.agent._target_action(view)
    assert set(action.abs().round(decimals=6).flatten().tolist()) >= {0.5}
    assert float(action.abs().max()) == pytest.approx(0.5)


def test_targets_use_the_average_actor_when_there_is_one() -> None:
    learner = Set(settings(TD3, actor_polyak=0.0, target_noise=0.0, policy_delay=1), Bandit(16))
    learner.collect(10, uniform=True)
    for _ in range(5):
        learner.agent.update(learner.replay)
    view = learner.agent.critic.view(learner.replay.batch(), learner.agent.policy)
    assert (learner.agent._target_action(view) == 0).all()
    assert (learner.agent.act(torch.randn(4, 1)) != 0).all()


def test_weight_decay_is_decoupled() -> None:
    """The first step of AdamW from a weight w is ``w (1 - rate decay) - rate sign(gradient)``."""
    plain, decayed = (Set(settings(TD3, policy_delay=1, weight_decay=w), Bandit(4)) for w in (0.0, 0.1))
    start = flat(plain.agent.policy)
    for which in (plain, decayed):
        which.collect(10, uniform=True)
        which.agent.update(which.replay)
    difference = flat(plain.agent.policy) - flat(decayed.agent.policy)
    torch.testing.assert_close(difference, start * 3e-3 * 0.1, rtol=1e-3, atol=1e-7)


def test_a_non_finite_reward_stops_before_a_step() -> None:
    learner = Set(settings(FLOW), Bandit(4))
    learner.collect(10, uniform=True)
    learner.replay._rows["reward"][:] = math.nan
    before = flat(learner.agent.critic.online)
    with pytest.raises(NonFiniteLoss, match=r"no step was taken"):
        learner.agent.update(learner.replay)
    assert torch.equal(flat(learner.agent.critic.online), before)


def test_an_untrained_flow_acts_by_its_noise_and_is_deployed_at_zero() -> None:
    actor = FlowActor(FLOW, initial_spec(interface(2, 3)))
    generator = torch.Generator().manual_seed(0)
    context = actor.policy.encode(_observation(5))
    noise = actor.noise(5, "collect", generator)
    assert torch.equal(actor.policy.sample(context, noise), noise)
    assert (actor.deployed().act(_observation(5), generator) == 0).all()
    assert actor.deployed().rule == "one ODE sample, zero noise, 5 Euler steps"


def test_noise_starts_where_it_is_configured_to() -> None:
    spec, generator = initial_spec(interface(2, 3)), torch.Generator().manual_seed(0)
    config = FlowActorConfig(collect_noise="zero", target_noise="random")
    actor = make_actor(config, spec, seed=0)
    assert (actor.noise(4, "collect", generator) == 0).all()
    assert (actor.noise(4, "target", generator) != 0).all()


def _observation(rows: int) -> Observation:
    return Observation(torch.randn(rows, 2))
