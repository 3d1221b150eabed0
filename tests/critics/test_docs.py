"""The page of critics names every field with its default, and every metric."""

from __future__ import annotations

from dataclasses import replace

import torch

from flowrl.config.classes import config_fields
from flowrl.critics.chunk_critic import ChunkCritic
from flowrl.critics.encoder import EncoderConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import FixedBatches
from tests.algorithms.pages import Page
from tests.helpers import identity_spec

PAGE = Page("critics.md")


def test_every_field_has_a_row_with_its_default() -> None:
    PAGE.check_hyper_parameters(CriticConfig, skip=())


def test_every_field_of_the_own_encoder_has_a_row_with_its_default() -> None:
    rows = [row for row in PAGE.section("Hyper-parameters") if "`encoder." in row]
    said = dict[str, str]()
    for row in rows:
        names, defaults = ([part.strip(" `") for part in cell.split(",")] for cell in row.split("|")[1:3])
        said |= zip(names, defaults, strict=True)
    fields = config_fields(EncoderConfig).items()
    assert said == {f"encoder.{name}": str(field.default) for name, field in fields}


def metrics() -> set[str]:
    """Of a critic with hinges that is asked about the policy's actions, too."""
    policy = FlowMLP(identity_spec(2, 1, 1), width=8, depth=1)
    config = replace(CriticConfig(heads=2, width=8, depth=1), hinge=1.0, hinge_chunks=2)
    critic = ChunkCritic(config, policy, 0.9, seed=0)
    batch = critic.draw(FixedBatches.random(4, 2, 1, 1))
    generator = torch.Generator()
    view = critic.view(batch, policy)
    _, _, info = critic.loss(batch, view, torch.zeros(8, 1), generator, policy_action=torch.zeros(4, 1))
    return set(info)


def test_every_metric_is_explained_and_no_other() -> None:
    PAGE.check_metrics(metrics())


def test_links_and_files_exist() -> None:
    PAGE.check_links()
