from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flowrl.cli.report import register
from flowrl.errors import UsageError
from tests.report.builders import finished_run


def app() -> typer.Typer:
    application = typer.Typer()
    register(application)
    return application


@pytest.mark.parametrize("where", ["lift_sqam-1", "lift_sqam-1/result.json"])
def test_the_report_is_built_again_from_a_name_or_a_file_of_the_run(tmp_path: Path, where: str) -> None:
    run = finished_run(tmp_path)
    answer = CliRunner().invoke(app(), [where, "--runs", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert answer.output.replace("\n", "") == str(run.report)
    assert run.report.is_file()


def test_an_unknown_run_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    finished_run(tmp_path)
    answer = CliRunner().invoke(app(), ["other", "--runs", str(tmp_path)])
    assert isinstance(answer.exception, UsageError)
    assert "lift_sqam-1" in str(answer.exception)
