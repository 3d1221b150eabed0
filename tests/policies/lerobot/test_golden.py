"""What the networks make of weights given by a formula, as it was when the file beside this one was written.

Weights, observations and noise come from numpy's PCG64, so the numbers depend on the architectures alone: on
LeRobot's code, on that of transformers and diffusers, and on this package. Another version that changes them
changes what every checkpoint does. With ``FLOWRL_WRITE_GOLDEN=1`` the file is written again.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("lerobot")

import torch

from flowrl.policies.lerobot.base import LeRobotPolicy
from tests.policies.lerobot.conftest import Adopted
from tests.policies.lerobot.tiny import CASES, Case, noise, observation

GOLDEN = Path(__file__).with_name("golden.json")
PACKAGES = ("lerobot", "transformers", "diffusers", "torch", "torchvision", "numpy")


def first_row(policy: LeRobotPolicy, case: Case) -> list[float]:
    """The first row's raw actions, (H * A)."""
    with torch.no_grad():
        sample = policy.sample(policy.encode(observation(case)), noise(case))
        return policy.raw_action(sample)[0].flatten().tolist()


@pytest.mark.parametrize("name", CASES)
def test_the_actions_are_those_of_the_file(name: str, adopted: Adopted) -> None:
    golden = json.loads(GOLDEN.read_text())
    found, now = first_row(adopted(name), CASES[name]), {package: version(package) for package in PACKAGES}
    if os.environ.get("FLOWRL_WRITE_GOLDEN"):
        golden["actions"][name] = [round(value, 6) for value in found]
        GOLDEN.write_text(json.dumps({"versions": now, "actions": golden["actions"]}, indent=1) + "\n")
        return
    assert found == pytest.approx(golden["actions"][name], abs=1e-4), (
        f"{name} acts otherwise than with {golden['versions']}; here are {now}"
    )
