"""How good the scalar adjoint of SQAM is where its rival is exact, and what the exact one costs.

**Accuracy.** Along paths of the memoryless SDE of a base policy, a vector G at the end is carried back by the
exact adjoint, through the base's Jacobians, and by the scalar one, as ``t G``. For every flow time: the mean
angle between the two, and the median ratio of their norms, scalar over exact. G points in a random
direction of the chunk: only the base matters then, not a critic. A coarse and a fine grid tell the error of
the scalar from that of the grid. Two bases: a mixture of three narrow
Gaussians in the plane, whose velocity is exact, and a policy cloned on the spot from scripted
demonstrations of a recipe (by default ``lift_sqam``).

**Cost.** Whole updates of SQAM and TRQAM, networks of the recipe, in turn, so that other load hits both
alike; CPU seconds with one thread, medians and their ratio, for several numbers of flow steps.

    python benchmarks/adjoints.py [--quick] [--json FILE]

``--quick`` leaves the simulator out: the mixture alone, and an untrained network of small size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from learner import OneBatch, Sizes, interleaved, learner
from torch import Tensor

from flowrl.algorithms.adjoints import exact_adjoint
from flowrl.algorithms.qam import TRQAM, TRQAMConfig
from flowrl.algorithms.sqam import SQAM, SQAMConfig
from flowrl.critics.targets import CriticConfig
from flowrl.policies.interface import Context, FlowPolicy, Velocity
from flowrl.policies.samplers import memoryless_sde
from flowrl.training import keep_freed_memory

MODES = torch.tensor([[-0.6, 0.0], [0.4, 0.5], [0.4, -0.5]])
MODE_STD = 0.1
GRIDS = (10, 100)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Base:
    """A velocity, and contexts in which to ask it for chunks of ``size`` numbers."""

    name: str
    velocity: Velocity
    context: Context
    size: int


def mixture(rows: int) -> Base:
    """The exact flow to three equally likely Gaussians of standard deviation 0.1 in the plane."""

    def velocity(context: Context, x: Tensor, t: Tensor) -> Tensor:
        variance = (1 - t) ** 2 + t**2 * MODE_STD**2
        off = x[:, None] - t[:, None] * MODES
        weight = (-off.square().sum(dim=2) / (2 * variance)).softmax(dim=1)
        slope = (t * MODE_STD**2 - (1 - t)) / variance
        return (weight[:, :, None] * (MODES + slope[:, None] * off)).sum(dim=1)

    return Base("mixture of three Gaussians", velocity, Context(torch.zeros(rows, 1)), 2)


def cloned(recipe: str, rows: int) -> tuple[Base, FlowPolicy]:
    """A policy cloned from fresh scripted demonstrations of the recipe, in states of these demonstrations."""
    from flowrl.cli.simulation import collect_demonstrations
    from flowrl.config import load_recipe
    from flowrl.learner.config import RunConfig
    from flowrl.learner.pretraining import clone
    from flowrl.policies.io import load_flow_policy
    from flowrl.policies.observation import Observation
    from flowrl.replay.reader import ReplayReader

    config = load_recipe(RunConfig, recipe)
    with tempfile.TemporaryDirectory() as folder:
        replay, home = Path(folder) / "replay", Path(folder) / "policy"
        collect_demonstrations(config, replay)
        clone(config, replay, home)
        policy = load_flow_policy(home).requires_grad_(False)
        states = torch.as_tensor(ReplayReader(replay).state, dtype=torch.float32)
    pick = torch.randint(len(states), (rows,))
    context = policy.encode(Observation(states[pick]))
    return Base(f"clone of {recipe}", policy.velocity, context, policy.flat_size), policy


def accuracy(base: Base, steps: int) -> list[dict[str, float]]:
    """Scalar against exact adjoint at t = 0.1, 0.2, ..., 1 on a grid of ``steps``, a multiple of 10."""
    rows = len(base.context)
    with torch.no_grad():
        path = memoryless_sde(base.velocity, base.context, torch.randn(rows, base.size), steps).states
    gradient = torch.randn(rows, base.size)
    exact = exact_adjoint(base.velocity, base.context, path, gradient, steps)
    found = []
    for k in range(steps // 10, steps + 1, steps // 10):
        scalar = -k / steps * gradient
        cosine = torch.cosine_similarity(scalar, exact[k], dim=1).clamp(-1, 1)
        ratio = scalar.norm(dim=1) / exact[k].norm(dim=1)
        growth = exact[k].norm(dim=1) / gradient.norm(dim=1)
        found.append(
            {
                "t": k / steps,
                "angle_degrees": float(cosine.acos().rad2deg().mean()),
                "norm_ratio": float(ratio.median()),
                "exact_growth_max": float(growth.max()),
            }
        )
    return found


def cost(
    policy: FlowPolicy, critic: CriticConfig, sizes: Sizes, flow_steps: int, rounds: int
) -> dict[str, float]:
    """Milliseconds of one update of each algorithm, and their ratio."""
    policy.flow_steps = flow_steps
    batches = OneBatch(sizes, CPU)
    scalar, exact = SQAM(SQAMConfig(critic=critic), policy), TRQAM(TRQAMConfig(critic=critic), policy)
    runs: dict[str, Callable[[], object]] = {
        "sqam": lambda: scalar.update(batches),
        "trqam": lambda: exact.update(batches),
    }
    seconds = interleaved(runs, rounds, CPU)
    busy = {name: 1e3 * statistics.median(s.busy for s in times) for name, times in seconds.items()}
    return {
        "flow_steps": flow_steps,
        "sqam_ms": busy["sqam"],
        "trqam_ms": busy["trqam"],
        "trqam_over_sqam": busy["trqam"] / busy["sqam"],
    }


def measure(quick: bool, recipe: str, rows: int, rounds: int) -> dict[str, Any]:
    """Everything, as one JSON object."""
    torch.manual_seed(0)
    bases = [mixture(rows)]
    if quick:
        sizes = Sizes(batch=16, width=32, depth=2, heads=2, flow_steps=5)
        policy = learner(SQAM, sizes, CPU).fast
        critic = CriticConfig(heads=sizes.heads, width=sizes.width, depth=sizes.depth)
    else:
        base, policy = cloned(recipe, rows)
        bases.append(base)
        sizes = Sizes(
            state=policy.spec.state_size,
            action=policy.spec.action.size,
            chunk=policy.chunk.length,
            batch=64,
            flow_steps=policy.flow_steps,
        )
        critic = CriticConfig(heads=3, width=128, depth=3, activation="gelu")
    return {
        "accuracy": {f"{base.name}, K = {k}": accuracy(base, k) for base in bases for k in GRIDS},
        "cost": [cost(policy, critic, sizes, k, rounds) for k in (5, 10, 20)],
        "load_average": os.getloadavg()[0],
        "rows": rows,
        "torch": torch.__version__,
    }


def table(result: dict[str, Any]) -> Iterator[str]:
    """The result for people."""
    for name, times in result["accuracy"].items():
        yield f"scalar against exact adjoint, {name}, {result['rows']} paths"
        yield "     t   mean angle   norm ratio   largest growth of the exact one"
        for row in times:
            yield (
                f"  {row['t']:.2f} {row['angle_degrees']:9.1f} deg {row['norm_ratio']:10.2f}"
                f" {row['exact_growth_max']:15.2f}"
            )
    yield "one update, CPU milliseconds"
    yield "     K      SQAM     TRQAM     ratio"
    for row in result["cost"]:
        yield (
            f"  {row['flow_steps']:4d} {row['sqam_ms']:9.1f} {row['trqam_ms']:9.1f} "
            f"{row['trqam_over_sqam']:9.2f}"
        )
    yield f"load average at the end {result['load_average']:.1f}"


def main() -> None:
    """Parse options, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write one JSON object here")
    parser.add_argument("--quick", action="store_true", help="no simulator, small networks")
    parser.add_argument("--recipe", default="lift_sqam", help="whose demonstrations and network are cloned")
    parser.add_argument("--rows", type=int, default=2048, help="paths of the accuracy tables")
    parser.add_argument("--rounds", type=int, default=15, help="timed updates of each algorithm")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    result = measure(options.quick, options.recipe, options.rows, options.rounds)
    print("\n".join(table(result)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
