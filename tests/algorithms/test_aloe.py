"""ALOE-style weights and losses: limits, bounds, invariances, what the weighted loss samples at rest."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flowrl.algorithms.aloe import ALOE, ALOEConfig, advantage_weights, effective_share
from flowrl.config import load
from flowrl.critics.encoder import Viewer
from flowrl.critics.targets import CriticConfig
from flowrl.errors import ConfigError, ReplayError
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.replay.reader import ReplayReader
from flowrl.replay.sampler import ChunkSampler, SamplerConfig
from flowrl.replay.schema import Outcome, Source
from tests.algorithms.analytic import FixedBatches, KnownCritic, random_batch
from tests.algorithms.test_sqam_options import equal, weights
from tests.helpers import chunk_batch, identity_spec
from tests.replay.streams import new_stream, write_episode

STATE, ACTION, CHUNK, ROWS = 3, 2, 2, 12


def learner(policy: type[FlowMLP] | type[DiffusionMLP] = FlowMLP, seed: int = 0, **options: object) -> ALOE:
    torch.manual_seed(1)
    base = policy(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=3)
    critic = CriticConfig(heads=3, width=16, depth=2, aggregation="min")
    return ALOE(ALOEConfig(critic=critic, **options), base, seed)  # type: ignore[arg-type]


def batches() -> FixedBatches:
    return FixedBatches.random(ROWS, STATE, ACTION, CHUNK)


def loss_of(aloe: ALOE) -> tuple[Tensor, dict[str, float]]:
    batch, view = aloe.draw(batches())
    advantage, _ = aloe.advantage(view)
    return aloe.actor_loss(batch, view, advantage)


def exactly(advantage: list[float], **options: Any) -> list[float]:
    weight, _ = advantage_weights(torch.tensor(advantage), ALOEConfig(**options))
    return weight.tolist()


def test_weights_by_hand() -> None:
    doubled = 0.5 * float(torch.tensor(2.0).log())
    assert exactly([0, doubled, -doubled]) == pytest.approx([1, 2, 0.5])
    limited = exactly([9.0, -9.0], temperature=1.0, exponent_limit=2.0)
    assert limited == pytest.approx([7.389056, 0.1353353])
    bounded = exactly([9.0, -9.0, 0.5], temperature=1.0, exponent_limit=None, weight_low=0.2, weight_high=3.0)
    assert bounded == pytest.approx([3.0, 0.2, 1.648721])


def test_both_bounds_are_one_family() -> None:
    """exp is monotone: a limit c on the exponent is the pair of bounds e^-c, e^c on the weight."""
    advantage = torch.linspace(-20, 20, 101)
    by_exponent = advantage_weights(advantage, ALOEConfig(exponent_limit=2.0))
    low, high = float(torch.tensor(-2.0).exp()), float(torch.tensor(2.0).exp())
    by_weight = advantage_weights(
        advantage, ALOEConfig(exponent_limit=None, weight_low=low, weight_high=high)
    )
    torch.testing.assert_close(by_exponent[0], by_weight[0])
    assert torch.equal(by_exponent[1], by_weight[1])
    assert torch.equal(by_exponent[1], advantage.abs() > 1)


def test_effective_share_by_hand() -> None:
    ten = torch.tensor(10.0)
    assert float(effective_share(torch.full((10,), 0.3), ten)) == pytest.approx(1)
    assert float(effective_share(torch.eye(10)[0], ten)) == pytest.approx(0.1)
    assert float(effective_share(torch.zeros(10), ten)) == 0


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("policy", [FlowMLP, DiffusionMLP])
def test_infinite_temperature_is_behaviour_cloning(policy: type[FlowMLP], normalise: bool) -> None:
    aloe = learner(policy, temperature=float("inf"), normalise_weights=normalise)
    batch, view = aloe.draw(batches())
    advantage, _ = aloe.advantage(view)
    assert float(advantage.abs().min()) > 0
    generator = torch.Generator()
    generator.set_state(aloe.generator.get_state())
    loss, info = aloe.actor_loss(batch, view, advantage)
    noise = torch.randn(ROWS, ACTION * CHUNK, generator=generator)
    t = torch.rand(ROWS, 1, generator=generator)
    plain = aloe.policy.imitation_loss(view.context, view.action, noise, t)
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)
    assert info["actor/effective_share"] == pytest.approx(1)
    assert info["actor/weights_bounded"] == 0


def test_advantage_is_the_pessimistic_value_over_the_policys_own() -> None:
    """Heads q and q + s with q = sum of a: the lower one counts, which one depends on the state."""
    aloe = learner(value_samples=50)
    sign = torch.tensor([1.0, -1.0])[:, None]
    aloe.critic.online = Spread(sign)  # type: ignore[assignment]
    batch, view = aloe.draw(batches())
    advantage, value = aloe.advantage(view)
    tiled = view.context.tile(500)
    own = aloe.policy.sample(tiled, torch.randn(500 * ROWS, ACTION * CHUNK)).clamp(-1, 1)
    expected = own.sum(dim=1).view(500, ROWS).mean(dim=0).detach() - view.context.features[:, 0].abs()
    torch.testing.assert_close(value, expected, rtol=0, atol=0.7)  # 4 standard errors of 50 samples
    data = aloe.policy.flat_action(batch.action).sum(dim=1) - view.context.features[:, 0].abs()
    torch.testing.assert_close(advantage + value, data)


class Spread(Viewer):
    """Heads ``sum a + sign s_0``."""

    def __init__(self, sign: Tensor) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        return action.sum(dim=1) + self.sign * features[:, 0]


@pytest.mark.parametrize("aggregation", ["min", "mean", "mean_minus_std"])
def test_a_value_of_the_state_on_all_heads_leaves_the_advantage(aggregation: str) -> None:
    critic = CriticConfig(heads=3, width=16, depth=2, aggregation=aggregation)  # type: ignore[arg-type]
    results = []
    for constant in (0.0, 5.0):
        aloe = ALOE(ALOEConfig(critic=critic), learner().policy, seed=0)
        online = aloe.critic.online

        def value(s: Tensor, a: Tensor, online: nn.Module = online, c: float = constant) -> Tensor:
            return online(s, a) + c * (1 + s.sum(dim=1))

        aloe.critic.online = KnownCritic(value, heads=3)  # type: ignore[assignment]
        results.append(aloe.advantage(aloe.draw(batches())[1])[0])
    torch.testing.assert_close(*results, rtol=0, atol=1e-4)


def test_the_actor_loss_reaches_the_policy_alone() -> None:
    aloe = learner()
    loss_of(aloe)[0].backward()
    assert all(p.grad is not None and p.grad.any() for p in aloe.policy.parameters())
    for module in (aloe.base, aloe.critic.online, aloe.critic.target):
        assert all(p.grad is None or not p.grad.any() for p in module.parameters())


def test_rows_that_straddle_an_end_weigh_nothing() -> None:
    aloe = learner(normalise_weights=True)
    batch, _ = aloe.draw(batches())
    valid = torch.ones(ROWS, CHUNK)
    valid[5:, -1] = 0
    plain = replace(batch, valid=valid)
    wild = replace(plain, action=torch.where(valid[:, -1:, None] > 0, batch.action, 50.0))
    losses = []
    for each in (plain, wild):
        aloe.generator.manual_seed(0)
        loss, info = aloe.actor_loss(each, aloe.critic.view(each, aloe.policy), torch.zeros(ROWS))
        losses.append(float(loss.detach()))
        assert info["actor/effective_share"] == pytest.approx(1)
        assert info["actor/weight_max"] == pytest.approx(1)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_normalised_weights_have_mean_one_and_the_same_direction() -> None:
    raw, normalised = learner(), learner(normalise_weights=True)
    losses = [loss_of(aloe) for aloe in (raw, normalised)]
    scale = losses[1][1]["actor/weight_max"] / losses[0][1]["actor/weight_max"]
    assert float(losses[1][0].detach()) == pytest.approx(scale * float(losses[0][0].detach()), rel=1e-5)
    assert losses[0][1]["actor/effective_share"] == pytest.approx(losses[1][1]["actor/effective_share"])


def test_shares_of_human_rows_by_hand() -> None:
    """Two of twelve rows are a person's, and weigh e each where the others weigh 1."""
    aloe = learner(temperature=1.0)
    batch, view = aloe.draw(batches())
    source = torch.zeros(ROWS, dtype=torch.int64)
    source[3:5], source[7] = Source.HUMAN, Source.SCRIPTED
    human = (source == Source.HUMAN).float()
    _, info = aloe.actor_loss(replace(batch, source=source), view, human)
    e = float(torch.tensor(1.0).exp())
    assert info["actor/human_share"] == pytest.approx(2 / 12)
    assert info["actor/human_weight"] == pytest.approx(2 * e / (2 * e + 10))
    assert info["actor/effective_share"] == pytest.approx((2 * e + 10) ** 2 / (12 * (2 * e**2 + 10)))


def recorded(path: Path) -> ReplayReader:
    """An online stream: one episode the policy acted alone, one a person took over after two steps."""
    with new_stream(path) as writer:
        write_episode(writer, [10, 11, 12, 13, 14, 15], Outcome.FAILURE, final=16)
        sources = [Source.POLICY] * 2 + [Source.HUMAN] * 4
        write_episode(writer, [20, 21, 22, 23, 24, 25], Outcome.SUCCESS, sources=sources, final=26)
    return ReplayReader(path)


def tiny() -> ALOE:
    base = FlowMLP(identity_spec(2, 1, 2), width=8, depth=1, flow_steps=2)
    return ALOE(ALOEConfig(critic=CriticConfig(heads=2, width=8, depth=1, aggregation="min")), base)


def test_interventions_enter_by_the_share_of_the_mix(tmp_path: Path) -> None:
    mix = {"interventions": 0.5, "policy": 0.5}
    sampler = ChunkSampler(recorded(tmp_path), SamplerConfig(batch_size=16, chunk=2, mix=mix))
    info = tiny().update(sampler)
    assert info["actor/human_share"] == 0.5
    assert 0 < info["actor/human_weight"] < 1


def test_a_mix_that_names_an_empty_source_is_the_samplers_error(tmp_path: Path) -> None:
    mix = {"demonstrations": 0.5, "online": 0.5}
    sampler = ChunkSampler(recorded(tmp_path), SamplerConfig(batch_size=16, chunk=2, mix=mix))
    with pytest.raises(ReplayError, match=r"'demonstrations' .* has no start rows"):
        tiny().update(sampler)


def test_few_effective_rows_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    calm = learner()
    sharp = learner(temperature=0.05, exponent_limit=None, weight_high=1e30, normalise_weights=True)
    source = FixedBatches.random(64, STATE, ACTION, CHUNK)
    with caplog.at_level(logging.WARNING, "flowrl"):
        calm.update(source)
        assert not caplog.records
        shares = [sharp.update(source)["actor/effective_share"] for _ in range(3)]
    assert max(shares) < 0.1
    (record,) = caplog.records
    assert "algorithm.temperature" in record.getMessage()


class TabularFlow(FlowPolicy):
    """A velocity that leads to a predicted end, looked up by flow time and by the bin of x in [-3, 3]."""

    kind = "tabular_flow"

    def __init__(self, steps: int, bins: int) -> None:
        super().__init__(identity_spec(1, 1, 1), steps)
        self.bins = bins
        self.end = nn.Parameter(torch.zeros(steps, bins))

    def encode(self, observation: Observation) -> Context:
        return Context(observation.state)

    def velocity(self, context: Context, x: Tensor, t: Tensor) -> Tensor:
        step = (t[:, 0] * self.flow_steps).round().long()
        place = ((x[:, 0].clamp(-3, 2.999) + 3) / 6 * self.bins).long()
        return (self.end[step, place][:, None] - x) / (1 - t)

    def config(self) -> dict[str, Any]:
        return {}

    def solve(self, loss: Tensor) -> None:
        """The exact minimiser: ``loss`` is quadratic in the table and couples no two of its cells."""
        (gradient,) = torch.autograd.grad(loss, self.end, create_graph=True)
        (curvature,) = torch.autograd.grad(gradient.sum(), self.end)
        with torch.no_grad():
            self.end -= torch.where(curvature > 0, gradient / curvature.clamp(min=1e-12), 0)


def test_the_minimiser_samples_the_tilted_behaviour() -> None:
    """Three actions with behaviour p and values Q: ALOE's loss at its minimum samples p exp(Q / beta) / Z.

    The population limit, by weighted least squares on a table. What is left of it, finite steps and bins of
    0.015, moves masses by less than 0.01.
    """
    actions, behaviour = torch.tensor([-0.8, 0.0, 0.8]), torch.tensor([0.5, 0.3, 0.2])
    q, beta, rows, steps = torch.tensor([0.0, 0.5, 1.0]), 0.5, 1_000_000, 60
    generator = torch.Generator().manual_seed(0)
    config = ALOEConfig(critic=CriticConfig(heads=1, width=2, depth=1), temperature=beta, value_samples=1)
    aloe = ALOE(config, TabularFlow(steps, bins=400))
    aloe.critic.online = KnownCritic(lambda s, a: q[(a - actions).abs().argmin(dim=1)])  # type: ignore[assignment]
    # Euler never looks between its times: draws on its grid replace the uniform ones.
    aloe.uniform = lambda rows: (  # type: ignore[method-assign]
        torch.randint(steps, (rows, 1), generator=generator) / steps
    )
    action = actions[torch.multinomial(behaviour, rows, replacement=True, generator=generator)]
    batch = chunk_batch(torch.zeros(rows, 1), action[:, None, None], torch.zeros(rows, 1))
    view = aloe.critic.view(batch, aloe.policy)
    table = aloe.policy
    assert isinstance(table, TabularFlow)
    table.solve(aloe.actor_loss(batch, view, aloe.advantage(view)[0])[0])
    with torch.no_grad():
        noise = torch.randn(100_000, 1, generator=generator)
        samples = table.sample(Context(torch.zeros(100_000, 1)), noise)
    nearest = (samples - actions).abs().argmin(dim=1)
    found, tilted = torch.bincount(nearest, minlength=3) / len(samples), behaviour * (q / beta).exp()
    torch.testing.assert_close(found, tilted / tilted.sum(), rtol=0, atol=0.01)
    assert float((samples - actions[nearest, None]).abs().mean()) < 0.02


@pytest.mark.parametrize("options", [{}, {"average_actor": 0.1, "normalise_weights": True}])
def test_resume_is_bit_equal(options: dict[str, Any]) -> None:
    whole = learner(**options)
    source = batches()
    for _ in range(4):
        whole.update(source)
    saved = deepcopy(whole.state_dict())
    resumed = learner(seed=9, **options)
    resumed.load_state_dict(saved)
    assert whole.update(batches()) == resumed.update(batches())
    assert equal(whole.state_dict(), resumed.state_dict())
    assert not equal(weights(whole.policy), weights(whole.base))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalise_weights": True}, "divided by their mean"),
        ({"critic": CriticConfig(heads=2, width=4, depth=1, aggregation="mean")}, "aggregated by mean"),
        ({"collect_best_of": 16}, "best of 16"),
    ],
)
def test_each_deviation_is_named(options: dict[str, Any], words: str) -> None:
    assert learner().deviations() == []
    settings = {"critic": CriticConfig(heads=2, width=4, depth=1, aggregation="min"), **options}
    (text,) = ALOE(ALOEConfig(**settings), learner().policy).deviations()  # type: ignore[arg-type]
    assert words in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"value_samples": 0}, "at least 1"),
        ({"temperature": 0.0}, "must be positive"),
        ({"exponent_limit": 0.0}, "must be positive"),
        ({"weight_low": 2.0, "weight_high": 2.0}, "weight_low < weight_high"),
        ({"exponent_limit": None}, "nothing bounds the weights"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(ALOEConfig, settings)


def test_a_batch_without_a_valid_row_changes_nothing_by_nan() -> None:
    aloe = learner(normalise_weights=True)
    batch = random_batch(0, ROWS, STATE, ACTION, CHUNK)
    empty = replace(batch, valid=torch.zeros(ROWS, CHUNK))
    loss, info = aloe.actor_loss(empty, aloe.critic.view(empty, aloe.policy), torch.zeros(ROWS))
    assert float(loss.detach()) == 0
    assert info["actor/effective_share"] == 0


def test_a_source_is_cloned_and_the_critic_keeps_the_mix() -> None:
    """The policy's gradient does not depend on the mix, the critic's not on the source."""

    def updated(mix: int, source: int) -> ALOE:
        aloe = learner(source="success_mix", critic_gradient_clip=1e9, gradient_clip=1e9)
        aloe.critic.online.requires_grad_(True)
        seeds = {None: mix, "success_mix": source}
        drawn = FixedBatches(lambda count, name: random_batch(seeds[name], ROWS, STATE, ACTION, CHUNK))
        aloe.update(drawn)
        assert drawn.sources == [None, "success_mix"]
        return aloe

    reference, other_mix, other_source = updated(1, 2), updated(3, 2), updated(1, 3)
    assert equal(weights(reference.policy), weights(other_mix.policy))
    assert not equal(weights(reference.policy), weights(other_source.policy))
    assert equal(weights(reference.critic.online), weights(other_source.critic.online))
    assert not equal(weights(reference.critic.online), weights(other_mix.critic.online))
    assert any("'success_mix'" in text for text in reference.deviations())
