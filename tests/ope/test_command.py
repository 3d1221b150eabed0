"""``flowrl ope`` on a finished run: what it prints and leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flowrl.cli.ope import register
from flowrl.errors import ConfigError, UsageError
from flowrl.learner.run import Run
from tests.ope.conftest import GOOD

FAST = ["--updates", "5", "--seeds", "1", "--bootstrap", "100"]


def application() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


def test_the_command_prints_a_ranking_and_leaves_page_and_json(reach_run: Run, tmp_path: Path) -> None:
    arguments = [str(reach_run.directory), *FAST, "--json", str(tmp_path / "out.json"), "--jobs", "2"]
    answer = CliRunner().invoke(application(), arguments, env={"COLUMNS": "160"})
    assert answer.exit_code == 0, answer.output
    assert f"checkpoint {GOOD}" in answer.output
    assert "told apart from" in answer.output or "is above" in answer.output
    assert str(reach_run.directory / "ope" / "ope.html") in answer.output.replace("\n", "")
    kept = json.loads((reach_run.directory / "ope" / "ope.json").read_text())
    assert kept == json.loads((tmp_path / "out.json").read_text())
    assert kept["settings"]["fqe"]["updates"] == 5
    assert kept["agreement"] == {}


def test_policies_by_directory_are_ranked_beside_the_base(reach_run: Run) -> None:
    good = reach_run.checkpoints.directory / str(GOOD) / "policy"
    answer = CliRunner().invoke(application(), [str(reach_run.directory), *FAST, "--policies", str(good)])
    assert answer.exit_code == 0, answer.output
    kept = json.loads((reach_run.directory / "ope" / "ope.json").read_text())
    assert {row["name"] for row in kept["ranked"]} == {"base", "policy"}


def test_an_unknown_run_and_an_unknown_method_are_refused(reach_run: Run, tmp_path: Path) -> None:
    missing = CliRunner().invoke(application(), ["other", "--runs", str(tmp_path)])
    assert isinstance(missing.exception, UsageError)
    wrong = CliRunner().invoke(application(), [str(reach_run.directory), "--method", "magic"])
    assert isinstance(wrong.exception, ConfigError)


@pytest.mark.parametrize("flag", ["--policies", "--truth", "--behaviour", "--held-out"])
def test_the_help_names_the_option(flag: str) -> None:
    assert flag in CliRunner().invoke(application(), ["--help"], env={"COLUMNS": "200"}).output
