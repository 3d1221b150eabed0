"""What recipes must have in common before a comparison of them means something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from flowrl.config import to_mapping, yaml_text
from flowrl.errors import UsageError
from flowrl.learner.config import RunConfig

NEW_POLICY = ("chunk", "policy", "pretrain")
"""Sections that make a base; a given policy keeps its own."""
TASK = ("environment", *NEW_POLICY, "demonstrations", "evaluation", "sampling.end_rule", "device")
"""The same task, data, base and measurement. The end rule decides what a critic sees of a success."""
BUDGET = ("budget", "warm_up.env_steps", "driver")
"""The same experience and training. Critic-only updates of the warm-up are each recipe's own."""


def require_agreement(
    configs: Mapping[str, RunConfig], ignore: Sequence[str] = (), same_driver: bool = True
) -> None:
    """Raise UsageError naming the first setting in which two recipes differ, both values and the remedy.

    Args:
        configs: resolved recipes by name; the first is what the others are held against.
        ignore: sections of `TASK` that play no part, for example those of a base that is given.
        same_driver: whether the drivers must be equal, too.
    """
    (first, reference), *others = configs.items()
    task = [key for key in TASK if key not in ignore]
    budget = [key for key in BUDGET if same_driver or key != "driver"]
    for name, config in others:
        for keys, what in ((task, "task"), (budget, "budget")):
            found = first_difference(to_mapping(reference), to_mapping(config), keys)
            if found is not None:
                raise UsageError(_message(what, first, name, *found))


def first_difference(
    left: Mapping[str, Any], right: Mapping[str, Any], keys: Sequence[str]
) -> tuple[str, Any, Any] | None:
    """The first dotted key below ``keys`` whose values differ, with both values; None when all agree."""
    for key in keys:
        found = _descend(key, _at(left, key), _at(right, key))
        if found is not None:
            return found
    return None


def _descend(key: str, left: Any, right: Any) -> tuple[str, Any, Any] | None:
    if left == right:
        return None
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        one, other = cast(Mapping[str, Any], left), cast(Mapping[str, Any], right)
        for name in dict.fromkeys([*one, *other]):
            found = _descend(f"{key}.{name}", one.get(name), other.get(name))
            if found is not None:
                return found
    return key, left, right


def _at(mapping: Mapping[str, Any], key: str) -> Any:
    found: Any = mapping
    for part in key.split("."):
        found = found[part]
    return found


def _message(what: str, first: str, name: str, key: str, left: Any, right: Any) -> str:
    one, other = yaml_text.scalar(left), yaml_text.scalar(right)
    remedy = f"align them with --set {key}={one} (or {other})"
    if what == "budget":
        option = {
            "budget.env_steps": f"--env-steps {one}",
            "budget.updates": f"--updates {one}",
            "budget.wall_s": "--env-steps N, --updates N or --wall S, which set the whole budget",
            "driver.updates_per_step": f"--updates-per-step {one}",
        }.get(key)
        remedy = f"give every recipe the same with {option}" if option else remedy
    return (
        f"{first} and {name} cannot be compared, their {what} differs: {key} is {one} in {first} and {other} in "
        f"{name}; {remedy}"
    )
