"""The configuration of a run: what a recipe in ``configs/`` fills."""

from __future__ import annotations

from typing import Annotated, Literal

from flowrl.activations import Activation
from flowrl.algorithms.aloe import ALOEConfig
from flowrl.algorithms.baselines.dsrl import DSRLConfig
from flowrl.algorithms.baselines.expo import EXPOConfig
from flowrl.algorithms.baselines.fql import FQLConfig
from flowrl.algorithms.baselines.qc import QCConfig
from flowrl.algorithms.baselines.rlpd import RLPDConfig
from flowrl.algorithms.imitation import ImitationConfig
from flowrl.algorithms.ogpo import OGPOConfig
from flowrl.algorithms.qam import QAMConfig, TRQAMConfig
from flowrl.algorithms.qf3 import QF3Config
from flowrl.algorithms.sqam import SQAMConfig
from flowrl.config import BY_KIND, configclass
from flowrl.policies.interface import Precision, Trainable
from flowrl.policies.lerobot.config import AdoptConfig, LeRobotPolicyConfig
from flowrl.policies.lora import LoRAConfig
from flowrl.policies.pretrain import PretrainConfig
from flowrl.policies.vision import Backbone

Setting = str | int | float | bool | None


@configclass
class EnvironmentConfig:
    """The task that is learned."""

    name: str = "lift"
    """An environment of the registry: flowrl show --environments lists them."""
    settings: dict[str, Setting] = {}
    """The environment's own settings, for example decimation."""


@configclass
class DemonstrationConfig:
    """Demonstrations that a scripted expert gives when no replay is given."""

    episodes: int = 5
    """Successful episodes to keep."""
    noise: float = 0.3
    """Standard deviation of the noise injected while the expert acts, in units of the action's bounds."""
    seed: int = 0
    """Seed of starts and noise."""
    corrections: int = 0
    """Episodes that the base policy begins and a scripted person takes over; demo and compare add them."""
    patience: int | None = None
    """Steps the policy gets in those; None is half of the environment's time limit."""


@configclass
class ChunkConfig:
    """Action chunks."""

    length: int = 5
    """H, actions proposed at once."""
    executed: int | None = None
    """Actions executed before planning again; None executes the whole chunk."""


@configclass
class FlowMLPConfig:
    """A flow policy with an MLP velocity, for states."""

    kind: Literal["flow_mlp"] = "flow_mlp"
    """Name of the policy."""
    width: int = 256
    """Units of a hidden layer."""
    depth: int = 3
    """Hidden layers."""
    time_embedding: Literal["scalar", "fourier", "sinusoidal"] = "fourier"
    """How flow time enters the network."""
    activation: Activation = "gelu_tanh"
    """Of the hidden layers: gelu_tanh, gelu or relu; the exact gelu is faster on some CPUs."""
    layer_norm: bool = False
    """LayerNorm after each hidden layer."""
    flow_steps: int = 10
    """K, Euler steps of one sample."""


@configclass
class FlowTransformerConfig:
    """A flow policy with a transformer velocity, for states."""

    kind: Literal["flow_transformer"] = "flow_transformer"
    """Name of the policy."""
    width: int = 128
    """Model width."""
    depth: int = 4
    """Blocks."""
    heads: int = 4
    """Attention heads."""
    flow_steps: int = 10
    """K, Euler steps of one sample."""


@configclass
class FlowImageTransformerConfig:
    """A flow policy with a transformer velocity, for cameras and states."""

    kind: Literal["flow_image_transformer"] = "flow_image_transformer"
    """Name of the policy."""
    width: int = 128
    """Model width, also of the camera encoder."""
    depth: int = 3
    """Blocks over action tokens."""
    heads: int = 4
    """Attention heads."""
    queries: int = 4
    """Tokens that are kept of each camera's frame."""
    vision_depth: int = 2
    """Blocks over a camera's patches."""
    backbone: Backbone = "patches"
    """patches: two convolutions and the blocks, small. resnet18: torchvision's, from random weights."""
    shift: int = 4
    """Random shifts of the frames while cloning, in pixels; 0 for none."""
    flow_steps: int = 10
    """K, Euler steps of one sample."""


@configclass
class DiffusionMLPConfig:
    """A small native diffusion policy, run as a flow through the path wrapper."""

    kind: Literal["diffusion_mlp"] = "diffusion_mlp"
    """Name of the policy."""
    width: int = 256
    """Units of a hidden layer."""
    depth: int = 3
    """Hidden layers."""
    prediction: Literal["epsilon", "sample", "v_prediction"] = "v_prediction"
    """What the network predicts."""
    flow_steps: int = 10
    """K, steps of one sample."""


@configclass
class SamplingConfig:
    """How chunk batches are cut from replay."""

    batch_size: int = 256
    """B, chunks per batch."""
    end_rule: Literal["strict", "padded"] = "strict"
    """strict: a chunk that straddles the end of an episode is never drawn. padded: a success is absorbing."""
    reward: str = "recorded"
    """recorded, or a reward column <name>@<version> of the given streams; it also decides which episodes are
    successes. What the run collects itself has the reward of its environment."""
    reward_scale: float = 1.0
    """The learner's reward is reward_scale * (raw reward + reward_shift)."""
    reward_shift: float = 0.0
    """-1 turns the sparse success reward into a cost per step."""
    mix: dict[str, float] = {"demonstrations": 0.25, "online": 0.75}
    """Fractions of a batch by named source; they sum to 1."""
    named: dict[str, dict[str, float]] = {"success_mix": {"demonstrations": 0.25, "successes": 0.75}}
    """Mixes that an algorithm may ask for by name."""
    decoded_mb: int = 1024
    """Memory for decoded camera frames, MB; 0 decodes the frames of every batch anew."""

    def __post_init__(self) -> None:
        if self.decoded_mb < 0:
            raise ValueError(f"decoded_mb is {self.decoded_mb}; it must not be negative")


@configclass
class WarmUpConfig:
    """What happens before the policy may move."""

    env_steps: int = 2500
    """Steps collected with the base policy."""
    updates: int = 1500
    """Updates of the critics alone."""


@configclass
class InterleavedConfig:
    """One process collects and trains in turn; deterministic on a CPU."""

    kind: Literal["interleaved"] = "interleaved"
    """Name of the driver."""
    updates_per_step: float = 0.3
    """Updates owed for each environment step."""


@configclass
class AsynchronousConfig:
    """Workers and learner are separate processes that meet at the replay and the weights directory."""

    kind: Literal["asynchronous"] = "asynchronous"
    """Name of the driver."""
    workers: int = 1
    """Collecting processes."""
    updates_per_step_low: float = 0.1
    """Workers wait when fewer updates than this have been made per step."""
    updates_per_step_high: float = 1.0
    """The learner waits when more updates than this have been made per step."""
    publish_every: int = 20
    """Updates between two publications of the weights; the replay is refreshed at the same rate."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.publish_every < 1:
            raise ValueError("workers and publish_every must be at least 1")
        if not 0 <= self.updates_per_step_low < self.updates_per_step_high:
            raise ValueError("updates_per_step_low must be at least 0 and below updates_per_step_high")


@configclass
class BudgetConfig:
    """When training ends: at whichever limit comes first, warm-up not counted."""

    env_steps: int | None = 30_000
    """Environment steps."""
    updates: int | None = None
    """Updates."""
    wall_s: float | None = None
    """Seconds of training; a resumed run keeps its clock."""

    def __post_init__(self) -> None:
        limits = {"env_steps": self.env_steps, "updates": self.updates, "wall_s": self.wall_s}
        if all(limit is None for limit in limits.values()):
            raise ValueError("training would never end: set env_steps, updates or wall_s")
        for name, limit in limits.items():
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} is {limit}; it must be positive, or null for no limit")


@configclass
class EvaluationConfig:
    """Evaluations; every start seed is used for nothing else."""

    episodes: int = 50
    """Episodes of the reported evaluation, before and after."""
    offset: int = 0
    """First start of the reported evaluation: another offset is another, unseen set of starts."""
    periodic_episodes: int = 20
    """Episodes of an evaluation while training; 0 for none."""
    every_updates: int = 1000
    """Updates between two of those."""
    workers: int = 2
    """Evaluating processes of the asynchronous driver."""


PolicyConfig = Annotated[
    FlowMLPConfig
    | FlowTransformerConfig
    | FlowImageTransformerConfig
    | DiffusionMLPConfig
    | LeRobotPolicyConfig,
    BY_KIND,
]
AlgorithmConfig = Annotated[
    SQAMConfig
    | QAMConfig
    | TRQAMConfig
    | QF3Config
    | OGPOConfig
    | ALOEConfig
    | ImitationConfig
    | QCConfig
    | FQLConfig
    | DSRLConfig
    | EXPOConfig
    | RLPDConfig,
    BY_KIND,
]
DriverConfig = Annotated[InterleavedConfig | AsynchronousConfig, BY_KIND]


@configclass
class RunConfig:
    """A fine-tuning run."""

    name: str = "run"
    """First part of the run directory's name."""
    seed: int = 0
    """Seed of the algorithm, the sampler and the collected episodes."""
    device: str = "cpu"
    """Where the networks learn: cpu, cuda, cuda:1, or auto. Workers act on the CPU."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The task that is learned."""
    demonstrations: DemonstrationConfig = DemonstrationConfig()
    """Used by demo and collect."""
    chunk: ChunkConfig = ChunkConfig()
    """Action chunks of a new policy; a given policy keeps its own."""
    policy: PolicyConfig = FlowMLPConfig()
    """The network of a new policy; a given policy keeps its own."""
    trainable: Trainable = "expert"
    """What fine-tuning changes: all, everything behind the encoder of images (expert), low-rank adapters (lora),
    or the last layers (head). Cloning always trains everything."""
    lora: LoRAConfig = LoRAConfig()
    """The adapters of trainable: lora."""
    precision: Precision = "float32"
    """In which type a policy of LeRobot's computes: float32, or bfloat16 under autocast."""
    activation_checkpointing: bool = False
    """Policies of LeRobot's: compute the network twice instead of keeping what is between its layers."""
    adopt: AdoptConfig = AdoptConfig()
    """What is changed in a LeRobot checkpoint given as the policy."""
    pretrain: PretrainConfig = PretrainConfig()
    """Behaviour cloning of a new policy."""
    algorithm: AlgorithmConfig = SQAMConfig()
    """How the policy improves."""
    sampling: SamplingConfig = SamplingConfig()
    """How batches are cut from replay."""
    warm_up: WarmUpConfig = WarmUpConfig()
    """What happens before the policy may move."""
    driver: DriverConfig = InterleavedConfig()
    """How collection and training share the time."""
    budget: BudgetConfig = BudgetConfig()
    """When training ends."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How success is measured."""
    log_every: int = 50
    """Updates between two log lines."""
    checkpoint_every: int = 1000
    """Updates between two checkpoints."""
    keep_checkpoints: int = 3
    """Checkpoints kept beside the first and the last."""
