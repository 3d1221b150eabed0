"""QAM and TRQAM as learners: paths, steep bases, exact resume, options, every kind of policy."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flowrl.algorithms.adjoints import exact_adjoint
from flowrl.algorithms.qam import QAM, TRQAM, PathDraws, QAMConfig, TRQAMConfig, memoryless_path, path_times
from flowrl.critics.targets import CriticConfig
from flowrl.errors import NonFiniteLoss
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.interface import Context, FlowPolicy
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.samplers import memoryless_sde
from flowrl.replay.batch import ChunkBatch
from tests.algorithms.analytic import FixedBatches, LinearFlow, random_batch
from tests.algorithms.rest import with_known_critic
from tests.helpers import identity_spec

STATE, ACTION, CHUNK, ROWS = 3, 2, 2, 8
CRITIC = CriticConfig(heads=3, width=16, depth=2)
CPU = torch.device("cpu")


def make(kind: str, policy: FlowPolicy | None = None, seed: int = 0, **options: Any) -> QAM | TRQAM:
    torch.manual_seed(1)
    policy = policy or FlowMLP(identity_spec(STATE, ACTION, CHUNK), width=16, depth=2, flow_steps=3)
    if kind == "qam":
        return QAM(QAMConfig(critic=CRITIC, **options), policy, seed)
    return TRQAM(TRQAMConfig(critic=CRITIC, **options), policy, seed)


KINDS = pytest.mark.parametrize("kind", ["qam", "trqam"])


def batch(count: int, source: str | None) -> ChunkBatch:
    return random_batch(count + (1000 if source else 0), ROWS, STATE, ACTION, CHUNK)


def train(learner: QAM | TRQAM, updates: int, start: int = 0) -> dict[str, float]:
    batches = FixedBatches(batch)
    batches.drawn = start
    info: dict[str, float] = {}
    for _ in range(updates):
        info = learner.update(batches)
    return info


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(map(torch.equal, left, right))


# Paths


def test_paths_are_those_of_the_memoryless_sde_up_to_the_last_step_which_is_the_bases_ode() -> None:
    steps, fast, base = 5, LinearFlow(2, 5, 0.5, mean=0.3), LinearFlow(2, 5, 0.8)
    context, start, noises = Context(torch.ones(4, 2)), torch.randn(4, 2), torch.randn(4, 4, 2)
    path = memoryless_path(fast.velocity, base.velocity, context, start, noises)
    pending = iter(noises)
    sde = memoryless_sde(fast.velocity, context, start, steps, lambda _: next(pending)).states
    torch.testing.assert_close(path[:-1], sde[:-1])
    last = path[-2] + base.velocity(context, path[-2], torch.full((4, 1), 0.8)) / steps
    torch.testing.assert_close(path[-1], last)


def test_matched_times_are_those_that_the_sampler_evaluates() -> None:
    assert path_times(4, 2)[:, 0].tolist() == [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


def test_one_step_is_one_step_of_the_base() -> None:
    base = LinearFlow(2, 1, 0.5)
    draws = PathDraws.sample(3, 2, 1, torch.Generator().manual_seed(0), CPU)
    assert draws.steps.shape == (0, 3, 2)
    context = Context(torch.ones(3, 2))
    path = memoryless_path(base.velocity, base.velocity, context, draws.start, draws.steps)
    torch.testing.assert_close(path[1], base.sample(context, draws.start))


# A base whose velocity is steep


def steep(slope: float, **options: Any) -> QAM:
    """A policy at peace on a base that is steep everywhere but where the path's last step asks it."""
    learner = QAM(QAMConfig(critic=CRITIC, **options), LinearFlow(2, 10, 0.3))
    with_known_critic(learner, lambda context, action: action.sum(dim=1))
    base = learner.slow_target
    assert isinstance(base, LinearFlow)
    with torch.no_grad():
        base.slope[:9] = base.slope[10] = slope
    return learner


def steep_batch(count: int, source: str | None) -> ChunkBatch:
    return random_batch(count, ROWS, 2, 2, 1)


def test_an_adjoint_that_overflows_is_refused_before_anything_changes() -> None:
    learner = steep(1e5)
    before = deepcopy(learner.state_dict())
    with pytest.raises(NonFiniteLoss, match=r"adjoint overflowed .* no step was taken: set .*growth_limit"):
        learner.update(FixedBatches(steep_batch))
    for name, module in learner.state_dict()["modules"].items():
        assert all(torch.equal(value, before["modules"][name][key]) for key, value in module.items())


def test_growth_is_measured_and_limited() -> None:
    """The adjoint is multiplied by k / (k + 1) + 2 h slope at each of nine steep steps, by 1 at the other."""
    plain = steep(10.0).update(FixedBatches(steep_batch))
    expected = 1.0
    for k in (9, *range(8)):
        expected *= k / (k + 1) + 2.0
    inner = 8 / 9 + 0.2 * LinearFlow(2, 10, 0.3).slope[9].item()
    assert plain["actor/adjoint_growth"] == pytest.approx(expected * inner, rel=1e-3)
    limited = steep(10.0, adjoint_growth_limit=2.0).update(FixedBatches(steep_batch))
    assert limited["actor/adjoint_growth"] == pytest.approx(2.0, rel=1e-5)
    assert limited["actor/adjoint_norm"] <= 2.0 * 2**0.5 + 1e-5


def test_a_limit_makes_an_overflowing_base_trainable() -> None:
    info = steep(1e5, adjoint_growth_limit=2.0, freeze_base=True).update(FixedBatches(steep_batch))
    assert info["actor/adjoint_growth"] == pytest.approx(2.0, rel=1e-5)
    assert 0 < info["fast/gradient_norm"] < float("inf")


def test_limit_shortens_rows_without_turning_them_and_leaves_shorter_ones() -> None:
    def velocity(context: Context, x: Tensor, t: Tensor) -> Tensor:
        return context.features * x

    rates = torch.tensor([[8.0, 8.0], [0.1, 0.1], [8.0, 8.0]])
    gradient = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    path = torch.randn(5, 3, 2)
    free = exact_adjoint(velocity, Context(rates), path, gradient, 4)
    limited = exact_adjoint(velocity, Context(rates), path, gradient, 4, growth_limit=1.5)
    torch.testing.assert_close(limited[:4, 0], -1.5 * gradient[0].expand(4, 2))
    assert torch.equal(limited[:, 1:], free[:, 1:])
    assert float(free[0, 0].norm()) > 100


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_that_is_not_positive_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match=r"adjoint_growth_limit is .*; it must be positive"):
        TRQAMConfig(adjoint_growth_limit=limit)


# As a learner


@KINDS
@pytest.mark.parametrize("options", [{}, {"base_source": "s", "average_actor": 0.1}])
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(kind: str, options: Any) -> None:
    whole, halted, resumed = (make(kind, seed=seed, **options) for seed in (0, 0, 7))
    info = train(whole, 6)
    train(halted, 3)
    resumed.load_state_dict(deepcopy(halted.state_dict()))
    assert train(resumed, 3, start=6 if options else 3) == info
    assert same(weights(whole.fast), weights(resumed.fast))
    assert same(weights(whole.slow_target), weights(resumed.slow_target))


@KINDS
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adjoint_growth_limit": 2.0}, "growth is limited to 2.0"),
        ({"base_source": "successes"}, "'successes'"),
        ({"freeze_base": True}, "frozen"),
        ({"average_actor": 0.02}, "moving average"),
        ({"collect_best_of": 4}, "best of 4"),
    ],
)
def test_each_deviation_is_named_and_off_by_default(kind: str, options: Any, words: str) -> None:
    assert make(kind).deviations() == []
    (text,) = make(kind, **options).deviations()
    assert words in text


def test_only_the_trust_region_adapts() -> None:
    fixed, dual = make("qam"), make("trqam")
    assert train(fixed, 3)["actor/path_kl"] > 0
    assert "dual" not in fixed.state_dict()
    info = train(dual, 3)
    assert info["dual/lambda"] != 1.0
    assert dual.state_dict()["dual"]["value"] == info["dual/lambda"]


@KINDS
@pytest.mark.parametrize("where", ["rewards", "action", "state"])
def test_a_nan_in_the_batch_is_refused_before_anything_changes(kind: str, where: str) -> None:
    learner = make(kind)
    before = weights(learner.fast) + weights(learner.critic.online)

    def poisoned(count: int, source: str | None) -> ChunkBatch:
        clean = batch(count, source)
        if where == "state":
            clean.observation.state[2, 1] = float("nan")
            return clean
        bad = getattr(clean, where).clone()
        bad[2] = float("nan")
        return replace(clean, **{where: bad})

    with pytest.raises(NonFiniteLoss, match="no step was taken"):
        learner.update(FixedBatches(poisoned))
    assert same(before, weights(learner.fast) + weights(learner.critic.online))


@KINDS
@pytest.mark.parametrize("prediction", ["v_prediction", "epsilon", "sample"])
@pytest.mark.parametrize("grid", ["uniform", "ddim"])
def test_a_diffusion_policy_is_tuned_as_a_flow(kind: str, prediction: Any, grid: Any) -> None:
    spec = identity_spec(STATE, ACTION, CHUNK)
    policy = DiffusionMLP(
        spec, width=16, depth=2, flow_steps=3, prediction=prediction, grid=grid, clip_prediction=True
    )
    learner = make(kind, policy)
    before = weights(learner.fast)
    info = train(learner, 2)
    assert all(value == value and abs(value) < float("inf") for value in info.values())
    assert not same(before, weights(learner.fast))
    assert info["actor/adjoint_norm"] > 0


def test_adjoint_of_a_diffusion_policy_is_the_product_of_its_jacobians() -> None:
    torch.manual_seed(0)
    spec, steps = identity_spec(2, 3, 1), 4
    policy = DiffusionMLP(spec, width=16, depth=2, flow_steps=steps).requires_grad_(False)
    context, path, gradient = Context(torch.randn(1, 2)), torch.randn(steps + 1, 1, 3), torch.randn(1, 3)
    adjoint = -gradient
    for k in reversed(range(steps)):
        t = (k + 1) / steps
        jacobian = torch.autograd.functional.jacobian(
            lambda x, t=t: 2 * policy.velocity(context, x, torch.full((1, 1), t)) - x / t, path[k]
        ).view(3, 3)
        adjoint = adjoint + adjoint @ jacobian / steps
    torch.testing.assert_close(exact_adjoint(policy.velocity, context, path, gradient, steps)[0], adjoint)
