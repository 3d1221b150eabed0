"""What a run left behind, read for its report: settings, evaluations, metrics; any part may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowrl.config import describe, to_mapping, yaml_text
from flowrl.evaluation import Evaluation
from flowrl.learner.config import RunConfig
from flowrl.learner.metrics import read_metrics
from flowrl.learner.run import Run
from flowrl.policies.io import read_description
from flowrl.report.comparison import Control

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """One configured value that differs from its default."""

    key: str
    value: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Curve:
    """Numbers by position, without gaps."""

    x: Column
    y: Column

    def __bool__(self) -> bool:
        return len(self.x) > 0


@dataclass(frozen=True)
class Findings:
    """A run as its report sees it. What an interrupted run lacks is None or empty."""

    run: Run
    config: RunConfig
    base: Evaluation | None
    tuned: Evaluation | None
    controls: tuple[Control, ...]
    result: Mapping[str, Any]
    environment: Mapping[str, Any]
    lineage: Mapping[str, Any]
    """Where the base comes from."""
    metrics: Mapping[str, Column]

    @classmethod
    def read(cls, run: Run) -> Findings:
        """Read a run directory. Raises ConfigError or CheckpointError for damaged files."""
        result = run.read_json("result.json")
        base, tuned = (
            Evaluation.from_json(result[name]) if name in result else None for name in ("base", "tuned")
        )
        controls = tuple(Control.from_json(*item) for item in result.get("controls", {}).items())
        environment = run.read_json("spec.json").get("settings") or {}
        lineage = read_description(run.base)["lineage"] if run.base.is_dir() else {}
        metrics = read_metrics(run.metrics)
        return cls(run, run.config(), base, tuned, controls, result, environment, lineage, metrics)

    def curve(self, name: str, x: str = "step", scale_x: float = 1.0) -> Curve:
        """A metric against another column, where both are numbers; empty when it was never logged."""
        if name not in self.metrics or x not in self.metrics:
            return Curve(np.zeros(0), np.zeros(0))
        known = np.isfinite(self.metrics[name]) & np.isfinite(self.metrics[x])
        return Curve(self.metrics[x][known] * scale_x, self.metrics[name][known])

    def last(self, name: str) -> float | None:
        """The newest logged value of a metric."""
        curve = self.curve(name)
        return float(curve.y[-1]) if curve else None

    @property
    def warm_up_steps(self) -> int:
        """Environment steps collected before the policy could move, as far as is known."""
        if "warm_up_steps" in self.result:
            return int(self.result["warm_up_steps"])
        trained = self.curve("run/env_steps", "run/online_steps")
        if not trained:
            return 0
        return int(trained.x[-1] - trained.y[-1]) if self.trained else int(trained.x[-1])

    @property
    def trained(self) -> bool:
        """Whether an update of the policy was logged."""
        return bool(self.last("run/updates"))

    @property
    def before_training_s(self) -> float | None:
        """Seconds before the first update of the policy: base evaluation and warm-up."""
        if not self.trained:
            return None
        first = int(np.flatnonzero(np.nan_to_num(self.metrics["run/updates"]) > 0)[0])
        return float(self.metrics["wall_s"][first] - self.metrics["run/seconds"][first])


def changed_settings(config: RunConfig) -> list[Setting]:
    """Every setting whose value differs from its default, with the default and its meaning."""
    mapping = to_mapping(config)
    changed: list[Setting] = []
    for row in describe(RunConfig):
        if row.only_for:
            key, kind = row.only_for.split("=")
            if _at(mapping, key) != kind:
                continue
        if not _present(mapping, row.key):
            continue
        value = yaml_text.scalar(_at(mapping, row.key))
        if value != row.default:
            changed.append(Setting(row.key, value, row.default, row.meaning))
    return changed


def _present(mapping: Mapping[str, Any], key: str) -> bool:
    """Whether the section that holds a key is there: an optional one may be null."""
    section, _, _ = key.rpartition(".")
    return not section or _at(mapping, section) is not None


def _at(mapping: Mapping[str, Any], key: str) -> Any:
    found: Any = mapping
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return found
