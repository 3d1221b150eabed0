"""Small policies of every kind."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from flowrl.policies.image_transformer import FlowImageTransformer
from flowrl.policies.interface import ChunkPolicy, FlowPolicy
from flowrl.policies.io import KINDS

_SMALL: dict[str, Any] = {"width": 16, "depth": 2, "flow_steps": 3}
_SMALL["base"] = {"kind": "flow_mlp", "config": dict(_SMALL)}


def class_of(kind: str) -> type[ChunkPolicy]:
    module, _, name = KINDS[kind].partition(":")
    return getattr(importlib.import_module(module), name)


def small(kind: str) -> dict[str, Any]:
    """Settings that make a small policy of ``kind``; three flow steps where it has them."""
    known = inspect.signature(class_of(kind)).parameters
    return {name: value for name, value in _SMALL.items() if name in known}


OWN_KINDS = [kind for kind in KINDS if not kind.startswith("lerobot_")]
"""Kinds that need no checkpoint of LeRobot's (tests/policies/lerobot has those)."""
STATE_KINDS = sorted(kind for kind in OWN_KINDS if not issubclass(class_of(kind), FlowImageTransformer))
"""Those that need no camera."""
FLOWS = [kind for kind in STATE_KINDS if issubclass(class_of(kind), FlowPolicy)]
"""Those with a velocity."""
