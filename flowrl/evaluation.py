"""Evaluation: fixed start seeds, fixed policy noise, success with a confidence interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flowrl.acting import Actor
from flowrl.environment import Environment
from flowrl.rollout import Episode, FixedActor, require_environment, rollout
from flowrl.statistics import wilson_interval


@dataclass(frozen=True)
class Evaluation:
    """Episodes of one actor from fixed starts, and the acting rule they were run under."""

    rule: str
    episodes: tuple[Episode, ...]

    @property
    def successes(self) -> int:
        """Episodes that succeeded."""
        return sum(episode.success for episode in self.episodes)

    @property
    def success_rate(self) -> float:
        """Fraction of episodes that succeeded; 0 for none."""
        return self.successes / len(self.episodes) if self.episodes else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the success rate."""
        return wilson_interval(self.successes, len(self.episodes))

    @property
    def mean_length(self) -> float:
        """Mean episode length in control steps."""
        return sum(e.length for e in self.episodes) / len(self.episodes) if self.episodes else 0.0

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.success_rate:.0%} [{low:.0%}, {high:.0%}] of {len(self.episodes)} episodes"

    def to_json(self) -> dict[str, Any]:
        """Summary and episodes as JSON values."""
        return {
            "rule": self.rule,
            "success_rate": self.success_rate,
            "interval": list(self.interval),
            "mean_length": self.mean_length,
            "episodes": [asdict(episode) for episode in self.episodes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """Read what `to_json` wrote."""
        return cls(data["rule"], tuple(Episode(**episode) for episode in data["episodes"]))


def evaluate(
    env: Environment,
    actor: Actor,
    start_seeds: Sequence[int],
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> Evaluation:
    """Run one episode from each start seed. The policy's noise is fixed by the start, so results repeat."""
    require_environment(actor, env)
    episodes: list[Episode] = []
    for seed in start_seeds:
        episodes.append(rollout(env, FixedActor(actor), seed=seed))
        on_episode(episodes[-1])
    return Evaluation(actor.rule, tuple(episodes))
