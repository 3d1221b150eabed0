"""The losses of OGPO: ratios and gradient at rest, clipping by hand, isolation, invariances, a known critic."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from flowrl.algorithms.likelihood import chain_log_density, rescore
from flowrl.algorithms.ogpo import OGPO, Chains, OGPOConfig, clipped_ratio_loss
from flowrl.critics.targets import CriticConfig
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import StochasticPath
from flowrl.training import polyak_
from tests.algorithms.analytic import FixedBatches, KnownCritic, LinearFlow, random_batch
from tests.helpers import chunk_batch, identity_spec

STATE, ACTION, CHUNK, ROWS, STEPS, GROUP = 3, 2, 2, 12, 4, 6
SIZE = ACTION * CHUNK
TERMS = (STEPS + 1) * SIZE


def base(kind: str = "flow_mlp") -> FlowPolicy:
    torch.manual_seed(1)
    spec = identity_spec(STATE, ACTION, CHUNK)
    cls = {"flow_mlp": FlowMLP, "diffusion_mlp": DiffusionMLP}[kind]
    return cls(spec, width=16, depth=2, flow_steps=STEPS)


def learner(kind: str = "flow_mlp", heads: int = 3, **options: object) -> OGPO:
    critic = CriticConfig(heads=heads, width=16, depth=2, aggregation="mean")
    settings = {"group": GROUP, "critic": critic, **options}
    return OGPO(OGPOConfig(**settings), base(kind))  # type: ignore[arg-type]


def observation() -> Observation:
    return Observation(torch.randn(ROWS, STATE, generator=torch.Generator().manual_seed(2)))


def disturb(module: nn.Module, scale: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def untouched(module: nn.Module) -> bool:
    return all(p.grad is None or not p.grad.any() for p in module.parameters())


def gradients(policy: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))])


def reordered(chains: Chains, order: Tensor) -> Chains:
    """Every state's group in another order."""
    rows = (torch.arange(ROWS)[:, None] * GROUP + order).flatten()
    path = StochasticPath(chains.path.states[:, rows], chains.path.means[:, rows], chains.path.stds)
    return Chains(chains.observation, path, chains.log_density[rows])


@pytest.mark.parametrize("kind", ["flow_mlp", "diffusion_mlp"])
def test_at_rest_all_ratios_are_one_and_the_gradient_is_the_policy_gradient(kind: str) -> None:
    """-mean A grad log p / ((K + 1) D): nothing is clipped, and every chain counts once."""
    ogpo = learner(kind)
    chains = ogpo.sample_chains(observation())
    loss, info = ogpo.actor_loss(chains)
    assert info["actor/ratio_min"] == pytest.approx(1, abs=1e-6)
    assert info["actor/ratio_max"] == pytest.approx(1, abs=1e-6)
    assert info["actor/clip_fraction"] == 0
    found = gradients(ogpo.policy, loss)

    context = ogpo.policy.encode(chains.observation).interleave(GROUP)
    values = ogpo.critic.target(context.features, chains.path.end.clamp(-1, 1)).detach()
    values = values.view(3, ROWS, GROUP).mean(dim=0)
    advantage = (values - values.mean(dim=1, keepdim=True)).flatten()
    density = chain_log_density(rescore(ogpo.policy.velocity, context, chains.path.states, 0.05))
    expected = gradients(ogpo.policy, -(advantage * density).mean() / TERMS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


def test_the_clipped_loss_by_hand() -> None:
    """Ratios 1.5, 0.5, 1.05 with eps 0.1: gain and loss beyond the clip, and one pair inside it."""
    log_ratio = torch.tensor([[1.5, 0.5, 1.05], [1.5, 0.5, 1.05]]).log()
    advantage = torch.tensor([[2.0, 2.0, 2.0], [-2.0, -2.0, 0.0]])
    terms = [2 * 1.1, 2 * 0.5, 2 * 1.05, -2 * 1.5, -2 * 0.9, 0]
    loss, info = clipped_ratio_loss(log_ratio, advantage, 0.1)
    assert float(loss) == pytest.approx(-sum(terms) / 6)
    assert info["actor/clip_fraction"] == pytest.approx(4 / 6)
    assert (info["actor/ratio_min"], info["actor/ratio_max"]) == pytest.approx((0.5, 1.5))
    assert info["actor/advantage_nonzero"] == pytest.approx(5 / 6)
    log_ratio.requires_grad_(True)
    clipped_ratio_loss(log_ratio, advantage, 0.1)[0].backward()
    assert log_ratio.grad is not None
    assert (log_ratio.grad != 0).tolist() == [[False, True, True], [True, False, False]]


def test_the_ratio_is_of_the_whole_chain_and_normalised() -> None:
    ogpo = learner()
    chains = ogpo.sample_chains(observation())
    disturb(ogpo.policy)
    _, info = ogpo.actor_loss(chains)
    context = ogpo.policy.encode(chains.observation).interleave(GROUP)
    scored = rescore(ogpo.policy.velocity, context, chains.path.states, 0.05)
    log_ratio = (chain_log_density(scored) - chains.log_density).detach() / TERMS
    assert info["actor/log_ratio"] == pytest.approx(float(log_ratio.mean()), rel=1e-4)
    assert info["actor/ratio_min"] == pytest.approx(float(log_ratio.exp().min()), rel=1e-4)
    assert info["actor/clip_fraction"] > 0


@pytest.mark.parametrize("kind", ["flow_mlp", "diffusion_mlp"])
def test_the_actor_loss_reaches_the_policy_alone(kind: str) -> None:
    ogpo = learner(kind, success_weight=1.0)
    chains = ogpo.sample_chains(observation())
    disturb(ogpo.policy)
    loss, _ = ogpo.actor_loss(chains)
    batches = FixedBatches.random(ROWS, STATE, ACTION, CHUNK)
    cloning, _ = ogpo.success_loss(batches, batches.batch())
    for part in (loss, cloning):
        ogpo.policy.zero_grad()
        part.backward()
        assert all(p.grad is not None and p.grad.any() for p in ogpo.policy.parameters())
        assert ogpo.average is not None
        assert all(untouched(m) for m in (ogpo.average, ogpo.base, ogpo.critic.online, ogpo.critic.target))


@pytest.mark.parametrize("advantage", ["group", "consensus", "penultimate"])
def test_a_value_of_the_state_and_the_order_of_the_group_leave_the_loss(advantage: str) -> None:
    ogpo = learner(advantage=advantage)
    chains = ogpo.sample_chains(observation())
    disturb(ogpo.policy)
    target = ogpo.critic.target
    expected = ogpo.actor_loss(chains)[0]
    order = torch.randperm(GROUP, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ogpo.actor_loss(reordered(chains, order))[0], expected)
    ogpo.critic.target = KnownCritic(  # type: ignore[assignment]
        lambda s, a: target(s, a) + 3 * s.sum(dim=1), heads=3
    )
    torch.testing.assert_close(ogpo.actor_loss(chains)[0], expected, rtol=1e-4, atol=1e-6)


def test_one_head_makes_consensus_the_group_advantage() -> None:
    losses = []
    for advantage in ("consensus", "group"):
        ogpo = learner(heads=1, advantage=advantage)
        chains = ogpo.sample_chains(observation())
        disturb(ogpo.policy)
        losses.append(ogpo.actor_loss(chains)[0])
    assert torch.equal(*losses)


def test_the_ends_are_valued_as_they_would_be_executed() -> None:
    seen: list[Tensor] = []

    def value(features: Tensor, action: Tensor) -> Tensor:
        seen.append(action)
        return action.sum(dim=1)

    ogpo = learner()
    ogpo.critic.target = KnownCritic(value)  # type: ignore[assignment]
    chains = ogpo.sample_chains(observation())
    wild = StochasticPath(5 * chains.path.states, chains.path.means, chains.path.stds)
    ogpo.actor_loss(replace(chains, path=wild))
    assert float(seen[0].abs().max()) == 1


def test_chains_start_from_random_rows_of_the_batch() -> None:
    """Batches are grouped by source: the first rows alone would be demonstrations only."""
    ogpo = learner(states=4)
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    seen = set[int]()
    for _ in range(30):
        states = ogpo.start_states(batch).state
        rows = (states[:, None] == batch.observation.state).all(dim=2).int().argmax(dim=1)
        assert len(set(rows.tolist())) == 4
        seen |= set(rows.tolist())
    assert seen == set(range(ROWS))
    assert ogpo.sample_chains(ogpo.start_states(batch)).path.end.shape == (4 * GROUP, SIZE)
    assert len(learner(states=99).start_states(batch)) == ROWS


def test_chains_of_one_state_lie_together() -> None:
    ogpo = learner(noise_scale=1e-6)
    with torch.no_grad():
        for policy in (ogpo.policy, ogpo.average):
            assert isinstance(policy, FlowMLP)
            policy.network[-1].weight.mul_(20)  # type: ignore[union-attr,operator]
    chains = ogpo.sample_chains(observation())
    context = ogpo.acting.encode(chains.observation).interleave(GROUP)
    x = chains.path.states[0]
    for i in range(STEPS):
        t = torch.full((len(x), 1), i / STEPS)
        x = (x + ogpo.acting.velocity(context, x, t) / STEPS).clamp(-1, 1)
    torch.testing.assert_close(chains.path.end, x, rtol=0, atol=1e-4)


def climb(updates: int, every: int, **options: object) -> list[float]:
    """Means of the policy's ODE samples while it follows Q(a) = -(a - 0.3)^2, known exactly."""
    settings = {"learning_rate": 0.01, "rate_warm_up": 0, "ratio_clip": 0.1, "group": 16, **options}
    config = OGPOConfig(critic=CriticConfig(heads=1, width=2, depth=1), **settings)  # type: ignore[arg-type]
    ogpo = OGPO(config, LinearFlow(1, flow_steps=5, std=0.3))
    ogpo.critic.target = KnownCritic(lambda s, a: -(a - 0.3).square().sum(dim=1))  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(0)
    state = Observation(torch.ones(64, 1))
    flow = ogpo.policy
    assert isinstance(flow, LinearFlow)
    means = [flow.moments()[1]]
    for update in range(updates):
        loss, _ = ogpo.actor_loss(ogpo.sample_chains(state))
        if ogpo.config.success_weight:
            data = 0.3 * torch.randn(64, 1, generator=generator)
            cloned = chunk_batch(state.state, data[:, None], torch.zeros(64, 1))
            term, _ = ogpo.success_loss(FixedBatches(lambda count, source: cloned), cloned)  # noqa: B023
            loss = loss + ogpo.config.success_weight * term
        ogpo.step(loss)
        assert ogpo.average is not None
        polyak_(ogpo.average, ogpo.policy, 0.2)
        if update % every == every - 1:
            means.append(flow.moments()[1])
    return means


def test_a_known_critic_draws_the_mean_to_its_maximum_monotonically() -> None:
    """From N(0, 0.3^2), whose flow has one slope and one gain for every time; the steps are small."""
    means = climb(updates=250, every=25)
    assert means[0] == 0
    assert means[-1] == pytest.approx(0.3, abs=0.03)
    assert all(later > earlier - 0.01 for earlier, later in pairwise(means)), means


def test_a_heavy_imitation_term_holds_the_policy_at_its_data() -> None:
    means = climb(updates=100, every=10, success_weight=100.0)
    assert max(map(abs, means)) < 0.06, means
