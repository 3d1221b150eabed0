"""QC: Q-learning with action chunks and a cloned flow, from which the critic chooses (arXiv 2507.07969).

The flow is never trained on the critic. It proposes N chunks, and the critic takes the best of them, when
acting and in its own TD target. Equations are numbered as in docs/algorithms/qc.md.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from flowrl.acting import Actor
from flowrl.algorithms.base import ActorCritic, ActorCriticConfig
from flowrl.algorithms.baselines.cloning import check_counts, cloning_deviations, cloning_loss
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context, FlowPolicy


@configclass
class QCConfig(ActorCriticConfig):
    """Hyper-parameters of QC; defaults are the authors' for OGBench."""

    kind: Literal["qc"] = "qc"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(heads=2, aggregation="mean")
    """The critic ensemble and its TD target."""
    collect_best_of: int = 32
    """N: collect with the best of N samples by the critic."""
    evaluate_best_of: int = 32
    """N of evaluation; 1 measures the cloned flow alone."""
    target_best_of: int = 32
    """N of the next action in the TD target."""
    source: str | None = None
    """Deviation when set: the named replay source that the flow clones; None is every batch of the critic."""

    def __post_init__(self) -> None:
        check_counts(
            collect_best_of=self.collect_best_of,
            evaluate_best_of=self.evaluate_best_of,
            target_best_of=self.target_best_of,
        )


class QC(ActorCritic[QCConfig, FlowPolicy]):
    """The learner of QC: a flow that clones, a critic that chooses.

    ``policy`` is the behaviour-cloned base. ``seed`` fixes all random draws.
    """

    def __init__(self, config: QCConfig, policy: FlowPolicy, seed: int = 0) -> None:
        super().__init__(config, policy, seed)
        self.optimise({"flow": (self.policy, config.learning_rate)})

    def update(self, batches: Batches) -> dict[str, float]:
        """One joint step of the critic (1, 2) and of the flow (3)."""
        batch, view = self.draw(batches)
        temporal, _, info = self.temporal_loss(batch, view)
        cloning, cloned = cloning_loss(self.policy, batch, batches, self.config.source, self.generator)
        info |= cloned | self.step(temporal + cloning)
        self.critic.track()
        self.average_policy()
        return info

    def next_action(self, context: Context) -> Tensor:
        """The best of N samples by the target critic's mean (1): (N, D), clipped."""
        chooser = Actor(self.policy, self.critic.target, self.config.target_best_of)
        return chooser.choose(context, self.generator)

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """The best of N samples by the target critic, with an N for each purpose."""
        config = self.config
        best_of = config.collect_best_of if purpose == "collect" else config.evaluate_best_of
        return Actor(self.acting, self.critic.target if best_of > 1 else None, best_of)

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have; choosing the best of N is the method itself."""
        return cloning_deviations(self.config.source, super().deviations(), chooses=True)
