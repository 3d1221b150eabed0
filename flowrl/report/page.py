"""The page: findings, figures and words put into the template."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flowrl.evaluation import Evaluation
from flowrl.learner.run import Run
from flowrl.report import words
from flowrl.report.comparison import Pair, Paired, gain_sentence, pair
from flowrl.report.data import Findings, changed_settings
from flowrl.report.figures import learning_curves, metric_figures
from flowrl.report.filmstrip import Filmstrip, store, stored


@dataclass(frozen=True)
class Row:
    """A policy of the comparison table."""

    key: str
    name: str
    meaning: str
    rate: str
    interval: str
    low: float
    high: float
    value: float
    successes: int
    episodes: int
    length: str
    rule: str


@dataclass(frozen=True)
class Group:
    """Starts with the same two outcomes."""

    key: str
    title: str
    pairs: Sequence[Pair]


@dataclass(frozen=True)
class Fact:
    """A labelled number."""

    label: str
    value: str


def write_report(run: Run, strips: Sequence[Filmstrip] = ()) -> Path:
    """Write the run's self-contained ``report.html`` and return its path.

    ``strips`` are kept in the run directory; without any, the kept ones are shown, so that the report
    can be built again. A run that was interrupted is reported as far as it came.
    """
    if strips:
        store(run, strips)
    return write_page("report.html", report_context(run), run.report)


def report_context(run: Run) -> dict[str, Any]:
    """Everything the template shows."""
    found = Findings.read(run)
    paired = pair(found.base, found.tuned) if found.base and found.tuned else None
    return {
        "title": f"{run.name}: {found.config.environment.name} with {words.algorithm_name(found)}",
        "found": found,
        "algorithm": words.algorithm_name(found),
        "verdict": words.verdict(found),
        "rows": _rows(found),
        "gain": _gain(found),
        "paired": paired,
        "paired_sentence": words.paired_sentence(paired) if paired else "",
        "groups": _groups(paired) if paired else [],
        "curves": learning_curves(found),
        "figures": metric_figures(found),
        "strips": [(strip, _data_uri(strip.png)) for strip in stored(run)],
        "facts": _facts(found),
        "shares": _shares(found),
        "lineage": {key: _plain(value) for key, value in found.lineage.items()},
        "deviations": found.result.get("deviations"),
        "caveats": words.caveats(found),
        "signs": words.signs(found),
        "settings": changed_settings(found.config),
    }


def write_page(template: str, context: dict[str, Any], path: Path) -> Path:
    """Render a template of this package into a file, in one step."""
    jinja = Environment(
        loader=PackageLoader("flowrl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["percent"] = words.percent
    aside = path.with_name(f".{path.name}")
    aside.write_text(jinja.get_template(template).render(**context), encoding="utf-8")
    aside.replace(path)
    return path


def _rows(found: Findings) -> list[Row]:
    rows: list[Row] = []
    if found.base is not None:
        rows.append(_row("base", "Base", "what the run started from", found.base))
    rows.extend(_row("control", c.name, c.meaning, c.evaluation) for c in found.controls)
    if found.tuned is not None:
        meaning = f"after {words.algorithm_name(found)}"
        rows.append(_row("tuned", "Tuned", meaning, found.tuned))
    return rows


def _row(key: str, name: str, meaning: str, evaluation: Evaluation) -> Row:
    low, high = evaluation.interval
    return Row(
        key=key,
        name=name,
        meaning=meaning,
        rate=words.percent(evaluation.success_rate),
        interval=words.interval(evaluation),
        low=low,
        high=high,
        value=evaluation.success_rate,
        successes=evaluation.successes,
        episodes=len(evaluation.episodes),
        length=f"{evaluation.mean_length:.1f}",
        rule=evaluation.rule,
    )


def _gain(found: Findings) -> str:
    if found.base is None or found.tuned is None:
        return ""
    return gain_sentence(found.base, found.tuned, found.controls)


def _groups(paired: Paired) -> list[Group]:
    kinds = [
        ("fixed", "failed, now succeeds", False, True),
        ("kept", "succeeds both times", True, True),
        ("failing", "fails both times", False, False),
        ("broken", "succeeded, now fails", True, False),
    ]
    return [Group(key, title, paired.where(before, after)) for key, title, before, after in kinds]


def _facts(found: Findings) -> list[Fact]:
    result, config = found.result, found.config
    steps, updates = (
        result.get(k, found.last(f"run/{m}")) for k, m in (("steps", "env_steps"), ("updates",) * 2)
    )
    seconds = result.get("train_s", found.last("run/seconds"))
    if not found.trained and "steps" not in result:
        steps = updates = seconds = None
    changed = result.get("weights_changed")
    facts = [
        Fact("Environment steps after the warm-up", _count(steps)),
        Fact(
            "Environment steps of the warm-up",
            _count(found.warm_up_steps if found.metrics or result else None),
        ),
        Fact("Updates of the policy", _count(updates)),
        Fact("Critic-only updates in the warm-up", f"{config.warm_up.updates:,} asked for"),
        Fact("Training time", _seconds(seconds)),
        Fact("Base evaluation and warm-up", _seconds(found.before_training_s)),
        Fact("Driver", config.driver.kind),
        Fact("Seed of the run", str(config.seed)),
        Fact("Weights changed", "unknown" if changed is None else "yes" if changed else "no"),
    ]
    if found.base is not None and found.base.episodes:
        seeds = [episode.seed for episode in found.base.episodes]
        facts.append(Fact("Evaluation starts", f"{min(seeds)} to {max(seeds)} ({len(seeds)})"))
    return facts


def _shares(found: Findings) -> list[tuple[str, str, str]]:
    """Source, fraction asked for, fraction in force at the end."""
    asked, came = found.config.sampling.mix, found.result.get("shares", {})
    names = dict.fromkeys([*asked, *came])
    return [
        (name, words.percent(asked.get(name, 0.0)), words.percent(came[name]) if name in came else "unknown")
        for name in names
    ]


def _plain(value: Any) -> str:
    """A JSON value without its punctuation."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({inner})" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(inner) for inner in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _count(number: float | None) -> str:
    return "unknown" if number is None else f"{number:,.0f}"


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:,.0f} s"


def _data_uri(png: bytes) -> Markup:
    return Markup("data:image/png;base64," + base64.b64encode(png).decode())
