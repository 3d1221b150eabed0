"""A checkpoint adopted here and the same one in LeRobot alone do the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lerobot")

import torch
from torch import Tensor

from flowrl.policies import load_policy, save_policy
from flowrl.policies.lerobot.base import LeRobotPolicy
from tests.policies.lerobot.conftest import Adopted, Alone
from tests.policies.lerobot.tiny import CASES, HIGH, HORIZON, LOW, Case, Lerobot, noise, observation, raw_chunk


def acted(policy: LeRobotPolicy, case: Case) -> Tensor:
    with torch.no_grad():
        return policy.raw_action(policy.sample(policy.encode(observation(case)), noise(case)))


def within_bounds(raw: Tensor) -> Tensor:
    return raw.clamp(torch.tensor(LOW), torch.tensor(HIGH))


@pytest.mark.parametrize("name", CASES)
def test_the_same_actions_as_in_lerobot_alone(name: str, adopted: Adopted, alone: Alone) -> None:
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
