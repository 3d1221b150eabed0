"""Which metrics are drawn together, and what each drawing means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowrl.algorithms.sqam import SQAMConfig
from flowrl.report.data import Findings


@dataclass(frozen=True)
class Panel:
    """What one metric figure shows.

    ``lines`` are metrics with their labels. ``limits`` are horizontal lines; ``band`` is a metric
    drawn as a half width around the first line.
    """

    name: str
    title: str
    caption: str
    lines: Sequence[tuple[str, str]]
    band: tuple[str, str] | None = None
    limits: Sequence[tuple[str, float]] = ()
    logarithmic: bool = False
    percent: bool = False


VALUES = Panel(
    "values",
    "Critic's values",
    "Mean Q at replayed actions (data), at the policy's actions, and the TD target; the band is one standard "
    "deviation over the critic's heads. The policy's far above the data's is over-estimation.",
    [("critic/q_data", "data"), ("critic/q_policy", "policy"), ("critic/q_target", "target")],
    band=("critic/head_std", "heads ± 1 std"),
)
GAP = Panel(
    "gap",
    "Value gap",
    "Q at the policy's action minus Q at the replayed one: what the value penalty holds down.",
    [("critic/value_gap", "policy - data")],
    limits=[("no gap", 0.0)],
)
PATH_KL = Panel(
    "kl",
    "Path KL to the base",
    "How far the policy's flow has moved, per action of the chunk, and the budget it may spend.",
    [("dual/path_kl", "per update"), ("dual/path_kl_average", "moving average")],
)
DUAL = Panel(
    "dual",
    "Dual variable λ",
    "The price of moving away from the base. It rises while the path KL is over its budget; pinned at a limit "
    "it no longer holds the budget.",
    [("dual/lambda", "λ")],
)
SHIFT = Panel(
    "shift",
    "Where the flow changed",
    "Squared distance of the policy's velocity from its base's, in the early, middle and late third of flow "
    "time.",
    [("actor/shift_early", "early"), ("actor/shift_middle", "middle"), ("actor/shift_late", "late")],
)
ENDPOINT = Panel(
    "endpoint",
    "Endpoint shift",
    "Distance between the policy's and its base's normalised actions from the same noise.",
    [("actor/endpoint_shift", "policy - base")],
)
CURVATURE = Panel(
    "curvature",
    "Flow curvature",
    "How much the velocity turns from one flow step to the next; 0 is a straight flow.",
    [("actor/flow_curvature", "policy")],
)
SATURATION = Panel(
    "saturation",
    "Saturated actions",
    "Share of the policy's action entries beyond the bounds: all dimensions, and the worst one.",
    [("actor/saturated", "all"), ("actor/saturated_worst_dimension", "worst dimension")],
    percent=True,
)
LOSSES = Panel(
    "losses",
    "Losses",
    "Means over a log interval. They need not fall: the target of each moves with the policy.",
    [
        ("critic/td_loss", "TD"),
        ("actor/adjoint_loss", "adjoint matching"),
        ("base/loss", "slow base"),
        ("policy/loss", "cloning"),
    ],
    logarithmic=True,
)
GRADIENTS = Panel(
    "gradients",
    "Gradient norms",
    "Before clipping, by network.",
    [
        ("critic/gradient_norm", "critic"),
        ("fast/gradient_norm", "policy"),
        ("slow/gradient_norm", "slow base"),
        ("policy/gradient_norm", "cloned policy"),
    ],
    logarithmic=True,
)


def panels(found: Findings) -> list[Panel]:
    """The panels in order; with SQAM the dual variable and its budget are drawn with their limits."""
    path_kl, dual, algorithm = PATH_KL, DUAL, found.config.algorithm
    if isinstance(algorithm, SQAMConfig):
        budget = algorithm.kl_budget
        path_kl = replace(PATH_KL, limits=[(f"budget {budget:g}", budget)])
        limits = [(f"lowest allowed {algorithm.dual_low:g}", algorithm.dual_low)]
        # A far limit would only flatten the curve.
        if max(found.curve("dual/lambda").y, default=0.0) > algorithm.dual_high / 3:
            limits.append((f"highest allowed {algorithm.dual_high:g}", algorithm.dual_high))
        dual = replace(DUAL, limits=limits)
    return [VALUES, GAP, path_kl, dual, SHIFT, ENDPOINT, CURVATURE, SATURATION, LOSSES, GRADIENTS]
