"""The page of QAM and TRQAM names every hyper-parameter, its default, every metric and every equation."""

from __future__ import annotations

import re

import pytest

from flowrl.algorithms import adjoint_matching, adjoints, qam
from flowrl.algorithms.qam import QAM, TRQAM, QAMConfig, TRQAMConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import FixedBatches
from tests.algorithms.pages import Page
from tests.algorithms.rest import path_rest
from tests.helpers import identity_spec

PAGE = Page("algorithms/qam.md")


def test_every_hyper_parameter_has_a_row_with_its_default() -> None:
    PAGE.check_hyper_parameters(QAMConfig)
    PAGE.check_hyper_parameters(TRQAMConfig, skip=("kind", "critic", "discount"))
    assert "TRQAM 0.995" in PAGE.text
    assert TRQAMConfig().discount == 0.995


def test_every_metric_is_explained_and_no_other() -> None:
    critic = CriticConfig(heads=2, width=8, depth=1)
    policy = FlowMLP(identity_spec(2, 1, 1), width=8, depth=1, flow_steps=2)
    found: set[str] = set()
    for learner in (QAM(QAMConfig(critic=critic), policy), TRQAM(TRQAMConfig(critic=critic), policy)):
        batches = FixedBatches.random(4, 2, 1, 1)
        for part in (learner.warm_up, learner.update, learner.diagnostics):
            found |= set(part(batches))
    PAGE.check_metrics(found)


def test_links_lead_somewhere() -> None:
    PAGE.check_links()


def test_equation_numbers_of_the_code_are_those_of_the_page() -> None:
    functions = {6: qam.memoryless_path, 7: adjoints.exact_adjoint, 8: qam.TRQAM.temperature}
    for number, thing in functions.items():
        assert f"({number})" in (thing.__doc__ or "")
        assert re.search(rf" {{10,}}\({number}\)$", PAGE.text, re.MULTILINE), number
    for number, thing in {1: adjoint_matching.squared_noise_scale, 5: adjoint_matching.Dual}.items():
        assert f"({number})" in (thing.__doc__ or "")


@pytest.mark.parametrize(("std", "curvature"), [(1.0, 1.0), (0.3, 10.0), (0.3, 20.0)])
def test_rest_points_of_the_page_are_the_closed_form(std: float, curvature: float) -> None:
    (row,) = [
        line
        for line in PAGE.section("Where it comes to rest")
        if line.startswith(f"| {std}, {curvature:g} |")
    ]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    for steps, cell in zip((10, 50, 200), cells[1:4], strict=True):
        said = tuple(float(part) for part in cell.split("/"))
        assert said == pytest.approx(path_rest(std, curvature, steps), abs=6e-5)
