"""Diffusion as flow, against diffusers' scheduler and against Gaussians."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flowrl.errors import ConfigError
from flowrl.policies import Observation
from flowrl.policies.diffusion import DiffusionMLP
from flowrl.policies.paths import DiffusionPath, PredictionKind, ScheduleKind, alphas_cumprod
from flowrl.policies.samplers import euler_ode
from flowrl.spec import Spec

PREDICTIONS: list[PredictionKind] = ["epsilon", "sample", "v_prediction"]
SCHEDULES: list[ScheduleKind] = ["squaredcos_cap_v2", "linear"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [50, 100, 1000])
def test_schedules_equal_those_of_diffusers(schedule: ScheduleKind, steps: int) -> None:
    diffusers = pytest.importorskip("diffusers", reason="comes with the extra vla")
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=steps, beta_schedule=schedule)
    assert torch.equal(alphas_cumprod(schedule, steps), scheduler.alphas_cumprod)


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("to_one", [False, True])
def test_ddim_is_euler_on_its_own_grid(
    spec: Spec, prediction: PredictionKind, schedule: ScheduleKind, clip: bool, to_one: bool
) -> None:
    diffusers = pytest.importorskip("diffusers", reason="comes with the extra vla")
    policy = DiffusionMLP(spec, width=32, schedule=schedule, prediction=prediction, clip_prediction=clip)
    context, noise = policy.encode(Observation(torch.randn(6, 3))), torch.randn(6, 8)
    scheduler = diffusers.DDIMScheduler(
        num_train_timesteps=100,
        beta_schedule=schedule,
        prediction_type=prediction,
        clip_sample=clip,
        set_alpha_to_one=to_one,
    )
    scheduler.set_timesteps(10)
    y = noise
    for level in scheduler.timesteps:
        output = policy.denoise(context, y, torch.full((6, 1), float(level)))
        y = scheduler.step(output, level, y, use_clipped_model_output=clip).prev_sample
    times = policy.path.ddim_times(10, to_one)
    x = euler_ode(policy.velocity, context, policy.path.ddim_start(noise, 10), 10, times)
    end = times[-1]
    assert torch.allclose(x / (end**2 + (1 - end) ** 2) ** 0.5, y, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_ddim_grid_is_a_setting_of_sample(spec: Spec, prediction: PredictionKind) -> None:
    policy = DiffusionMLP(spec, width=32, prediction=prediction, grid="ddim", flow_steps=5)
    context, noise = policy.encode(Observation(torch.randn(6, 3))), torch.randn(6, 8)
    x, times = policy.path.ddim_start(noise, 5), policy.path.ddim_times(5)
    assert torch.equal(policy.sample(context, noise), euler_ode(policy.velocity, context, x, 5, times))
    assert not torch.allclose(
        policy.sample(context, noise), super(DiffusionMLP, policy).sample(context, noise)
    )


class GaussianNetwork:
    """The best network for data N(0, std^2), from the posterior given y at fractional levels."""

    def __init__(self, path: DiffusionPath, std: float) -> None:
        self.path, self.std = path, std

    def __call__(self, y: Tensor, level: Tensor) -> Tensor:
        t = self.path.times.flip(0)[level.round().long()]
        norm = (t.square() + (1 - t).square()).sqrt()
        alpha, sigma = t / norm, (1 - t) / norm
        gain = y / (alpha.square() * self.std**2 + sigma.square())
        action, noise = alpha * self.std**2 * gain, sigma * gain
        return {"epsilon": noise, "sample": action, "v_prediction": alpha * noise - sigma * action}[
            self.path.prediction
        ]


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_perfect_network_gives_the_exact_velocity_of_the_linear_path(prediction: PredictionKind) -> None:
    path = DiffusionPath(alphas_cumprod("squaredcos_cap_v2", 100), prediction).double()
    t = path.times[1:, None]
    x = torch.randn_like(t)
    exact = (t * 0.09 - (1 - t)) / ((1 - t).square() + t.square() * 0.09) * x
    found = path.velocity(GaussianNetwork(path, 0.3), x, t)
    assert torch.allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_diffusion_samples_a_gaussian_on_the_uniform_grid(prediction: PredictionKind) -> None:
    path = DiffusionPath(alphas_cumprod("squaredcos_cap_v2", 1000), prediction).double()
    network, noise = GaussianNetwork(path, 0.3), torch.randn(5000, 1, dtype=torch.float64)
    x = noise
    for i in range(100):
        x = x + path.velocity(network, x, torch.full_like(x, i / 100)) / 100
    assert float(x.std()) == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [50, 100, 1000])
def test_levels_are_exact_at_their_times_and_fall_with_flow_time(schedule: ScheduleKind, steps: int) -> None:
    path = DiffusionPath(alphas_cumprod(schedule, steps), "epsilon")
    assert torch.equal(path.level(path.times[:, None]).flatten(), torch.arange(steps - 1.0, -1, -1))
    between = path.level(torch.linspace(0, 1, 5001)[:, None]).flatten()
    assert (between.diff() <= 0).all()
    assert (between[0], between[-1]) == (steps - 1, 0)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_both_ends_are_held_and_finite(prediction: PredictionKind) -> None:
    path = DiffusionPath(alphas_cumprod("linear", 100), prediction)
    asked: list[tuple[Tensor, Tensor]] = []

    def network(y: Tensor, level: Tensor) -> Tensor:
        asked.append((y, level))
        return 0.1 * y

    x = torch.randn(4, 2)
    for t in (0.0, 1.0):
        assert path.velocity(network, x, torch.full((4, 1), t)).isfinite().all()
    (start, noisiest), (end, cleanest) = asked
    assert torch.equal(start, x), "pure noise reaches the network with unit variance"
    assert torch.equal(end, x)
    assert noisiest.unique().tolist() == [99]
    assert cleanest.unique().tolist() == [0]


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_regression_target_reads_back_as_action_and_noise(prediction: PredictionKind) -> None:
    path = DiffusionPath(alphas_cumprod("squaredcos_cap_v2", 100), prediction).double()
    action, noise = torch.randn(2, 7, 3, dtype=torch.float64)
    level = torch.tensor([0, 1, 20, 50, 80, 97, 99])[:, None]
    y, target = path.corrupt(action, noise, level)
    t = path.times.flip(0)[level]
    found = path.predict(lambda _y, _level: target, t * action + (1 - t) * noise, t)
    assert torch.allclose(torch.cat(found), torch.cat([action, noise]), atol=1e-6)
    assert torch.allclose(y, path.corrupt(action, noise, level)[0])


def test_ddim_refuses_more_steps_than_levels() -> None:
    path = DiffusionPath(alphas_cumprod("linear", 20), "epsilon")
    with pytest.raises(ConfigError, match="21 steps on 20 levels"):
        path.ddim_times(21)


@pytest.mark.parametrize("alpha_bar", [[0.5, 0.5], [0.2, 0.9], [1.0, 0.5], [0.5]])
def test_levels_that_do_not_fall_are_refused(alpha_bar: list[float]) -> None:
    with pytest.raises(ConfigError, match="noise schedule"):
        DiffusionPath(torch.tensor(alpha_bar), "epsilon")
