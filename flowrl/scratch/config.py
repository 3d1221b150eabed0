"""The configuration of training from scratch: what a recipe with ``kind: scratch`` fills."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from flowrl.activations import Activation
from flowrl.config import BY_KIND, configclass
from flowrl.config.recipes import recipe_layers
from flowrl.critics.aggregation import Aggregation
from flowrl.critics.targets import CriticConfig
from flowrl.learner.config import BudgetConfig, RunConfig, Setting


@configclass
class VectorConfig:
    """The task and how many copies of it run."""

    name: str = "go1_joystick"
    """A vector environment: flowrl train --environments lists them."""
    settings: dict[str, Setting] = {}
    """The environment's own settings, for example max_steps."""
    count: int = 16
    """N, copies stepped together."""


@configclass
class FlowActorConfig:
    """A flow policy trained by QF3 (arXiv 2610.08789)."""

    kind: Literal["qf3"] = "qf3"
    """Name of the actor."""
    alpha: float = 1.0
    """Clip of the velocity gap, per dimension: dimensions further from the replay action get no Q-gradient."""
    flow_weight: float = 0.3
    """lambda_cfm, weight of the flow-matching term, a sum over action dimensions."""
    width: int = 256
    """Units of a hidden layer."""
    depth: int = 2
    """Hidden layers."""
    activation: Activation = "silu"
    """Of the hidden layers."""
    layer_norm: bool = False
    """LayerNorm after each hidden layer."""
    flow_steps: int = 5
    """K, Euler steps of one sample."""
    collect_noise: Literal["random", "zero"] = "random"
    """Where the flow starts while collecting; the deployed policy starts from zero."""
    target_noise: Literal["random", "zero"] = "random"
    """Where the flow starts for the actions of TD targets."""


@configclass
class DeterministicActorConfig:
    """A deterministic tanh policy trained by the critic's gradient: TD3's actor (arXiv 1802.09477)."""

    kind: Literal["td3"] = "td3"
    """Name of the actor."""
    width: int = 256
    """Units of a hidden layer."""
    depth: int = 2
    """Hidden layers."""
    activation: Activation = "silu"
    """Of the hidden layers."""
    layer_norm: bool = False
    """LayerNorm after each hidden layer."""


@configclass
class ExplorationConfig:
    """Gaussian noise on collected actions, in units of the action's half range."""

    low: float = 0.001
    """Smallest standard deviation; each environment draws its own, uniformly, at every episode's start."""
    high: float = 0.4
    """Largest standard deviation."""
    random_steps: int = 0
    """Environment steps of uniform actions before the policy acts."""


@configclass
class UpdateConfig:
    """How the networks are updated."""

    batch_size: int = 256
    """B, transitions per update."""
    per_step: float = 2.0
    """Critic updates per step of all N environments."""
    policy_delay: int = 2
    """Critic updates for each update of the actor."""
    start_steps: int = 2000
    """Environment steps before the first update."""
    actor_rate: float = 3e-4
    """Adam's step size of the actor; the critic's is critic.learning_rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay of actor and critic: above 0 the optimiser is AdamW."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the actions of TD targets (target policy smoothing)."""
    target_noise_clip: float = 0.5
    """Limit of that noise."""
    actor_polyak: float | None = None
    """TD targets use a moving average of the actor of this rate; None uses the actor itself."""
    q_aggregation: Aggregation = "min"
    """How the heads' values become the one that the actor climbs."""


@configclass
class ScratchEvaluationConfig:
    """Evaluations by the deployed, deterministic policy, from starts used for nothing else."""

    episodes: int = 8
    """Episodes of an evaluation, run side by side."""
    every_steps: int = 50_000
    """Environment steps between two evaluations while training."""
    final_episodes: int = 32
    """Episodes of the reported evaluation, from starts of their own."""


ActorConfig = Annotated[FlowActorConfig | DeterministicActorConfig, BY_KIND]


@configclass
class ScratchConfig:
    """A run of training from scratch."""

    kind: Literal["scratch"] = "scratch"
    """Tells these recipes from those of fine-tuning."""
    name: str = "scratch"
    """First part of the run directory's name."""
    seed: int = 0
    """Seed of networks, draws and starts."""
    device: str = "cpu"
    """Where the networks learn: cpu, cuda, cuda:1, or auto."""
    environment: VectorConfig = VectorConfig()
    """The task."""
    actor: ActorConfig = FlowActorConfig()
    """The policy and how it climbs the critic."""
    critic: CriticConfig = CriticConfig()
    """The critic ensemble and its TD target."""
    discount: float = 0.97
    """gamma, per environment step."""
    reward_scale: float = 1.0
    """What rewards are multiplied by for the learner; returns are reported unscaled."""
    update: UpdateConfig = UpdateConfig()
    """How the networks are updated."""
    exploration: ExplorationConfig = ExplorationConfig()
    """Noise on collected actions."""
    replay_steps: int = 500_000
    """Transitions that the ring holds."""
    budget: BudgetConfig = BudgetConfig()
    """When training ends; evaluations do not count."""
    evaluation: ScratchEvaluationConfig = ScratchEvaluationConfig()
    """How returns are measured."""
    log_every: int = 5000
    """Environment steps between two log lines."""
    checkpoint_every: int = 200_000
    """Environment steps between two checkpoints; a checkpoint holds the ring."""
    keep_checkpoints: int = 1
    """Checkpoints kept beside the last."""

    def __post_init__(self) -> None:
        if self.environment.count < 1:
            raise ValueError("environment.count must be at least 1")
        if self.update.policy_delay < 1 or self.update.per_step <= 0:
            raise ValueError("update.policy_delay must be at least 1 and update.per_step positive")
        if not 0 <= self.exploration.low <= self.exploration.high:
            raise ValueError("exploration.low must lie between 0 and exploration.high")


def recipe_class(path: Path) -> type[RunConfig] | type[ScratchConfig]:
    """The configuration that a recipe fills: it says ``kind: scratch``, or it is one of fine-tuning."""
    scratch = any(layer.values.get("kind") == "scratch" for layer in recipe_layers(path))
    return ScratchConfig if scratch else RunConfig
