"""What a finished comparison holds, checked against the run directories it was read from."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from flowrl.comparison import Comparison, Outcome, Place, Plan, compare
from flowrl.comparison.findings import outcome_matrix
from flowrl.comparison.table import markdown, rows
from flowrl.comparison.work import work
from flowrl.errors import UsageError
from flowrl.evaluation import Evaluation
from flowrl.learner.run import Run
from flowrl.policies.io import read_description
from flowrl.replay.reader import ReplayReader
from tests.comparison.conftest import REFUSE
from tests.reach import MAX_STEPS

RUNS = [("reach_sqam", 0), ("reach_sqam", 1), ("reach_imitation", 0), ("reach_imitation", 1)]


def stored(outcome: Outcome) -> dict:  # type: ignore[type-arg]
    return json.loads((outcome.place.directory / "comparison.json").read_text())


def test_there_is_one_run_per_recipe_and_seed_with_its_own_report(finished: Outcome) -> None:
    runs = sorted(path.name for path in (finished.place.directory / "runs").iterdir())
    assert runs == sorted(f"{recipe}-{seed}" for recipe, seed in RUNS)
    for recipe, seed in RUNS:
        run = finished.place.run(recipe, seed)
        assert run.report.is_file()
        assert (run.config().seed, run.config().pretrain.seed) == (seed, seed)


def test_all_runs_of_a_seed_share_base_and_demonstrations(finished: Outcome) -> None:
    def weights(run: Run) -> dict[str, str]:
        return read_description(run.base)["sha256"]

    for seed in (0, 1):
        runs = [finished.place.run(recipe, seed) for recipe in ("reach_sqam", "reach_imitation")]
        assert (
            weights(runs[0])
            == weights(runs[1])
            == read_description(finished.place.base(seed) / "policy")["sha256"]
        )
        demonstrations = [ReplayReader(run.replay, ["demonstrations"]).action for run in runs]
        assert np.array_equal(*demonstrations)
        assert runs[0].read_json("result.json")["base"] == runs[1].read_json("result.json")["base"]
    first, second = (finished.place.run("reach_sqam", seed) for seed in (0, 1))
    assert weights(first) != weights(second)


def test_runs_get_equal_budgets_up_to_their_last_episode(finished: Outcome) -> None:
    for recipe, seed in RUNS:
        result = finished.place.run(recipe, seed).read_json("result.json")
        assert 100 <= result["steps"] < 100 + MAX_STEPS
        # The budget ends a run at the end of an episode, before that episode's updates; less than one is owed.
        assert abs(result["updates"] - 0.5 * result["steps"]) < 0.5 * MAX_STEPS + 1
        assert 60 <= result["warm_up_steps"] < 60 + MAX_STEPS


def test_the_numbers_of_the_comparison_are_those_of_the_runs(finished: Outcome) -> None:
    data = stored(finished)
    assert data["format"] == 1
    assert (data["recipes"], data["seeds"]) == (["reach_sqam", "reach_imitation"], [0, 1])
    for found in data["runs"]:
        run = finished.place.run(found["recipe"], found["seed"])
        result = run.read_json("result.json")
        assert found["evaluations"]["base"] == result["base"]
        assert found["evaluations"]["tuned"] == result["tuned"]
        for name in ("steps", "updates", "train_s", "deviations"):
            assert found[name] == result[name]
    for summary in data["summaries"]:
        runs = [run for run in data["runs"] if run["recipe"] == summary["recipe"]]
        for name, rate in summary["rates"].items():
            by_seed = [run["evaluations"][name]["success_rate"] for run in runs]
            assert rate["by_seed"] == by_seed
            assert rate["mean"] == pytest.approx(np.mean(by_seed))
            assert rate["low"] <= rate["mean"] <= rate["high"]


def test_the_difference_to_the_first_recipe_is_that_of_the_rates(finished: Outcome) -> None:
    first, second = stored(finished)["summaries"]
    assert first["against_first"] is None
    own = second["against_first"]["own"]
    assert own["mean"] == pytest.approx(second["rates"]["tuned"]["mean"] - first["rates"]["tuned"]["mean"])
    assert (own["gained"] - own["lost"]) / 12 == pytest.approx(own["mean"])


def test_a_curve_has_the_base_the_common_evaluations_and_the_end(finished: Outcome) -> None:
    for summary in finished.comparison.summaries:
        updates = [point.updates for point in summary.curve]
        assert updates == sorted(updates)
        assert updates[:3] == [0, 15, 30]
        assert summary.curve[0].success == pytest.approx(summary.rates["base"].mean)
        assert summary.curve[-1].success == pytest.approx(summary.rates["tuned"].mean)
        assert summary.curve[-1].updates == summary.mean(lambda run: run.result["updates"])
        assert all(point.low <= point.success <= point.high for point in summary.curve)
        assert all(point.seeds == 2 for point in summary.curve)


def test_update_times_and_sizes_are_measured(finished: Outcome) -> None:
    sqam, imitation = (summary.finished[0].measured for summary in finished.comparison.summaries)
    for measured in (sqam, imitation):
        assert 0 < measured["update_ms"]["median"] < 1e4
        assert 0 < measured["update_ms"]["mean"] < 1e4
    acting = imitation["parameters"]["acting"]
    assert imitation["parameters"] == {"acting": acting, "trained": acting}
    # SQAM trains the policy, its slow base and the critic; both act with one policy.
    assert sqam["parameters"]["acting"] == acting
    assert sqam["parameters"]["trained"] > 2 * acting


def test_the_table_has_a_row_per_recipe_and_the_page_shows_it(finished: Outcome) -> None:
    cells = [row.cells for row in rows(finished.comparison)]
    assert [row[:2] for row in cells] == [("reach_sqam", "2 of 2"), ("reach_imitation", "2 of 2")]
    assert (finished.place.directory / "table.md").read_text() == markdown(finished.comparison)
    page = (finished.place.directory / "report.html").read_text()
    for row in cells:
        for cell in row:
            assert cell in page, cell


def test_the_page_is_self_contained_and_each_figure_is_a_file(finished: Outcome) -> None:
    page = (finished.place.directory / "report.html").read_text()
    assert not re.search(r"https?://|<script|@import", page)
    assert page.count("<svg") == 4
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert re.findall(r"#[0-9a-f]{6}\b", "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))) == []
    for name in set(re.findall(r"var\(--([\w-]+)\)", page)):
        assert len(re.findall(rf"--{name}:", page)) == 3, f"{name}: light, dark and print"
    for name in ("success-env-steps", "success-updates", "success-seconds", "final"):
        svg = (finished.place.figures / f"{name}.svg").read_text()
        assert "#fe0" not in svg, "placeholders of the page are no colours"
        assert (finished.place.figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for link in re.findall(r'href="([^"#]+)"', page):
        assert (finished.place.directory / link).is_file()


def test_a_moved_comparison_reads_the_same(finished: Outcome, plan: Plan, tmp_path: Path) -> None:
    moved = Place(shutil.copytree(finished.place.directory, tmp_path / "moved"))
    assert Plan.read(moved) == plan
    assert stored(compare(plan, moved, REFUSE)) == stored(finished)


def test_a_directory_keeps_its_plan(finished: Outcome, plan: Plan) -> None:
    other = Plan(plan.contenders, (0, 1, 2))
    with pytest.raises(UsageError, match=r"holds another comparison.*--resume"):
        compare(other, finished.place, REFUSE)


def test_only_one_process_may_own_a_directory(finished: Outcome, plan: Plan) -> None:
    with finished.place.owned(), pytest.raises(UsageError, match=r"in use by process \d+"):
        compare(plan, finished.place, REFUSE)


def test_unfinished_runs_are_named_and_left_out(finished: Outcome, plan: Plan, tmp_path: Path) -> None:
    place = Place(shutil.copytree(finished.place.directory, tmp_path / "part"))
    (place.run("reach_imitation", 1).directory / "measured.json").unlink()
    found = Comparison.read(plan, place, {("reach_imitation", 1): "exit code 1: out of luck"})
    assert [(run.recipe, run.seed) for run in found.unfinished] == [("reach_imitation", 1)]
    assert "1 of 2" in markdown(found)
    assert "reach_imitation, seed 1: exit code 1: out of luck" in markdown(found)
    against = found.summaries[1].against
    assert against is not None
    assert against.seeds == (0,)


def test_a_rule_with_a_critic_is_measured_on_the_base_too(
    finished: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowrl.acting import Actor
    from flowrl.algorithms.sqam import SQAM
    from flowrl.cli import compare as command

    original = SQAM.actor

    def best_of_four(self: SQAM, purpose: str) -> Actor:
        policy = original(self, "collect").policy
        return Actor(policy, self.critic.target, 4) if purpose == "evaluate" else Actor(policy)

    monkeypatch.setattr(SQAM, "actor", best_of_four)
    place = Place(shutil.copytree(finished.place.directory, tmp_path / "rules"))
    run = place.run("reach_sqam", 0)
    shutil.rmtree(run.directory)
    work([str(place.directory), "run", "reach_sqam", "0"], command._Simulators())
    measured, result = run.read_json("measured.json"), run.read_json("result.json")
    assert result["tuned"]["rule"].startswith("best of 4")
    assert result["base"]["rule"].startswith("one ODE sample")
    assert measured["base_own"]["rule"] == result["tuned"]["rule"]
    assert measured["tuned_common"]["rule"] == result["base"]["rule"]
    starts = [[e["seed"] for e in found["episodes"]] for found in (result["tuned"], measured["base_own"])]
    assert starts[0] == starts[1]
    plain = finished.comparison.summaries[0].finished[0].measured
    assert measured["parameters"]["acting"] > plain["parameters"]["acting"], "the critic acts, too"


def test_outcomes_are_ordered_by_start_whatever_order_they_came_in(finished: Outcome) -> None:
    evaluation = finished.comparison.summaries[0].finished[0].evaluation("tuned")
    turned = Evaluation(evaluation.rule, evaluation.episodes[::-1])
    assert np.array_equal(outcome_matrix([evaluation]), outcome_matrix([turned]))
