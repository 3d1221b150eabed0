"""From an algorithm's configuration to the algorithm. A new algorithm is one line here."""

from __future__ import annotations

from flowrl.algorithms.imitation import Imitation, ImitationConfig
from flowrl.algorithms.interface import Algorithm
from flowrl.algorithms.sqam import SQAM, SQAMConfig
from flowrl.policies.interface import FlowPolicy


def make_algorithm(config: SQAMConfig | ImitationConfig, policy: FlowPolicy, seed: int) -> Algorithm:
    """The algorithm that ``config`` describes, starting from the base ``policy``."""
    match config:
        case SQAMConfig():
            return SQAM(config, policy, seed)
        case ImitationConfig():
            return Imitation(config, policy, seed)
