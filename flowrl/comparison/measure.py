"""What is read off a finished run beyond its own result: acting rules, sizes, time per update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from flowrl.acting import Actor
from flowrl.algorithms.factory import make_algorithm
from flowrl.algorithms.interface import Algorithm
from flowrl.errors import CheckpointError
from flowrl.learner.base_policy import load_base
from flowrl.learner.metrics import read_metrics
from flowrl.learner.run import Run
from flowrl.policies.io import load_flow_policy


@dataclass(frozen=True)
class Rules:
    """The actors that isolate what an acting rule alone contributes.

    Attributes:
        own: the tuned policy under its recipe's evaluation rule.
        common: the tuned policy by one plain sample.
        base: the base by one plain sample.
        base_own: the base chosen by the recipe's rule, trained critic included; None where that is the
            plain rule, or where the rule is a part of the policy, which the base lacks.
    """

    own: Actor
    common: Actor
    base: Actor
    base_own: Actor | None

    @property
    def differ(self) -> bool:
        """Whether the recipe's rule is another one than a plain sample."""
        return not self.own.plain


def finished_algorithm(run: Run) -> Algorithm:
    """The algorithm of a finished run, from its last checkpoint. Raises CheckpointError without one."""
    config = run.config()
    base = load_base(run.base, config)
    algorithm = make_algorithm(config.algorithm, base, config.seed)
    loaded = run.checkpoints.load_latest()
    if loaded is None:
        raise CheckpointError(
            f"run {run.name} has no checkpoint; go on with: flowrl finetune --resume {run.name}"
        )
    algorithm.load_state_dict(loaded.state["algorithm"])
    return algorithm


def rules(run: Run, algorithm: Algorithm) -> Rules:
    """The actors to measure, for any algorithm whose rule is an `Actor`."""
    own, base = algorithm.actor("evaluate"), load_flow_policy(run.base)
    moved = own.with_policy(base)
    return Rules(own, own.common(), Actor(base), None if moved.plain else moved)


def parameters(algorithm: Algorithm, rules: Rules) -> dict[str, int]:
    """Numbers of parameters: ``acting``, what the recipe's rule needs; ``trained``, what optimisers hold.

    A moving average of a policy acts, but is not trained: it is counted once, under ``acting``.
    """
    networks: list[nn.Module] = [rules.own.policy]
    if rules.differ and rules.own.critic is not None:
        networks.append(rules.own.critic)
    return {
        "acting": sum(p.numel() for network in networks for p in network.parameters()),
        "trained": sum(p.numel() for p in _unique(_optimised(algorithm, set()))),
    }


def _optimised(thing: object, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors of every optimiser that is reachable from ``thing`` through this project's objects."""
    if id(thing) in seen or isinstance(thing, nn.Module):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.optim.Optimizer):
        yield from (p for group in thing.param_groups for p in group["params"])
        return
    inner: Iterable[object] = ()
    if isinstance(thing, Mapping):
        inner = cast(Mapping[object, object], thing).values()
    elif isinstance(thing, (list, tuple)):
        inner = cast(Iterable[object], thing)
    elif type(thing).__module__.startswith("flowrl.") and hasattr(thing, "__dict__"):
        inner = list(vars(thing).values())
    for each in inner:
        yield from _optimised(each, seen)


def _unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def update_ms(run: Run) -> dict[str, float | None]:
    """Milliseconds of one update: the mean over all, and the median over log intervals; None if unknown."""
    columns = read_metrics(run.metrics)
    if "run/update_ms" not in columns:
        return {"mean": None, "median": None}
    known = np.isfinite(columns["run/update_ms"])
    ms, steps = columns["run/update_ms"][known], columns["step"][known]
    updates = np.diff(steps, prepend=0.0)
    if not updates.sum():
        return {"mean": None, "median": None}
    counted = updates > 0
    return {
        "mean": float(np.average(ms, weights=updates)),
        "median": float(np.median(ms[counted])),
    }


def periodic_points(run: Run) -> list[dict[str, float]]:
    """The evaluations made while training, in order: updates, env_steps, seconds and success."""
    columns = read_metrics(run.metrics)
    if "evaluation/success" not in columns:
        return []
    rows = np.flatnonzero(np.isfinite(columns["evaluation/success"]))
    names = {"updates": "step", **{n: f"evaluation/{n}" for n in ("env_steps", "seconds", "success")}}
    return [{name: float(columns[column][row]) for name, column in names.items()} for row in rows]


def as_json(found: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluations inside ``found`` as JSON values."""
    return {key: value.to_json() if hasattr(value, "to_json") else value for key, value in found.items()}
