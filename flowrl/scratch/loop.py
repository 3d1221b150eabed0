"""The order of a run of training from scratch: resume or begin, train, measure, save the policy."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl import seeds
from flowrl.acting import save_actor
from flowrl.config import load_recipe
from flowrl.errors import Interrupted, NonFiniteLoss, Stopped, Terminated
from flowrl.learner.loop import resolve_device
from flowrl.learner.progress import Progress, Quiet
from flowrl.learner.run import Run
from flowrl.policies.io import save_policy
from flowrl.scratch.config import ScratchConfig
from flowrl.scratch.evaluation import Returns
from flowrl.scratch.trainer import Trainer
from flowrl.scratch.vector import MakeVector


@dataclass(frozen=True)
class ScratchResult:
    """What a finished run found, as stored in ``result.json``."""

    run: Run
    final: Returns
    steps: int
    updates: int
    train_s: float


def run_config(run: Run) -> ScratchConfig:
    """The configuration a run was made with. Raises ConfigError for a run of fine-tuning."""
    return load_recipe(ScratchConfig, str(run.directory / "config.yaml"))


def train(
    run: Run, config: ScratchConfig, make: MakeVector, progress: Progress | None = None
) -> ScratchResult:
    """Train from scratch; continues from the latest checkpoint when there is one.

    Raises Interrupted after saving when the user stops it, and NonFiniteLoss (the last good checkpoint is
    kept).
    """
    with run.logged():
        return _train(run, config, make, progress or Quiet())


def _train(run: Run, config: ScratchConfig, make: MakeVector, progress: Progress) -> ScratchResult:
    loaded = run.checkpoints.load_latest()
    trainer = Trainer(run, config, make, resolve_device(config.device), loaded)
    if loaded is not None:
        progress.say(f"resumed at step {trainer.steps:,}, {trainer.agent.updates:,} updates")
    try:
        with trainer.stop:
            trainer.train(progress)
            trainer.save()
            return _finish(trainer, progress)
    except KeyboardInterrupt as error:
        trainer.save()
        kind = Stopped if isinstance(error, Terminated) else Interrupted
        raise kind(
            f"stopped after step {trainer.steps:,}; everything is saved but the episodes that were running. "
            f"Go on with: flowrl train --resume {run.directory}"
        ) from error
    except NonFiniteLoss as error:
        raise NonFiniteLoss(
            f"{error}. The last good checkpoint is that of step {run.checkpoints.latest()} in "
            f"{run.checkpoints.directory}; lower update.actor_rate and critic.learning_rate, then start again"
        ) from error
    finally:
        trainer.close()


def _finish(trainer: Trainer, progress: Progress) -> ScratchResult:
    run, config = trainer.run, trainer.config
    policy = trainer.policy()
    save_policy(policy, run.policy, trainer.lineage())
    deployed = trainer.agent.actor.deployed().with_policy(policy)
    if not deployed.plain:
        save_actor(deployed, run.actor)
    progress.phase("evaluating the final policy")
    final = trainer.evaluate(seeds.reported(config.evaluation.final_episodes))
    result = ScratchResult(run, final, trainer.steps, trainer.agent.updates, trainer.seconds)
    run.write_json(
        "result.json",
        {
            "final": final.to_json(),
            "steps": result.steps,
            "updates": result.updates,
            "train_s": result.train_s,
        },
    )
    return result
