"""How often an algorithm holds a policy, counted on one of a few weights."""

from __future__ import annotations

from flowrl.algorithms.base import PolicyLearner
from flowrl.algorithms.factory import make_algorithm
from flowrl.learner.config import AlgorithmConfig
from flowrl.normalisation import Normalisation
from flowrl.policies.interface import FlowPolicy
from flowrl.policies.mlp import FlowMLP
from flowrl.spec import ActionSpec, Feature, Spec

_SPEC = Spec(
    (Feature("observation.state", (1,)),),
    ActionSpec(("a",), (-1.0,), (1.0,)),
    1.0,
    normalisation=Normalisation((0.0,), (1.0,), (-1.0,), (1.0,), (0.0,), (1.0,)),
).with_chunk(1)


def policy_copies(config: AlgorithmConfig) -> int:
    """Flow policies in memory while ``config`` trains: the run's base, and all that the algorithm keeps."""
    algorithm = make_algorithm(config, FlowMLP(_SPEC, width=1, depth=1, flow_steps=1), 0)
    assert isinstance(algorithm, PolicyLearner)
    held = {
        id(part)
        for module in algorithm.modules.values()
        for part in module.modules()
        if isinstance(part, FlowPolicy)
    }
    return 1 + len(held)
