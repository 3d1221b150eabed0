"""A checkpoint adopted here and the same one in LeRobot alone do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lerobot")

import torch
from torch import Tensor

from flowrl.policies import load_policy, save_policy
from flowrl.policies.lerobot.base import LeRobotPolicy
from tests.policies.lerobot.conftest import Adopted, Alone
from tests.policies.lerobot.tiny import (
    CASES,
    HIGH,
    HORIZON,
    LOW,
    Case,
    Lerobot,
    noise,
    observation,
    raw_chunk,
)


def acted(policy: LeRobotPolicy, case: Case) -> Tensor:
    with torch.no_grad():
        return policy.raw_action(policy.sample(policy.encode(observation(case)), noise(case)))


def within_bounds(raw: Tensor) -> Tensor:
    return raw.clamp(torch.tensor(LOW), torch.tensor(HIGH))


@pytest.mark.parametrize("name", CASES)
def test_the_same_actions_as_in_lerobot_alone(name: str, adopted: Adopted, alone: Alone) -> None:
    """LeRobot pads SmolVLA's instructions to the longest of a batch, this package all to one length."""
    case, policy = CASES[name], adopted(name)
    expected = alone(name).actions(observation(case), noise(case).view(-1, HORIZON, case.padded))
    assert torch.allclose(acted(policy, case), within_bounds(expected), atol=1e-5)
    assert (within_bounds(expected) == expected).float().mean() > 0.5
    assert policy.encode(observation(case)).features.shape == (3, policy.feature_size)


@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_runs_here_and_in_lerobot_alone(name: str, adopted: Adopted, tmp_path: Path) -> None:
    case, policy = CASES[name], adopted(name)
    save_policy(policy, tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    assert isinstance(again, LeRobotPolicy)
    assert torch.equal(acted(again, case), acted(policy, case))
    lerobot = Lerobot.read(case, tmp_path / "saved")
    found = lerobot.actions(observation(case), noise(case).view(-1, HORIZON, case.padded))
    assert torch.allclose(within_bounds(found), acted(policy, case), atol=1e-5)


def squared_error(policy: LeRobotPolicy, case: Case, start: Tensor, time: Tensor) -> Tensor:
    """Flow matching by hand: the mean squared error of the velocity at flow times (B, 1) from noise (B, D)."""
    action = policy.flat_action(raw_chunk())
    used = 1 - policy.sigma_min
    x = (1 - used * time) * start + time * action
    error = policy.velocity(policy.encode(observation(case)), x, time) - (action - used * start)
    return error.view(-1, HORIZON, case.padded)[..., : len(LOW)].square().mean()


@pytest.mark.parametrize("name", ["smolvla", "pi0", "pi05"])
def test_the_loss_of_lerobots_training(name: str, adopted: Adopted, alone: Alone) -> None:
    """There prefix and expert go through the layers together, here the expert reads what the prefix left."""
    case, policy, lerobot = CASES[name], adopted(name), alone(name)
    time = torch.tensor([[0.125], [0.5], [0.9375]])
    start = noise(case)
    batch = lerobot.batch(observation(case), raw_chunk())
    shaped = start.view(-1, HORIZON, case.padded)
    with torch.no_grad():
        expected = _vla_loss(lerobot, batch, shaped, 1 - time.squeeze(1))
        assert torch.allclose(squared_error(policy, case, start, time), expected, rtol=1e-4)


def _vla_loss(lerobot: Lerobot, batch: dict[str, Any], start: Tensor, time: Tensor) -> Tensor:
    native = lerobot.native
    if lerobot.case.kind == "smolvla":
        return native.forward(batch, noise=start, time=time)[0]
    state = [native.prepare_state(batch)] if lerobot.case.kind == "pi0" else []
    losses = native.model.forward(
        *native._preprocess_images(batch),
        batch["observation.language.tokens"],
        batch["observation.language.attention_mask"],
        *state,
        native.prepare_action(batch),
        start,
        time,
    )
    return losses[..., : len(LOW)].mean()


@pytest.mark.parametrize("name", ["dit_flow", "dit_flow_past"])
def test_the_loss_of_multi_task_dits_training(name: str, adopted: Adopted, alone: Alone) -> None:
    case, policy, lerobot = CASES[name], adopted(name), alone(name)
    batch = lerobot.batch(observation(case), raw_chunk())
    with torch.no_grad():
        torch.manual_seed(5)
        expected = lerobot.native.forward(batch)[0]
        torch.manual_seed(5)
        start = torch.randn_like(batch["action"]).flatten(1)
        time = lerobot.native.objective._sample_timesteps(3, torch.device("cpu"))
        assert torch.allclose(squared_error(policy, case, start, time.unsqueeze(1)), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["dit_diffusion", "diffusion_states", "diffusion_images_past"])
def test_the_loss_of_a_diffusions_training(name: str, adopted: Adopted, alone: Alone) -> None:
    case, policy, lerobot = CASES[name], adopted(name), alone(name)
    batch = lerobot.batch(observation(case), raw_chunk())
    batch["action_is_pad"] = torch.zeros(3, HORIZON, dtype=torch.bool)
    with torch.no_grad():
        torch.manual_seed(5)
        expected = lerobot.native.forward(batch)[0]
        torch.manual_seed(5)
        start = torch.randn_like(batch["action"]).flatten(1)
        level = torch.randint(0, 20, (3,))
        # The time that picks this level of 20, 0 the cleanest.
        time = 1 - (level.float().unsqueeze(1) + 0.5) / 20
        context = policy.encode(observation(case))
        found = policy.imitation_loss(context, policy.flat_action(raw_chunk()), start, time)
    assert torch.allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["dit_flow", "smolvla", "pi0"])
def test_training_times_are_distributed_as_in_lerobot(name: str, adopted: Adopted, alone: Alone) -> None:
    policy, native = adopted(name), alone(name).native
    uniform = (torch.arange(4000).unsqueeze(1) + 0.5) / 4000
    found = policy.training_time(uniform).squeeze(1)
    torch.manual_seed(0)
    if name == "dit_flow":
        drawn = native.objective._sample_timesteps(4000, torch.device("cpu"))
    else:
        drawn = 1 - native.model.sample_time(4000, "cpu")
    levels = torch.linspace(0.05, 0.95, 19)
    # A quantile of 4000 draws has a standard error of at most 0.01 here.
    assert torch.allclose(found.quantile(levels), drawn.quantile(levels), atol=0.03)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
