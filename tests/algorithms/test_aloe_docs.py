"""The page of ALOE names every hyper-parameter, default and metric, and the code's equations."""

from __future__ import annotations

from flowrl.algorithms import aloe
from flowrl.algorithms.aloe import ALOE, ALOEConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import FixedBatches
from tests.algorithms.pages import Page
from tests.helpers import identity_spec

PAGE = Page("algorithms/aloe.md")


def test_every_hyper_parameter_has_a_row_with_its_default() -> None:
    PAGE.check_hyper_parameters(ALOEConfig)


def test_the_metrics_are_explained_and_no_others() -> None:
    policy = FlowMLP(identity_spec(2, 1, 1), width=8, depth=1, flow_steps=2)
    learner = ALOE(ALOEConfig(critic=CriticConfig(heads=2, width=8, depth=1, aggregation="min")), policy)
    batches = FixedBatches.random(4, 2, 1, 1)
    PAGE.check_metrics(
        set(learner.warm_up(batches)) | set(learner.update(batches)) | set(learner.diagnostics(batches))
    )


def test_links_and_equations() -> None:
    PAGE.check_links()
    for number, thing in {1: ALOE.advantage, 2: aloe.advantage_weights, 3: ALOE.actor_loss}.items():
        assert f"({number})" in (thing.__doc__ or "")
        assert f"   ({number})\n" in PAGE.text
