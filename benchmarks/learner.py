"""How fast SQAM learns on this machine, and how close that is to its matrix products alone.

Three things are timed in turn, again and again, so that other load on the machine hits all alike:

- one SQAM update;
- the matrix products of that update and nothing else (same shapes, layouts, threads and device);
- one update whose end points come from the memoryless SDE and whose adjoint is exact, by
  vector-Jacobian products through the base (what the scalar adjoint saves).

    python benchmarks/learner.py [--quick] [--device cuda] [--json FILE] [--profile]

Keys of the JSON object: ``updates_per_s`` (wall clock, median), ``ratio_to_matmul`` and
``exact_over_scalar``, and the sizes they hold for. The ratios are those of median times; on the CPU with
one thread these are CPU seconds, so that waiting for a busy core counts for nobody.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from flowrl.algorithms.adjoints import exact_adjoint
from flowrl.algorithms.sqam import (
    SQAM,
    Draws,
    SQAMConfig,
    adjoint_matching_loss,
    bridge_times,
    path_kl,
    squared_noise_scale,
)
from flowrl.critics.ensemble import action_gradient
from flowrl.critics.targets import CriticConfig
from flowrl.normalisation import Normalisation
from flowrl.policies.interface import Context
from flowrl.policies.mlp import FlowMLP
from flowrl.policies.observation import Observation
from flowrl.policies.samplers import memoryless_sde
from flowrl.replay.batch import ChunkBatch
from flowrl.spec import ActionSpec, Feature, Spec
from flowrl.training import keep_freed_memory


@dataclass(frozen=True)
class Sizes:
    """What is timed."""

    state: int = 19
    action: int = 7
    chunk: int = 5
    batch: int = 256
    width: int = 512
    depth: int = 4
    heads: int = 10
    flow_steps: int = 10

    @property
    def flat(self) -> int:
        """D = H * A."""
        return self.chunk * self.action


QUICK = Sizes(batch=64, width=128, depth=3, heads=3, flow_steps=5)


class OneBatch:
    """The same batch for ever: sampling from replay is another benchmark's business."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        rows, chunk = sizes.batch, sizes.chunk
        ones = torch.ones(rows, chunk, device=device)
        self._batch = ChunkBatch(
            observation=Observation(torch.randn(rows, sizes.state, device=device)),
            action=torch.rand(rows, chunk, sizes.action, device=device) * 2 - 1,
            rewards=-torch.rand(rows, chunk, device=device),
            mask=ones,
            valid=ones,
            next_observation=Observation(torch.randn(rows, sizes.state, device=device)),
            row=torch.arange(rows, device=device),
            success=ones[:, 0],
            source=torch.zeros(rows, dtype=torch.int64, device=device),
        )

    def batch(self, source: str | None = None, chunks: int = 1) -> ChunkBatch:
        """The batch, whatever the source; it has no later chunks."""
        return self._batch


class ExactAdjointSQAM(SQAM):
    """The same update with SDE end points and the exact adjoint in place of the scalar one."""

    def losses(
        self, batch: ChunkBatch, base_batch: ChunkBatch, draws: Draws
    ) -> tuple[Tensor, dict[str, float], float]:
        """As in SQAM, but for where the matched states and their adjoints come from."""
        view = self.critic.view(batch, self.fast)
        context, rows = view.context, len(batch)
        bridges = len(draws.bridge) // rows
        noises = iter(draws.bridge.chunk(bridges))
        with torch.no_grad():
            next_action = self.fast.sample(view.next_context, draws.next_action)
            path = memoryless_sde(
                self.fast.velocity, context, draws.endpoint, bridges, lambda _: next(noises)
            ).states
        temporal, gap, info = self.critic.loss(
            batch, view, next_action, self.generator, path[-1].clamp(-1, 1)
        )
        assert gap is not None
        matching, kl = self._matching(context, path)
        total = temporal + self.config.value_penalty * gap + matching + self.base_loss(base_batch, draws)
        return total, info, kl

    def _matching(self, context: Context, path: Tensor) -> tuple[Tensor, float]:
        bridges, rows = len(path) - 1, path.shape[1]
        gradient, _ = action_gradient(self.critic.target, context.features, path[-1])
        adjoint = exact_adjoint(self.slow_target.velocity, context, path, gradient, bridges)
        tau = bridge_times(bridges, rows, path.device)
        squared_scale = squared_noise_scale(tau, 1 / bridges)
        x, tiled = path[1:].flatten(0, 1), context.tile(bridges)
        with torch.no_grad():
            base = self.slow_target.velocity(tiled, x, tau)
        shift = self.fast.velocity(tiled, x, tau) - base
        flat = adjoint[1:].flatten(0, 1)
        loss = adjoint_matching_loss(shift, flat, squared_scale, self.dual_effective, rows)
        return loss, float(path_kl(shift, squared_scale, 1 / bridges, rows, self.fast.chunk.length))


def spec_of(sizes: Sizes) -> Spec:
    """A spec of these sizes whose normalisation changes nothing."""
    normalisation = Normalisation(
        state_mean=(0.0,) * sizes.state,
        state_scale=(1.0,) * sizes.state,
        state_q01=(-1.0,) * sizes.state,
        state_q99=(1.0,) * sizes.state,
        action_centre=(0.0,) * sizes.action,
        action_half_range=(1.0,) * sizes.action,
    )
    names = tuple(f"a{i}" for i in range(sizes.action))
    return Spec(
        observation=(Feature("observation.state", (sizes.state,)),),
        action=ActionSpec(names, (-1.0,) * sizes.action, (1.0,) * sizes.action),
        control_hz=20.0,
        normalisation=normalisation,
    ).with_chunk(sizes.chunk)


def learner(kind: type[SQAM], sizes: Sizes, device: torch.device) -> SQAM:
    """A fresh learner of these sizes."""
    policy = FlowMLP(spec_of(sizes), width=sizes.width, depth=sizes.depth, flow_steps=sizes.flow_steps).to(
        device
    )
    critic = CriticConfig(heads=sizes.heads, width=sizes.width, depth=sizes.depth)
    return kind(SQAMConfig(critic=critic), policy)


class MatrixProducts:
    """Every matrix product of one SQAM update, on operands laid out as the update lays them out.

    A pass over a network is forward (x W), input gradients (g W^T) and weight gradients (x^T g); the
    input gradient of the first layer is only needed where the gradient goes on to the action.
    """

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.device = device
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []
        time_embedding = 5
        policy = [sizes.state + sizes.flat + time_embedding, *[sizes.width] * sizes.depth, sizes.flat]
        critic = [sizes.state + sizes.flat, *[sizes.width] * sizes.depth, 1]
        rows, bridge_rows = sizes.batch, sizes.batch * sizes.flow_steps
        for _ in range(sizes.flow_steps):
            self._network(policy, 2 * rows)
        self._network(policy, bridge_rows)
        self._network(policy, bridge_rows, weight_gradients=True)
        self._network(policy, rows, weight_gradients=True)
        self._network(critic, rows, heads=sizes.heads)
        self._network(critic, 2 * rows, heads=sizes.heads, weight_gradients=True)
        self._network(critic, rows, heads=sizes.heads, input_gradients=True)

    def __call__(self) -> None:
        """Multiply them all once."""
        for left, right, out in self.products:
            (torch.mm if left.ndim == 2 else torch.bmm)(left, right, out=out)

    @property
    def gigaflops(self) -> float:
        """Floating point operations of one update's products, in units of 1e9."""
        return sum(2 * left.numel() * right.shape[-1] for left, right, _ in self.products) / 1e9

    def _network(
        self,
        layers: list[int],
        rows: int,
        heads: int | None = None,
        weight_gradients: bool = False,
        input_gradients: bool = False,
    ) -> None:
        for index, (fan_in, fan_out) in enumerate(pairwise(layers)):
            x, g = self._operand(heads, rows, fan_in), self._operand(heads, rows, fan_out)
            # nn.Linear stores (out, in), the stacked critic (heads, in, out).
            weight = (
                self._operand(None, fan_out, fan_in).mT
                if heads is None
                else self._operand(heads, fan_in, fan_out)
            )
            self._add(x, weight)
            if input_gradients or (weight_gradients and index > 0):
                self._add(g, weight.mT)
            if weight_gradients:
                self._add(g.mT, x) if heads is None else self._add(x.mT, g)

    def _add(self, left: Tensor, right: Tensor) -> None:
        out = self._operand(left.shape[0] if left.ndim == 3 else None, left.shape[-2], right.shape[-1])
        self.products.append((left, right, out))

    def _operand(self, heads: int | None, rows: int, columns: int) -> Tensor:
        shape = (rows, columns) if heads is None else (heads, rows, columns)
        return torch.randn(shape, device=self.device)


@dataclass(frozen=True)
class Seconds:
    """How long one call took by the wall, and how long it occupied the CPU or the device."""

    wall: float
    busy: float


def timed(run: Callable[[], object], device: torch.device) -> Seconds:
    """Time one call, until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Seconds(wall, cpu if device.type == "cpu" and torch.get_num_threads() == 1 else wall)


def interleaved(
    runs: dict[str, Callable[[], object]], repetitions: int, device: torch.device
) -> dict[str, list[Seconds]]:
    """Times of every repetition of each run, taken in turn; the first round only warms up."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in runs}
    for repetition in range(repetitions + 1):
        for name, run in runs.items():
            elapsed = timed(run, device)
            if repetition:
                seconds[name].append(elapsed)
    return seconds


def measure(sizes: Sizes, repetitions: int, device: torch.device) -> dict[str, float]:
    """The benchmark's numbers; times are in milliseconds."""
    torch.manual_seed(0)
    batches = OneBatch(sizes, device)
    scalar, exact = learner(SQAM, sizes, device), learner(ExactAdjointSQAM, sizes, device)
    products = MatrixProducts(sizes, device)
    runs: dict[str, Callable[[], object]] = {
        "scalar": lambda: scalar.update(batches),
        "matmul": products,
        "exact": lambda: exact.update(batches),
    }
    seconds = interleaved(runs, repetitions, device)
    wall = {name: statistics.median(s.wall for s in values) for name, values in seconds.items()}
    busy = {name: statistics.median(s.busy for s in values) for name, values in seconds.items()}
    return {
        "updates_per_s": 1 / wall["scalar"],
        "ratio_to_matmul": busy["scalar"] / busy["matmul"],
        "exact_over_scalar": busy["exact"] / busy["scalar"],
        "gigaflops_per_update": products.gigaflops,
        **{f"{name}_ms": 1e3 * value for name, value in busy.items()},
        **{f"{name}_wall_ms": 1e3 * value for name, value in wall.items()},
    }


def profile(sizes: Sizes, device: torch.device) -> None:
    """Print where one update spends its time, by operator."""
    sqam, batches = learner(SQAM, sizes, device), OneBatch(sizes, device)
    sqam.update(batches)
    with torch.profiler.profile(record_shapes=True) as recorded:
        for _ in range(3):
            sqam.update(batches)
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


def table(sizes: Sizes, threads: int, device: torch.device, result: dict[str, float]) -> Iterator[str]:
    """The result for people."""
    yield (
        f"SQAM, batch {sizes.batch}, chunk {sizes.chunk} x {sizes.action}, {sizes.depth}x{sizes.width}, "
        f"{sizes.heads} critics, {sizes.flow_steps} flow steps, {device}, {threads} thread(s)"
    )
    yield f"  updates per second                {result['updates_per_s']:10.2f}"
    yield f"  one update                        {result['scalar_ms']:10.1f} ms"
    rate = result["gigaflops_per_update"] / result["matmul_ms"] * 1e3
    yield f"  its matrix products alone         {result['matmul_ms']:10.1f} ms  ({rate:.0f} GFLOP/s)"
    yield f"  the update with the exact adjoint {result['exact_ms']:10.1f} ms"
    yield f"  ratio to matrix products          {result['ratio_to_matmul']:10.2f}  (goal: at most 1.5)"
    yield f"  exact over scalar                 {result['exact_over_scalar']:10.2f}"


def main() -> None:
    """Parse options, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write one JSON object here")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repetitions")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads for all three measurements")
    parser.add_argument("--repetitions", type=int, help="rounds after the first, which warms up")
    parser.add_argument("--profile", action="store_true", help="print the operators of one update instead")
    for name, value in asdict(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default {value}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    device = torch.device(options.device)
    defaults = asdict(QUICK if options.quick else Sizes())
    sizes = Sizes(**{name: getattr(options, name) or value for name, value in defaults.items()})
    if options.profile:
        profile(sizes, device)
        return
    repetitions = options.repetitions or (5 if options.quick else 8)
    result = measure(sizes, repetitions, device)
    print("\n".join(table(sizes, options.threads, device, result)))
    if options.json:
        said = {"device": str(device), "threads": options.threads, "torch": torch.__version__}
        options.json.write_text(json.dumps(result | asdict(sizes) | said, indent=2) + "\n")


if __name__ == "__main__":
    main()
