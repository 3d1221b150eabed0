"""Policies: every flow or diffusion policy behind one velocity (seam 3)."""

from flowrl.policies.interface import ChunkPolicy, Context, FlowPolicy
from flowrl.policies.io import create_policy, load_policy, save_policy
from flowrl.policies.observation import Observation

__all__ = [
    "ChunkPolicy",
    "Context",
    "FlowPolicy",
    "Observation",
    "create_policy",
    "load_policy",
    "save_policy",
]
