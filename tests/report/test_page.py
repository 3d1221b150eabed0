from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from flowrl.errors import UsageError
from flowrl.learner.config import RunConfig
from flowrl.policies.io import save_policy
from flowrl.policies.mlp import FlowMLP
from flowrl.report import Filmstrip, write_report, write_summary
from flowrl.report.data import Findings, changed_settings
from tests.helpers import identity_spec
from tests.report.builders import empty_run, finished_run, log, rate

VOID = {"meta", "img", "br", "wbr", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements with their attributes; raises on an element closed in the wrong place."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.text = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(self.text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def plain(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    def attributes(self, name: str) -> list[str]:
        return [
            value or "" for _, attributes in self.elements for key, value in attributes.items() if key == name
        ]

    def rates(self) -> dict[str, float]:
        return {
            str(a["data-policy"]): float(str(a["data-rate"])) for _, a in self.elements if "data-policy" in a
        }


def test_the_report_states_the_numbers_of_the_result(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    page = Page(write_report(run))
    result = json.loads((run.directory / "result.json").read_text())
    assert page.rates() == {name: result[name]["success_rate"] for name in ("base", "tuned")}
    for text in (
        "46%",
        "33% to 60%",
        "94%",
        "84% to 98%",
        "23 of 50",
        "47 of 50",
        "12,345",
        "4,321",
        "2,600",
    ):
        assert text in page.plain, text
    assert "one ODE sample, random noise, 5 Euler steps" in page.plain
    assert "collects with the best of 16 samples" in page.plain
    assert "Of 50 common starts, 24 turned from failure to success and 0 back" in page.plain
    groups = {a["data-group"]: a["data-count"] for _, a in page.elements if "data-group" in a}
    assert groups == {"fixed": "24", "kept": "23", "failing": "3", "broken": "0"}


def test_the_report_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = Page(write_report(finished_run(tmp_path), [strip()]))
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "<script" not in page.text
    assert all(source.startswith("data:image/png;base64,") for source in page.attributes("src"))
    assert all(reference.startswith("#") for reference in page.attributes("href"))
    assert "@import" not in page.text


def test_every_drawing_has_a_description_and_ids_are_unique(tmp_path: Path) -> None:
    page = Page(write_report(finished_run(tmp_path), [strip()]))
    drawings = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(drawings) == 4  # two learning curves, critic's values, dual variable
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawings)
    assert all(attributes["alt"] for tag, attributes in page.elements if tag == "img")
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page.text)) <= set(ids)


def test_drawings_take_every_colour_from_the_page(tmp_path: Path) -> None:
    text = Page(write_report(finished_run(tmp_path))).text
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", drawings) == []
    for name in set(re.findall(r"var\(--([\w-]+)\)", text)):
        # Light, dark and print.
        assert len(re.findall(rf"--{name}:", text)) == 3, name


def test_an_interrupted_run_is_reported_as_far_as_it_came(tmp_path: Path) -> None:
    run = empty_run(tmp_path)
    page = Page(write_report(run))
    assert "ended before the base policy was evaluated" in page.plain
    assert "No metrics were logged" in page.plain
    assert page.rates() == {}

    run.write_json("result.json", {"base": rate(23).to_json()})
    log(run)
    page = Page(write_report(run))
    assert page.rates() == {"base": 0.46}
    assert "not evaluated" in page.plain
    assert "2,600" in page.plain  # the warm-up, from the metrics
    assert "Not recorded: the run did not finish." in page.plain


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>&\"'"
    run = empty_run(tmp_path, name=name)
    run.write_json("result.json", {"base": rate(23, rule="<b>rule</b>").to_json()})
    page = Page(write_report(run))
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert name in page.plain
    assert "<b>rule</b>" in page.plain


def test_controls_stand_between_base_and_tuned(tmp_path: Path) -> None:
    controls = {"best of 16": {"meaning": "acting alone", "evaluation": rate(26).to_json()}}
    page = Page(write_report(finished_run(tmp_path, controls=controls)))
    rows = [(a["data-key"], a["data-rate"]) for tag, a in page.elements if tag == "tr" and "data-key" in a]
    assert rows == [("base", "0.46"), ("control", "0.52"), ("tuned", "0.94")]
    assert "acting alone" in page.plain
    assert "the rest comes from learning with the critic" in page.plain


def test_caveats_name_what_the_run_does_not_show(tmp_path: Path) -> None:
    page = Page(write_report(finished_run(tmp_path, weights_changed=False)))
    for text in (
        "weights of the tuned policy equal the base's",
        "One training seed (0)",
        "one episode is 2.0 points",
        "No control was run",
        "Control decimation 5",
        "Simulation only",
        "not the best checkpoint",
    ):
        assert text in page.plain, text


def test_a_dual_variable_pinned_at_its_limit_is_pointed_out(tmp_path: Path) -> None:
    page = Page(write_report(finished_run(tmp_path)))
    assert "pinned at its lowest allowed value 0.1" in page.plain


def test_settings_that_differ_are_listed_with_default_and_meaning(tmp_path: Path) -> None:
    assert changed_settings(RunConfig()) == []
    settings = {s.key: s for s in changed_settings(empty_run(tmp_path).config())}
    assert (settings["algorithm.kl_budget"].value, settings["algorithm.kl_budget"].default) == ("0.05", "0.5")
    assert settings["driver.kind"].value == "asynchronous"
    assert "eps_KL" in settings["algorithm.kl_budget"].meaning
    assert "algorithm.dual_high" not in settings


def test_the_time_before_training_is_read_off_the_metrics(tmp_path: Path) -> None:
    found = Findings.read(finished_run(tmp_path))
    assert found.before_training_s == pytest.approx(20.0)
    assert found.warm_up_steps == 2600


def test_the_report_says_where_the_base_comes_from(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    lineage = {"trained_on": {"demonstrations": "demonstration"}, "steps": 2000, "seed": 7}
    save_policy(FlowMLP(identity_spec(2, 1, 3), width=8, depth=1), run.base, lineage)
    page = Page(write_report(run))
    assert "demonstrations (demonstration)" in page.plain
    assert "2,000" in page.plain


def test_strips_are_kept_so_that_the_report_can_be_built_again(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    first = write_report(run, [strip()]).read_text()
    assert "frames, left to right in time" in first
    moved = run.directory.rename(tmp_path / "moved")
    again = write_report(type(run)(moved)).read_text()
    assert re.findall('base64,[^"]+', again) == re.findall('base64,[^"]+', first)


def test_the_summary_has_a_row_per_seed_and_the_mean_over_seeds(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, seed, 20 + seed, tuned) for seed, tuned in enumerate((45, 46, 50))]
    write_report(runs[0])
    page = Page(write_summary([*runs, empty_run(tmp_path)], tmp_path / "summary.html"))
    assert [a["data-seed"] for _, a in page.elements if "data-seed" in a] == ["0", "1", "2"]
    assert page.rates() == pytest.approx({"base": 0.42, "tuned": 0.94})
    assert page.attributes("href").count("lift_sqam-1/report.html") == 1
    assert "not finished: lift_sqam-4" in page.plain
    assert "+52 points" in page.plain
    assert "http" not in page.text


def test_a_summary_of_nothing_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no finished run.*lift_sqam-1"):
        write_summary([empty_run(tmp_path)], tmp_path / "summary.html")


def strip() -> Filmstrip:
    frames = np.zeros((8, 12, 16, 3), np.uint8)
    frames[:, :, :, 0] = np.arange(8)[:, None, None] * 30
    return Filmstrip("Tuned policy", frames, True, "Start 200003: success after 31 steps.")
