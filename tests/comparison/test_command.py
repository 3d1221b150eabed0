"""``flowrl compare`` as people type it: real processes on the reach task, kills, Ctrl-C, and failures."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowrl.cli.app import build
from flowrl.comparison import Outcome, Place, Plan
from flowrl.errors import ConfigError, UsageError
from flowrl.policies.io import read_description
from tests.comparison.conftest import paths
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
DEADLINE = 240.0


def flowrl(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(build(), [str(a) for a in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.comparison.reach_flowrl", "compare", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def digest(directory: Path) -> dict[str, tuple[str, int]]:
    """Hash and time of every file below a directory."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files}


def children(process: subprocess.Popen[str], place: Place, job: str) -> int | None:
    """The process of a job, as the comparison started it."""
    for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
        if str(place.directory) in words and "-".join(words[-3:-1]) == job:
            return int(number)
    return None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_interrupted_comparisons_go_on_to_the_same_result(
    finished: Outcome, plan: Plan, tmp_path: Path
) -> None:
    place = Place(shutil.copytree(finished.place.directory, tmp_path / "story"))
    for name in ("reach_sqam-1", "reach_imitation-1"):
        shutil.rmtree(place.directory / "runs" / name)
    kept = [place.run(recipe, 0).directory for recipe in ("reach_sqam", "reach_imitation")]
    before = [digest(directory) for directory in kept]
    run = place.run("reach_sqam", 1)

    # kill -9 of a run: the other one finishes, the comparison says so and ends with 1.
    process = start("--resume", place.directory, "--jobs", "2")
    try:
        wait_for(
            lambda: (run.checkpoints.latest() or 0) >= 10 or process.poll() is not None, "training", DEADLINE
        )
        number = children(process, place, "reach_sqam-1")
        assert number is not None
        os.kill(number, signal.SIGKILL)
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "reach_sqam-1: ended by SIGKILL" in output
    assert place.run("reach_imitation", 1).read_json("measured.json")

    # Ctrl-C while the killed run goes on: it saves, and 130 says that it can be resumed.
    process = start("--resume", place.directory)
    try:
        wait_for(
            lambda: place.progress("reach_sqam-1").is_file() or process.poll() is not None, "a run", DEADLINE
        )
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert re.search(r"5 of 6 jobs done.*flowrl compare --resume", output)

    assert flowrl("compare", "--resume", place.directory)[0] == 0
    assert [digest(directory) for directory in kept] == before
    assert numbers(place) == numbers(finished.place)
    tuned, reference = (where.run("reach_sqam", 1).policy for where in (place, finished.place))
    assert read_description(tuned)["sha256"] == read_description(reference)["sha256"]


def numbers(place: Place) -> object:
    """Everything that repeats: no times."""
    data = json.loads((place.directory / "comparison.json").read_text())
    for run in data["runs"]:
        del run["train_s"], run["update_ms"]
    for each in [point for run in data["runs"] for point in run["points"]] + [
        point for summary in data["summaries"] for point in summary["curve"]
    ]:
        del each["seconds"]
    return data


@pytest.mark.slow
def test_a_failing_recipe_is_reported_and_the_other_is_compared_all_the_same(
    recipes: Path, tmp_path: Path
) -> None:
    words = paths(recipes, "reach_imitation", "reach_broken")
    code, output = flowrl(
        "compare", *words, "--seeds", "1", "--updates", "12", "--to", tmp_path / "out", "--episodes", "2"
    )
    assert code == 1
    said = (tmp_path / "out" / "logs" / "reach_broken-0.log").read_text().splitlines()[-1]
    assert said.startswith("error: ")
    assert f"failed: reach_broken-0: exit code 1: {said}" in output
    data = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert {run["recipe"]: run["finished"] for run in data["runs"]} == {
        "reach_imitation": True,
        "reach_broken": False,
    }
    assert [run["updates"] for run in data["runs"]] == [12, None]
    assert "Not finished" in (tmp_path / "out" / "report.html").read_text()


def test_a_finished_comparison_is_shown_again_without_running_anything(finished: Outcome) -> None:
    code, output = flowrl("compare", "--resume", finished.place.directory)
    assert code == 0
    assert "tuned, own rule" in output
    assert "2 of 2" in output
    assert re.search(r"reach_imitation (is (better|worse) than|and) reach_sqam", output)


def test_refusals_come_before_anything_is_made(
    recipes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.yaml").write_text(f"extends: {recipes}/reach_sqam.yaml\nbudget: {{env_steps: 7}}\n")
    (one,) = paths(recipes, "reach_sqam")
    with pytest.raises(UsageError, match=r"budget\.env_steps is 100 in reach_sqam and 7 in other"):
        flowrl("compare", one, "other.yaml")
    with pytest.raises(UsageError, match="there twice"):
        flowrl("compare", one, one)
    with pytest.raises(ConfigError, match="the nearest is"):
        flowrl("compare", "lift_sqm")
    with pytest.raises(UsageError, match="exclude each other"):
        flowrl("compare", one, "--seeds", "2", "--seed-list", "0,1")
    with pytest.raises(UsageError, match="whole numbers"):
        flowrl("compare", one, "--seed-list", "0-3")
    with pytest.raises(UsageError, match="only --jobs"):
        flowrl("compare", "--resume", "runs/compare-1", "--seeds", "2")
    with pytest.raises(UsageError, match="interleaved"):
        flowrl("compare", one, "--driver", "recipe", "--updates-per-step", "1.0")
    with pytest.raises(UsageError, match="no policy at nowhere"):
        flowrl("compare", one, "--policy", "nowhere")
    assert not (tmp_path / "runs").exists()
