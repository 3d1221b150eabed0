"""What one update of every algorithm costs, beside what its equations ask for.

All algorithms are built on the same flow and the same critic and update on the same batch, in turn, so that
other load on the machine hits all alike. The table shows for each

- rows through the velocity network without and with gradient, and rows through every critic head, as
  `expected_rows` states them in closed form (a test counts them during real updates);
- the floating-point operations of these rows alone (a row with gradient costs three), and of the whole
  update as torch counts them: what is missing are the networks that only this algorithm has;
- milliseconds of one update, CPU seconds with one thread, and all as ratios to the cheapest.

    python benchmarks/algorithms.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from learner import OneBatch, Sizes, interleaved, spec_of
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flowrl.algorithms.factory import make_algorithm
from flowrl.algorithms.interface import Algorithm
from flowrl.config import load_recipe
from flowrl.critics.ensemble import CriticEnsemble
from flowrl.learner.config import AlgorithmConfig, RunConfig
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.training import keep_freed_memory

RECIPES = (
    "lift_bc", "lift_qf3", "lift_fql", "lift_qc", "lift_aloe", "lift_rlpd", "lift_sqam", "lift_expo",
    "lift_dsrl", "lift_qam", "lift_trqam", "lift_ogpo",
)  # fmt: skip
"""One recipe for each algorithm: their settings, so that the costs are those of the comparison on Lift."""

SIZES = Sizes(batch=64, width=256, depth=3, heads=3, flow_steps=5)
"""The sizes of the Lift recipes; their critics are narrower, see CRITIC_WIDTH."""
CRITIC_WIDTH = 128


@dataclass(frozen=True)
class Rows:
    """Rows of one update: through the velocity network and, per head, through the critic."""

    velocity: int = 0
    velocity_gradient: int = 0
    critic: int = 0
    critic_gradient: int = 0


def expected_rows(config: AlgorithmConfig, batch: int, steps: int) -> Rows:
    """What one update evaluates, for B = ``batch`` and K = ``steps`` (docs/algorithms/README.md)."""
    b, k = batch, steps
    match config.kind:
        case "imitation":
            return Rows(0, b)
        case "sqam":
            # Two ends by the ODE, then bridges: the base without, the policy with gradient.
            bridges = config.bridge_states or k
            return Rows(2 * k * b + bridges * b, bridges * b + b, b, 3 * b)
        case "qam" | "trqam":
            # One end by the ODE, one by the SDE, the base along the path; products with its Jacobian.
            return Rows(3 * k * b, 2 * k * b + b, b, 2 * b)
        case "qf3":
            cloning = b if config.success_weight > 0 else 0
            return Rows(k * b + b, b + cloning, b, 2 * b)
        case "ogpo":
            chains = min(config.states or b, b) * config.group
            cloning = b if config.success_weight > 0 else 0
            return Rows(k * chains + k * b, k * chains + cloning, chains + b, b)
        case "aloe":
            n = config.value_samples
            return Rows((n + 1) * k * b, b, (n + 2) * b, b)
        case "qc":
            n = config.target_best_of
            return Rows(n * k * b, b, (n + 1 if n > 1 else 1) * b, b)
        case "fql":
            # The one-step policy is a network of the same size, evaluated once: mu = z + v(s, z, 0).
            return Rows(k * b + b, 2 * b, b, 2 * b)
        case "dsrl":
            n = config.latent_updates
            return Rows((n + 1) * k * b, 0, (n + 1) * b, (n + 2) * b)
        case "expo":
            n = config.target_best_of
            return Rows(n * k * b + k * b, b, (2 * n + 2) * b, 2 * b)
        case "rlpd":
            n = config.critic_updates
            return Rows(0, 0, n * b, (n + 1) * b)


@dataclass
class Counter:
    """Rows seen while `counting`."""

    velocity: int = 0
    velocity_gradient: int = 0
    critic: int = 0
    critic_gradient: int = 0

    def add(self, what: str, rows: int, gradient: bool) -> None:
        """Count rows of ``what``."""
        name = f"{what}_gradient" if gradient else what
        setattr(self, name, getattr(self, name) + rows)


@contextmanager
def counting() -> Generator[Counter]:
    """Count the rows that pass through any flow MLP and any critic meanwhile."""
    counter = Counter()
    velocity, logits = FlowMLP.velocity, CriticEnsemble.logits

    def counted_velocity(self: FlowMLP, context: Context, x: Tensor, t: Tensor) -> Tensor:
        out = velocity(self, context, x, t)
        counter.add("velocity", len(x), out.requires_grad)
        return out

    def counted_logits(self: CriticEnsemble, features: Tensor, action: Tensor) -> Tensor:
        out = logits(self, features, action)
        counter.add("critic", len(action), out.requires_grad)
        return out

    FlowMLP.velocity, CriticEnsemble.logits = counted_velocity, counted_logits
    try:
        yield counter
    finally:
        FlowMLP.velocity, CriticEnsemble.logits = velocity, logits


def build(recipe: str, sizes: Sizes, critic_width: int) -> tuple[AlgorithmConfig, Algorithm]:
    """The algorithm of a recipe on networks of these sizes."""
    critic = [
        f"algorithm.critic.{name}={value}"
        for name, value in {"heads": sizes.heads, "width": critic_width, "depth": sizes.depth}.items()
    ]
    base = load_recipe(RunConfig, recipe)
    config = load_recipe(RunConfig, recipe, critic if hasattr(base.algorithm, "critic") else [])
    policy = FlowMLP(
        spec_of(sizes), width=sizes.width, depth=sizes.depth, activation="gelu", flow_steps=sizes.flow_steps
    )
    return config.algorithm, make_algorithm(config.algorithm, policy, seed=0)


def operations(rows: Rows, sizes: Sizes, critic_width: int) -> float:
    """Floating-point operations of the matrix products of these rows: forward, and three with gradient."""
    time_embedding = 5
    flow = [sizes.state + sizes.flat + time_embedding, *[sizes.width] * sizes.depth, sizes.flat]
    critic = [sizes.state + sizes.flat, *[critic_width] * sizes.depth, 1]
    one_velocity = 2 * sum(i * o for i, o in pairwise(flow))
    one_critic = 2 * sizes.heads * sum(i * o for i, o in pairwise(critic))
    return one_velocity * (rows.velocity + 3 * rows.velocity_gradient) + one_critic * (
        rows.critic + 3 * rows.critic_gradient
    )


def measure(recipes: tuple[str, ...], sizes: Sizes, critic_width: int, repetitions: int) -> dict[str, Any]:
    """One entry per recipe: rows, operations and milliseconds."""
    device, batches = torch.device("cpu"), OneBatch(sizes, torch.device("cpu"))
    built = {recipe: build(recipe, sizes, critic_width) for recipe in recipes}
    runs: dict[str, Callable[[], object]] = {
        recipe: lambda algorithm=algorithm: algorithm.update(batches)
        for recipe, (_, algorithm) in built.items()
    }
    result: dict[str, Any] = {}
    for recipe, (config, _) in built.items():
        with FlopCounterMode(display=False) as counted:
            runs[recipe]()
        rows = expected_rows(config, sizes.batch, sizes.flow_steps)
        result[recipe] = {
            "kind": config.kind,
            "rows": asdict(rows),
            "gigaflops_of_rows": operations(rows, sizes, critic_width) / 1e9,
            "gigaflops_counted": counted.get_total_flops() / 1e9,
        }
    seconds = interleaved(runs, repetitions, device)
    for recipe, values in seconds.items():
        result[recipe]["ms"] = 1e3 * statistics.median(value.busy for value in values)
        result[recipe]["wall_ms"] = 1e3 * statistics.median(value.wall for value in values)
    return result


def table(result: dict[str, Any], sizes: Sizes) -> Iterator[str]:
    """The result for people, cheapest first."""
    cheapest = min(entry["ms"] for entry in result.values())
    least = min(entry["gigaflops_counted"] for entry in result.values())
    yield (
        f"batch {sizes.batch}, {sizes.flow_steps} flow steps, flow {sizes.depth}x{sizes.width}, {sizes.heads} critics"
    )
    yield (
        f"{'':12}{'velocity rows':>15}{'with gradient':>15}{'critic rows':>13}{'with gradient':>15}"
        f"{'GFLOP rows':>12}{'all':>8}{'ratio':>8}{'ms':>8}{'ratio':>8}"
    )
    for entry in sorted(result.values(), key=lambda entry: entry["ms"]):
        rows = Rows(**entry["rows"])
        yield (
            f"{entry['kind']:12}{rows.velocity:15,}{rows.velocity_gradient:15,}{rows.critic:13,}"
            f"{rows.critic_gradient:15,}{entry['gigaflops_of_rows']:12.2f}{entry['gigaflops_counted']:8.2f}"
            f"{entry['gigaflops_counted'] / least:8.1f}{entry['ms']:8.1f}{entry['ms'] / cheapest:8.1f}"
        )


def main() -> None:
    """Parse options, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write one JSON object here")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    result = measure(RECIPES, SIZES, CRITIC_WIDTH, 3 if options.quick else 20)
    print("\n".join(table(result, SIZES)))
    if options.json:
        sizes = asdict(SIZES) | {"critic_width": CRITIC_WIDTH}
        options.json.write_text(json.dumps({"algorithms": result, "sizes": sizes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
