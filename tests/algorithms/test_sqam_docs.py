"""The page of SQAM names every hyper-parameter, its default, every metric and every equation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowrl.algorithms import sqam
from flowrl.algorithms.sqam import SQAM, SQAMConfig
from flowrl.config.classes import config_fields
from flowrl.critics.targets import CriticConfig
from flowrl.policies.mlp import FlowMLP
from tests.algorithms.analytic import FixedBatches
from tests.helpers import identity_spec

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "algorithms" / "sqam.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]


def row_of(name: str, rows: list[str]) -> list[str]:
    """The cells of the first table row whose first cell names ``name`` in backquotes."""
    for row in rows:
        cells = [cell.strip() for cell in row.replace("\\|", "/").strip("|").split("|")]
        if f"`{name}`" in cells[0]:
            return cells
    pytest.fail(f"no table row names {name}")


def section(title: str) -> list[str]:
    return [line for line in PAGE.split(title, 1)[1].split("\n## ")[0].splitlines() if line.startswith("|")]


def test_every_hyper_parameter_has_a_row_with_its_default() -> None:
    start = f"{SQAMConfig.__module__}.{SQAMConfig.__name__}"
    table = PAGE.split(start, 1)[1].split("\n`flowrl")[0].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    for name, field in config_fields(SQAMConfig).items():
        names, defaults, meaning = row_of(name, rows)
        assert meaning
        position = [part.strip(" `") for part in names.split(",")].index(name)
        said = [part.strip() for part in defaults.split(",")]
        said_default = said[position] if len(said) > 1 else said[0]
        words = {None: {"none", "K"}, True: {"on"}, False: {"off"}}
        if isinstance(field.default, bool) or field.default is None:
            assert said_default in words[field.default], name
        elif isinstance(field.default, int | float):
            assert float(said_default) == field.default, name
        elif isinstance(field.default, str):
            assert said_default == field.default, name


def metrics() -> set[str]:
    policy = FlowMLP(identity_spec(2, 1, 1), width=8, depth=1, flow_steps=2)
    learner = SQAM(SQAMConfig(critic=CriticConfig(heads=2, width=8, depth=1)), policy)
    batches = FixedBatches.random(4, 2, 1, 1)
    return set(learner.warm_up(batches)) | set(learner.update(batches)) | set(learner.diagnostics(batches))


def test_every_metric_is_explained() -> None:
    rows = section("\n## Metrics")
    for name in metrics():
        assert row_of(name, rows)[1], name


def test_no_metric_is_explained_that_does_not_exist() -> None:
    explained = set(re.findall(r"`(\w+/\w+)`", "\n".join(section("\n## Metrics"))))
    assert explained == metrics()


def test_equation_numbers_of_the_code_are_those_of_the_page() -> None:
    functions = {
        1: sqam.squared_noise_scale,
        2: sqam.scalar_adjoint,
        3: sqam.adjoint_matching_loss,
        4: sqam.path_kl,
        5: sqam.Dual,
    }
    for number, thing in functions.items():
        assert f"({number})" in (thing.__doc__ or "")
        assert re.search(rf" {{10,}}\({number}\)$", PAGE, re.MULTILINE), number


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (DOCS / "algorithms" / "sqam.md", DOCS / "notation.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), target
    paths = re.findall(r"`((?:flowrl|tests|benchmarks)/[\w/]+\.py)`", PAGE)
    assert paths
    assert all((DOCS.parent / path).exists() for path in paths)
