"""One run of a comparison, read from its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowrl.comparison.measure import periodic_points
from flowrl.comparison.place import MEASURED, Place
from flowrl.evaluation import Evaluation


@dataclass(frozen=True)
class RunFound:
    """One run. An unfinished one has a ``reason`` and nothing else."""

    recipe: str
    seed: int
    directory: str
    reason: str = ""
    base: Evaluation | None = None
    """The base by one plain sample."""
    base_own: Evaluation | None = None
    """The base under the recipe's evaluation rule with the trained critic; ``base`` where that is the same."""
    tuned: Evaluation | None = None
    """The tuned policy under the recipe's evaluation rule."""
    tuned_common: Evaluation | None = None
    """The tuned policy by one plain sample."""
    own_base_measured: bool = False
    """Whether ``base_own`` is a measurement of its own."""
    result: Mapping[str, Any] = field(default_factory=dict[str, Any])
    measured: Mapping[str, Any] = field(default_factory=dict[str, Any])
    points: Sequence[Mapping[str, float]] = ()
    """Evaluations made while training, and the last one."""

    @property
    def finished(self) -> bool:
        """Whether the run and its measurements are complete."""
        return self.tuned is not None

    @classmethod
    def read(cls, place: Place, recipe: str, seed: int, reason: str = "not run yet") -> RunFound:
        """Read a run's directory; ``reason`` is kept when it is not finished."""
        run = place.run(recipe, seed)
        where = run.directory.relative_to(place.directory).as_posix()
        measured, result = run.read_json(MEASURED), run.read_json("result.json")
        if not measured:
            return cls(recipe, seed, where, reason)
        base, tuned = Evaluation.from_json(result["base"]), Evaluation.from_json(result["tuned"])
        own = measured["base_own"]
        last = {
            "updates": float(result["updates"]),
            "env_steps": float(result["steps"]),
            "seconds": float(result["train_s"]),
            "success": tuned.success_rate,
        }
        return cls(
            recipe,
            seed,
            where,
            base=base,
            base_own=base if own is None else Evaluation.from_json(own),
            own_base_measured=own is not None,
            tuned=tuned,
            tuned_common=Evaluation.from_json(measured["tuned_common"]),
            result=result,
            measured=measured,
            points=[*periodic_points(run), last],
        )

    def evaluation(self, name: str) -> Evaluation:
        """One of the four evaluations of a finished run."""
        found = getattr(self, name)
        assert isinstance(found, Evaluation)
        return found

    def to_json(self) -> dict[str, Any]:
        """The run as JSON values; evaluations with every episode."""
        names = ("base", "base_own", "tuned", "tuned_common")
        evaluations = {n: None if getattr(self, n) is None else self.evaluation(n).to_json() for n in names}
        counts = ("steps", "warm_up_steps", "updates", "train_s", "weights_changed", "deviations")
        return {
            "recipe": self.recipe,
            "seed": self.seed,
            "directory": self.directory,
            "finished": self.finished,
            "reason": self.reason,
            **{name: self.result.get(name) for name in counts},
            **{name: self.measured.get(name) for name in ("parameters", "update_ms", "base_sha256")},
            "own_base_measured": self.own_base_measured,
            "evaluations": evaluations,
            "points": [dict(point) for point in self.points],
        }
