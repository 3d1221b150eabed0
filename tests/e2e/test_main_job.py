"""The README's commands, as a newcomer types them, on the real simulator with small budgets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowrl.cli.app import build
from flowrl.replay.reader import ReplayReader
from tests.waiting import wait_for

SMALL = [
    "pretrain.steps=200",
    "warm_up.env_steps=120",
    "warm_up.updates=20",
    "budget.env_steps=null",
    "budget.wall_s=null",
    "budget.updates=60",
    "evaluation.episodes=4",
    "evaluation.workers=1",
    "checkpoint_every=20",
    "log_every=10",
]
DEADLINE = 240.0


def flowrl(*arguments: str | Path, expect: int = 0) -> str:
    """Run a command in this process; workers are processes of their own all the same."""
    result = CliRunner().invoke(build(), [str(a) for a in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == expect, result.output
    return result.output


@pytest.mark.slow
def test_the_demonstration_leaves_its_result_report_and_films(tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    flowrl("demo", *SMALL, "--json", out, "--runs", tmp_path / "runs", "--explain")
    result = json.loads(out.read_text())
    assert {"base_success", "tuned_success", "seeds", "episodes", "acting_rule", "wall_s"} <= set(result)
    assert result["episodes"] == 4
    assert result["acting_rule"].startswith("one ODE sample")
    run = tmp_path / "runs" / "demo-1"
    controls = json.loads((run / "result.json").read_text())["controls"]
    assert set(controls) == {"best-of-N on the base", "success-only cloning"}
    report = (run / "report.html").read_text()
    assert report.count("<img") + report.count("<svg") >= 4
    assert len(list((run / "filmstrips").glob("*.png"))) == 2


@pytest.mark.slow
def test_the_journey_of_an_own_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flowrl("collect", "lift_sqam", "--to", "replays/lift", "--episodes", "2")
    flowrl("pretrain", "lift_sqam", "pretrain.steps=200", "--replay", "replays/lift", "--to", "policies/lift")
    checked = flowrl("check", "--policy", "policies/lift", "--replay", "replays/lift", "--env", "lift")
    assert "error" not in checked
    refused = flowrl("check", "--policy", "policies/lift", "--env", "lift", "--set", "decimation=1", expect=1)
    assert "control_decimation" in refused
    arguments = ["finetune", "lift_sqam", *SMALL, "--policy", "policies/lift", "--replay", "replays/lift"]

    # Stop it by SIGTERM while it trains, as a job system would; then go on.
    process = subprocess.Popen([sys.executable, "-m", "flowrl", *arguments, "budget.updates=100000"])
    try:
        wait_for_checkpoint(tmp_path / "runs" / "lift_sqam-1", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75
    finally:
        process.kill()
    done = int((tmp_path / "runs/lift_sqam-1/checkpoints/latest").read_text())
    rows = ReplayReader("runs/lift_sqam-1/replay").rows
    shorten_budget(tmp_path / "runs/lift_sqam-1/config.yaml", done + 20)
    flowrl("finetune", "--resume", "lift_sqam-1")
    result = json.loads((tmp_path / "runs/lift_sqam-1/result.json").read_text())
    assert result["updates"] == done + 20
    assert result["weights_changed"]
    assert ReplayReader("runs/lift_sqam-1/replay").rows >= rows

    flowrl("evaluate", "lift_sqam-1", "--episodes", "2", "--offset", "1000", "--json", "evaluation.json")
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert [episode["seed"] for episode in evaluation["episodes"]] == [201_000, 201_001]
    assert "demonstrations" in flowrl("replay", "info", "runs/lift_sqam-1/replay")
    flowrl("replay", "verify", "runs/lift_sqam-1/replay")
    flowrl("report", "lift_sqam-1")


def wait_for_checkpoint(run: Path, process: subprocess.Popen[bytes]) -> None:
    def there() -> bool:
        assert process.poll() is None, f"the run ended with {process.returncode}"
        return (run / "checkpoints" / "40").is_dir()

    wait_for(there, "a checkpoint", DEADLINE)


def shorten_budget(config: Path, updates: int) -> None:
    text = config.read_text()
    assert "updates: 100000" in text
    config.write_text(text.replace("updates: 100000", f"updates: {updates}"))
