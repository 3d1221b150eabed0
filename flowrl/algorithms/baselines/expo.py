"""EXPO: a cloned flow, small learned edits, and a critic that chooses among both (arXiv 2507.07986).

The flow imitates replay and never sees the critic's gradient. SAC trains a bounded edit of its samples. The
policy is implicit: the best of n samples and n edited samples by the critic. Equations are numbered as in
docs/algorithms/expo.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flowrl.acting import Actor
from flowrl.algorithms.baselines.cloning import check_counts, cloning_deviations, cloning_loss
from flowrl.algorithms.baselines.sac import SoftActorCritic, SoftConfig, wrap
from flowrl.algorithms.interface import Batches
from flowrl.config import configclass
from flowrl.critics.targets import CriticConfig
from flowrl.policies.edited import EditedPolicy
from flowrl.policies.interface import Context, FlowPolicy


@configclass
class EXPOConfig(SoftConfig):
    """Hyper-parameters of EXPO; defaults are those of its runs in the repository of OGPO (arXiv 2605.03065)."""

    kind: Literal["expo"] = "expo"
    """Name of the algorithm."""
    critic: CriticConfig = CriticConfig(heads=10, aggregation="subsample_min2")
    """The critic ensemble and its TD target; its aggregation also ranks the candidates."""
    bound: float = 0.1
    """The largest edit of a dimension, in units where the action's range is [-1, 1]."""
    collect_best_of: int = 8
    """n of collection: n samples of the flow and their n edits."""
    evaluate_best_of: int = 8
    """n of evaluation; 1 still chooses between a sample and its edit."""
    target_best_of: int = 8
    """n of the next action in the TD target."""
    source: str | None = None
    """Deviation when set: the named replay source that the flow clones; None is every batch of the critic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(
            collect_best_of=self.collect_best_of,
            evaluate_best_of=self.evaluate_best_of,
            target_best_of=self.target_best_of,
        )
        if not self.bound > 0:
            raise ValueError(f"bound is {self.bound}; it must be positive")


class EXPO(SoftActorCritic[EXPOConfig, EditedPolicy]):
    """The learner of EXPO. ``policy`` is the behaviour-cloned base; ``seed`` fixes all random draws."""

    def __init__(self, config: EXPOConfig, policy: FlowPolicy, seed: int = 0) -> None:
        settings = {"bound": config.bound, "width": config.width, "depth": config.depth}
        super().__init__(config, wrap(EditedPolicy, policy, seed, **settings), seed)
        self.optimise(
            {
                "flow": (self.policy.base, config.learning_rate),
                "editor": (self.policy.editor, config.learning_rate),
                "temperature": (self.temperature, config.temperature_rate),
            }
        )

    def update(self, batches: Batches) -> dict[str, float]:
        """One joint step of the critic (2), the edit (3) and the flow (4), then one of alpha."""
        batch, view = self.draw(batches)
        temporal, _, info = self.temporal_loss(batch, view)
        actor, log_density, actor_info = self.edit_loss(view.context.detach())
        cloning, cloned = cloning_loss(self.policy.base, batch, batches, self.config.source, self.generator)
        info |= actor_info | cloned | self.step(temporal + actor + cloning)
        info |= self.temper(log_density)
        self.critic.track()
        self.average_policy()
        return info

    def edit_loss(self, context: Context) -> tuple[Tensor, Tensor, dict[str, float]]:
        """SAC's loss of the edit on fresh samples of the flow (3), the edit's log-density (B,), metrics."""
        size, critic = self.policy.flat_size, self.critic.online
        first, second = self.normal(len(context), 2 * size).split(size, dim=1)
        with torch.no_grad():
            action = self.policy.clip(self.policy.base.sample(context, first))
            before = critic(critic.see(context), action).mean()
        edited, log_density = self.policy.edit(context, action, second)
        loss, info = self.soft_loss(critic, critic.see(context), edited, log_density)
        return loss, log_density, info | {"actor/edit_gain": info["actor/q"] - float(before)}

    def next_action(self, context: Context) -> Tensor:
        """The best of n samples and their edits by the target critic (1): (N, D), clipped."""
        return self._chooser(self.policy, self.config.target_best_of).choose(context, self.generator)

    def actor(self, purpose: Literal["collect", "evaluate"]) -> Actor:
        """The best of n samples and their edits by the target critic, with an n for each purpose."""
        config = self.config
        best_of = config.collect_best_of if purpose == "collect" else config.evaluate_best_of
        return self._chooser(self.acting, best_of)

    def deviations(self) -> list[str]:
        """Options in use that the publication does not have; choosing the best is the method itself."""
        return cloning_deviations(self.config.source, super().deviations(), chooses=True)

    def _chooser(self, policy: EditedPolicy, best_of: int) -> Actor:
        return Actor(policy, self.critic.target, best_of, score=self.config.critic.aggregation)
