"""The policy a run starts from, made ready for what the run's configuration trains."""

from __future__ import annotations

from pathlib import Path

import torch

from flowrl.learner.config import RunConfig
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.io import load_flow_policy


def load_base(directory: Path, config: RunConfig, device: str = "cpu") -> FlowPolicy:
    """Read a run's base policy: precision, adapters and frozen parts as configured.

    Raises CheckpointError when it is damaged, UsageError when it has no velocity, ConfigError when it does not
    have what the configuration trains.
    """
    policy = load_flow_policy(directory, device)
    policy.compute_in(config.precision, config.activation_checkpointing)
    if config.trainable == "lora":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            policy.add_lora(config.lora)
    return policy.train_only(config.trainable)
