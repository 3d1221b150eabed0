"""From an algorithm's configuration to the algorithm. A new algorithm is one line here."""

from __future__ import annotations

from flowrl.algorithms.aloe import ALOE, ALOEConfig
from flowrl.algorithms.baselines.dsrl import DSRL, DSRLConfig
from flowrl.algorithms.baselines.expo import EXPO, EXPOConfig
from flowrl.algorithms.baselines.fql import FQL, FQLConfig
from flowrl.algorithms.baselines.qc import QC, QCConfig
from flowrl.algorithms.baselines.rlpd import RLPD, RLPDConfig
from flowrl.algorithms.imitation import Imitation, ImitationConfig
from flowrl.algorithms.interface import Algorithm
from flowrl.algorithms.ogpo import OGPO, OGPOConfig
from flowrl.algorithms.qam import QAM, TRQAM, QAMConfig, TRQAMConfig
from flowrl.algorithms.qf3 import QF3, QF3Config
from flowrl.algorithms.sqam import SQAM, SQAMConfig
from flowrl.policies.interface import FlowPolicy


def make_algorithm(
    config: SQAMConfig
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
    policy: FlowPolicy,
    seed: int,
) -> Algorithm:
    """The algorithm that ``config`` describes, starting from the base ``policy``."""
    match config:
        case SQAMConfig():
            return SQAM(config, policy, seed)
        case QAMConfig():
            return QAM(config, policy, seed)
        case TRQAMConfig():
            return TRQAM(config, policy, seed)
        case QF3Config():
            return QF3(config, policy, seed)
        case OGPOConfig():
            return OGPO(config, policy, seed)
        case ALOEConfig():
            return ALOE(config, policy, seed)
        case ImitationConfig():
            return Imitation(config, policy, seed)
        case QCConfig():
            return QC(config, policy, seed)
        case FQLConfig():
            return FQL(config, policy, seed)
        case DSRLConfig():
            return DSRL(config, policy, seed)
        case EXPOConfig():
            return EXPO(config, policy, seed)
        case RLPDConfig():
            return RLPD(config, policy, seed)
