"""The policies that are ranked: those of a run, or directories, checked against the data by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flowrl.checkpoint.directory import former_or_self
from flowrl.errors import UsageError
from flowrl.learner.run import Run
from flowrl.policies.interface import ChunkPolicy
from flowrl.policies.io import load_policy, read_description
from flowrl.spec import Spec, require_match

BASE = "base"
_Place = tuple[str, Path, int | None]
"""A candidate's name, where it lies, and its updates."""


@dataclass(frozen=True)
class Candidate:
    """A policy to rank. ``updates`` is its place in the run, None where unknown.

    ``also`` names further directories that hold the same weights.
    """

    name: str
    directory: Path
    policy: ChunkPolicy
    updates: int | None
    also: tuple[str, ...] = ()


def find_candidates(run: Run, policies: Sequence[Path], data: Spec) -> list[Candidate]:
    """The run's base first, then its checkpoints and tuned policy, or the ``policies`` given instead.

    The base is what others are compared with. A policy whose weights were met before is not ranked
    twice. Raises UsageError when there is nothing beside the base, SpecMismatch naming every difference
    to the data or, for chunks, to the base.
    """
    found: list[_Place] = [(BASE, run.base, 0)] if run.base.is_dir() else []
    found += [(path.name or str(path), path, None) for path in policies] if policies else _of_run(run)
    if len(found) < 2:
        raise UsageError(
            f"run {run.name} has nothing to rank: no checkpoints and no tuned policy; go on with: "
            f"flowrl finetune --resume {run.name}, or name policies with --policies"
        )
    candidates = list(_distinct(found))
    for candidate in candidates:
        require_match(candidate.policy.spec.interface(), data, f"policy {candidate.name!r}", "the replay")
        require_match(
            replace(candidate.policy.spec, normalisation=None),
            replace(candidates[0].policy.spec, normalisation=None),
            f"policy {candidate.name!r}",
            f"policy {candidates[0].name!r}",
        )
    return candidates


def _of_run(run: Run) -> list[_Place]:
    steps = run.checkpoints.list()
    found: list[_Place] = [
        (f"checkpoint {step}", former_or_self(run.checkpoints.directory / str(step)) / "policy", step)
        for step in steps
    ]
    if run.policy.is_dir():
        updates = read_description(run.policy)["lineage"].get("updates")
        found.append(("tuned", run.policy, updates))
    return found


def _distinct(found: Iterable[_Place]) -> Iterable[Candidate]:
    """Load each; the same weights under a second name become an entry of ``also``."""
    met: dict[str, Candidate] = {}
    for name, path, updates in found:
        description = read_description(path)
        key = f"{description['sha256']} {description['kind']} {description['config']}"
        if key in met:
            met[key] = replace(met[key], also=(*met[key].also, name))
        else:
            policy = load_policy(path)
            policy.requires_grad_(False)
            met[key] = Candidate(name, path, policy, updates)
    return met.values()
