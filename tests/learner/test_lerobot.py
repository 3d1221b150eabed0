"""LeRobot's DiffusionPolicy from cloning to a tuned directory that LeRobot loads, on the reach task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion", reason="comes with the extra vla")

from flowrl.acting import Actor
from flowrl.config import load
from flowrl.errors import ResourceError
from flowrl.learner.base_policy import load_base
from flowrl.learner.config import RunConfig
from flowrl.learner.copies import policy_copies
from flowrl.learner.drivers import Simulation
from flowrl.learner.loop import create_run, finetune
from flowrl.learner.pretraining import clone
from flowrl.learner.run import Run
from flowrl.learner.statistics import statistics
from flowrl.ope.data import split
from flowrl.ope.fqe import FQE, FQEConfig
from flowrl.ope.likelihood import tractable
from flowrl.policies.io import load_flow_policy
from flowrl.policies.lerobot.adopt import adopt
from flowrl.policies.lerobot.base import LeRobotPolicy
from flowrl.policies.lerobot.config import AdoptConfig
from flowrl.policies.lerobot.diffusion import LeRobotDiffusion
from flowrl.policies.lerobot.memory import adapter_size, estimate, require_memory, shapes
from flowrl.policies.observation import Observation
from flowrl.replay.reader import ReplayReader
from flowrl.replay.schema import Kind, Outcome, OutcomeBy, Source, Step
from flowrl.replay.writer import StreamWriter
from flowrl.spec import Feature
from tests.learner.conftest import SETTINGS
from tests.reach import ReachEnv, expert_action

POLICY = {
    "kind": "lerobot",
    "type": "diffusion",
    "settings": {
        "n_obs_steps": 2,
        "horizon": 8,
        "n_action_steps": 3,
        "down_dims": [8, 16],
        "diffusion_step_embed_dim": 8,
        "n_groups": 4,
        "noise_scheduler_type": "DDIM",
        "num_inference_steps": 4,
    },
}


class PlacedReach(ReachEnv):
    """The reach task with a second feature, as LeRobot's policy without cameras demands one."""

    interface = replace(
        ReachEnv.interface,
        observation=(*ReachEnv.interface.observation, Feature("observation.environment_state", (1,))),
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        return _placed(observation), info

    def step(self, action: NDArray[Any], /) -> Any:
        observation, *rest = super().step(action)
        return (_placed(observation), *rest)


def _placed(observation: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    distance = np.linalg.norm(observation["observation.state"], keepdims=True)
    return {**observation, "observation.environment_state": distance.astype(np.float32)}


def config(**changes: object) -> RunConfig:
    small: dict[str, object] = {
        "policy": POLICY,
        "pretrain": {"steps": 20, "batch_size": 16},
        "budget": {"env_steps": None, "updates": 6},
        "warm_up": {"env_steps": 40, "updates": 3},
        "evaluation": {"episodes": 2, "periodic_episodes": 0},
        "checkpoint_every": 3,
    }
    return load(RunConfig, {**SETTINGS, **small, **changes})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("lerobot")
    env = PlacedReach()
    with StreamWriter.create(root / "replay", "demonstrations", env.interface, Kind.DEMONSTRATION) as writer:
        for seed in range(4):
            observation, _ = env.reset(seed=seed)
            writer.begin_episode(seed=seed, task="reach")
            ended = False
            while not ended:
                before, action = observation, expert_action(observation["observation.state"])
                observation, reward, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
                writer.append(Step(before, action, reward, terminated, truncated, source=Source.SCRIPTED))
            writer.close_episode(Outcome.SUCCESS, OutcomeBy.ENVIRONMENT, observation)
    clone(config(), root / "replay", root / "base")
    return root / "replay", root / "base"


@pytest.fixture
def simulation() -> Simulation:
    return Simulation(make=PlacedReach, command=(), description={"name": "reach", "settings": {}})


def tuned(config: RunConfig, prepared: tuple[Path, Path], simulation: Simulation, root: Path) -> Run:
    replay, base = prepared
    run = create_run(config, root, base, [replay / "demonstrations"])
    assert finetune(run, config, simulation).changed
    return run


def two_steps(seed: int = 0) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    before, now = torch.rand(2, 4, 3, generator=generator)
    return Observation(now, {}, ("",) * 4, (Observation(before),))


def test_a_cloned_policy_has_the_horizon_and_the_statistics_of_the_data(prepared: tuple[Path, Path]) -> None:
    replay, base = prepared
    policy = load_flow_policy(base)
    assert isinstance(policy, LeRobotPolicy)
    chunk = policy.chunk
    assert (chunk.past, chunk.length, chunk.executed, chunk.ahead) == (1, 3, 3, 4)
    reader = ReplayReader(replay)
    held = policy.processors.statistics()
    for name, expected in statistics(reader)["observation.state"].items():
        assert torch.equal(held["observation.state"][name], expected), name
    assert held["action"]["min"].tolist() == [-1, -1]
    raw = torch.rand(5, 8, 2) * 2 - 1
    assert torch.allclose(policy.raw_action(policy.flat_action(raw)), raw[:, 1:4], atol=1e-6)


@pytest.mark.parametrize("algorithm", ["sqam", "qf3"])
def test_the_tuned_directory_acts_alike_in_lerobot_alone(
    algorithm: str, prepared: tuple[Path, Path], simulation: Simulation, tmp_path: Path
) -> None:
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    from lerobot.policies.factory import make_pre_post_processors

    changes = {"kind": algorithm, "critic": {"heads": 2, "width": 16, "depth": 1}}
    if algorithm == "qf3":
        changes |= {"average_actor": 0.1, "evaluate_by": "ode"}
    run = tuned(config(algorithm=changes), prepared, simulation, tmp_path)
    policy = load_flow_policy(run.policy)
    observation = two_steps()
    noise = torch.randn(4, policy.flat_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = policy.raw_action(policy.sample(policy.encode(observation), noise))
    alone = DiffusionPolicy.from_pretrained(run.policy)
    before, after = make_pre_post_processors(alone.config, pretrained_path=str(run.policy))
    steps = torch.stack([observation.past[0].state, observation.state], dim=1)
    batch = before({"observation.state": steps[..., :2], "observation.environment_state": steps[..., 2:]})
    theirs = after(alone.predict_action_chunk(batch, noise=noise.view(4, 8, 2)))
    assert torch.allclose(ours, theirs.clamp(-1, 1), atol=1e-5)


def test_an_interrupted_run_goes_on_to_the_same_weights(
    prepared: tuple[Path, Path], simulation: Simulation, tmp_path: Path
) -> None:
    whole = tuned(config(), prepared, simulation, tmp_path / "whole")
    replay, base = prepared
    half = create_run(config(), tmp_path / "half", base, [replay / "demonstrations"])
    first = replace(config(), budget=replace(config().budget, updates=3))
    finetune(half, first, simulation)
    finetune(half, config(), simulation)
    ends = [load_flow_policy(run.policy).state_dict() for run in (whole, half)]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_lora_trains_adapters_alone_and_is_merged_when_stored(
    prepared: tuple[Path, Path], simulation: Simulation, tmp_path: Path
) -> None:
    lora = config(trainable="lora", lora={"rank": 2, "alpha": 4.0, "targets": r".*unet.*\.block\.0"})
    base = load_base(prepared[1], lora)
    trained = [name for name, parameter in base.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    count = sum(parameter.numel() for parameter in base.parameters() if parameter.requires_grad)
    targets = lora.lora.targets
    assert targets is not None
    # The second factor of a convolution has a kernel of 1.
    assert adapter_size(shapes(prepared[1] / "model.safetensors"), targets, 2) == count
    run = tuned(lora, prepared, simulation, tmp_path)
    names = [load_flow_policy(path).state_dict().keys() for path in (prepared[1], run.policy)]
    assert names[0] == names[1]
    before, after = (load_flow_policy(path).state_dict() for path in (prepared[1], run.policy))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(".block.0.weight" in name for name in changed)


def test_a_lerobot_directory_is_taken_over_with_other_steps_and_another_chunk(
    prepared: tuple[Path, Path],
) -> None:
    """A policy directory is a LeRobot directory: what flowrl wrote can be adopted again."""
    _, base = prepared
    policy = adopt(f"lerobot:{base}", PlacedReach.interface, AdoptConfig(flow_steps=2, chunk=2, executed=1))
    chunk = policy.chunk
    assert (chunk.past, chunk.length, chunk.executed, chunk.ahead) == (1, 2, 1, 5)
    assert policy.flow_steps == 2
    same = load_flow_policy(base).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in policy.state_dict().items())


def test_fitted_q_evaluation_sees_and_values_what_is_executed(prepared: tuple[Path, Path]) -> None:
    replay, base = prepared
    policy = load_flow_policy(base)
    data = split(ReplayReader(replay), 0.25, 0.95, "auto", 0)
    found = FQE(Actor(policy), data, FQEConfig(updates=5, seeds=1, batch_size=16, width=8)).run()
    assert np.isfinite(found.values).all()
    assert not tractable(policy)


def test_the_estimate_of_memory_counts_what_is_there(prepared: tuple[Path, Path]) -> None:
    _, base = prepared
    found = shapes(base / "model.safetensors")
    policy = load_flow_policy(base)
    total = sum(parameter.numel() for parameter in policy.parameters())
    assert sum(prod(shape) for shape in found.values()) == total
    head = sum(p.numel() for part in policy.head_parts for p in part.parameters())
    names = LeRobotDiffusion.encoder_names, LeRobotDiffusion.head_names
    expert, last = (estimate(found, *names, trainable, copies=3) for trainable in ("expert", "head"))
    assert (expert.parameters, expert.encoder, expert.trained) == (total, 0, total)
    assert expert.total == 4 * (3 * total + 3 * total)
    assert last.total == 4 * (3 * total + 3 * head)
    with pytest.raises(
        ResourceError, match=r"cuda has 0.00 GB free, training needs more: .* copies.*trainable=expert"
    ):
        require_memory(expert, 1000, "cuda")


def test_frozen_encoders_are_counted_once() -> None:
    found = {"encoder.a": (10, 10), "expert.b": (10,), "expert.head": (2, 1)}
    frozen = estimate(found, ("encoder.",), ("expert.head",), "expert", copies=4)
    assert (frozen.weights, frozen.training) == (4 * (100 + 4 * 12), 4 * 3 * 12)
    everything = estimate(found, ("encoder.",), ("expert.head",), "all", copies=4)
    assert (everything.weights, everything.training) == (4 * 4 * 112, 4 * 3 * 112)
    assert estimate(found, ("encoder.",), (), "lora", copies=2, adapters=7).training == 4 * 3 * 7


@pytest.mark.parametrize(("kind", "count"), [("sqam", 5), ("qf3", 4), ("imitation", 3), ("qc", 3)])
def test_copies_of_a_policy_are_counted_on_a_small_one(kind: str, count: int) -> None:
    chosen = load(RunConfig, {**SETTINGS, "algorithm": {"kind": kind, "average_actor": 0.1}}).algorithm
    assert policy_copies(chosen) == count
