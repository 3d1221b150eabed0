"""Checkpoints written once per session, in miniature and without the network."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from flowrl.policies.lerobot.adopt import adopt
from flowrl.policies.lerobot.base import LeRobotPolicy
from tests.policies.lerobot import backbones
from tests.policies.lerobot.tiny import CASES, Lerobot, write

Checkpoints = Callable[[str], Path]
Adopted = Callable[[str], LeRobotPolicy]
Alone = Callable[[str], Lerobot]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    """The directory of a case's checkpoint."""
    place = tmp_path_factory.mktemp("lerobot")
    places = {"clip": backbones.clip(place), "smolvlm": backbones.smolvlm(place)}

    @cache
    def written(name: str) -> Path:
        write(CASES[name], place / name, places)
        return place / name

    with pytest.MonkeyPatch.context() as patch:
        backbones.shrink_paligemma(patch, place)
        yield written


@pytest.fixture(scope="session")
def adopted(checkpoint: Checkpoints) -> Adopted:
    """A case's checkpoint as a policy; tests copy what they change."""

    @cache
    def made(name: str) -> LeRobotPolicy:
        return adopt(f"lerobot:{checkpoint(name)}", CASES[name].interface)

    return made


@pytest.fixture(scope="session")
def alone(checkpoint: Checkpoints) -> Alone:
    """A case's checkpoint as LeRobot loads it."""

    @cache
    def read(name: str) -> Lerobot:
        return Lerobot.read(CASES[name], checkpoint(name))

    return read
