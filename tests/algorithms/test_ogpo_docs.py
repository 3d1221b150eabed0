"""The page of OGPO names every hyper-parameter, default and metric, and the code's equations."""

from __future__ import annotations

from flowrl.algorithms import groups, ogpo
from flowrl.algorithms.ogpo import OGPO, OGPOConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import FixedBatches
from tests.algorithms.pages import Page
from tests.helpers import identity_spec

PAGE = Page("algorithms/ogpo.md")


def test_every_hyper_parameter_has_a_row_with_its_default() -> None:
    PAGE.check_hyper_parameters(OGPOConfig)


def test_the_metrics_are_explained_and_no_others() -> None:
    policy = FlowMLP(identity_spec(2, 1, 1), width=8, depth=1, flow_steps=2)
    critic = CriticConfig(heads=2, width=8, depth=1)
    learner = OGPO(OGPOConfig(critic=critic, group=2, success_weight=1.0, success_td=True), policy)
    batches = FixedBatches.random(4, 2, 1, 1)
    PAGE.check_metrics(
        set(learner.warm_up(batches)) | set(learner.update(batches)) | set(learner.diagnostics(batches))
    )


def test_links_and_equations() -> None:
    PAGE.check_links()
    numbered = {
        1: groups.group_advantage,
        2: groups.consensus_advantage,
        4: ogpo.clipped_ratio_loss,
        5: OGPO.success_loss,
        6: ogpo.scheduled_rate,
    }
    for number, thing in numbered.items():
        assert f"({number})" in (thing.__doc__ or "")
        assert f"   ({number})\n" in PAGE.text
