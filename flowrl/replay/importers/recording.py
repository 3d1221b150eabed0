"""How a file says it was recorded, and whether an environment fits it.

robosuite writes ``env`` and ``env_info``, robomimic ``env_args``, with the arguments the environment was
made with. Both are read into the same flat facts, and only what both sides state is compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.errors import DataError, SpecMismatch
from flowrl.replay.importers.target import Target

Facts = Mapping[str, Any]

DECISIVE = (
    "control_freq",
    "robots",
    "controller.type",
    "controller.input_type",
    "controller.input_ref_frame",
)
"""A difference here gives the same action another meaning, so it is refused; other ones are warned of."""

_CONTROLLER = (
    "type",
    "input_type",
    "input_min",
    "input_max",
    "output_min",
    "output_max",
    "kp",
    "damping_ratio",
    "impedance_mode",
    "uncouple_pos_ori",
)
_FREQUENCY_TOLERANCE = 0.01


def facts_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The comparable facts in the arguments of a robosuite environment.

    Reads ``env_name``, ``robots``, ``control_freq`` and ``controller_configs``, the latter of one arm
    (robosuite up to 1.4) or composite (from 1.5).
    """
    facts: dict[str, Any] = {}
    if "env_name" in arguments:
        facts["env_name"] = arguments["env_name"]
    if arguments.get("control_freq") is not None:
        facts["control_freq"] = float(arguments["control_freq"])
    if arguments.get("robots"):
        robots = arguments["robots"]
        facts["robots"] = [robots] if isinstance(robots, str) else list(robots)
    controller = _arm_controller(arguments.get("controller_configs"))
    if "control_delta" in controller:
        # The name of `input_type` before robosuite 1.5.
        controller = {**controller, "input_type": "delta" if controller["control_delta"] else "absolute"}
    if controller and len(facts.get("robots", ())) > 1:
        # The bases of two arms are turned against each other. Before robosuite 1.5 deltas were the world's.
        facts["controller.input_ref_frame"] = controller.get("input_ref_frame", "world")
    for key in _CONTROLLER:
        if key in controller:
            facts[f"controller.{key}"] = controller[key]
    return facts


def stated_facts(attributes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The facts in the attributes of a file's ``data`` group. Raises DataError when they are no JSON."""
    arguments: dict[str, Any] = {}
    if "env" in attributes:
        arguments["env_name"] = _text(attributes["env"])
    if "env_info" in attributes:
        arguments |= _json(attributes["env_info"], f"{where}: attribute 'env_info'")
    if "env_args" in attributes:
        stated = _json(attributes["env_args"], f"{where}: attribute 'env_args'")
        arguments |= stated.get("env_kwargs") or {}
        if "env_name" in stated:
            arguments["env_name"] = stated["env_name"]
    return facts_of(arguments)


def control_rate(states: np.ndarray[Any, Any]) -> float | None:
    """The control rate in Hz that the clock in the first column of robosuite's states shows, if any."""
    steps = np.diff(states[:, 0])
    typical = float(np.median(steps)) if len(steps) else 0.0
    if typical <= 0 or not np.allclose(steps, typical, rtol=0.05):
        return None
    return 1.0 / typical


def require_environment(facts: Facts, target: Target, where: str, allow_mismatch: bool) -> list[str]:
    """Compare how a file was recorded with the environment it is imported for.

    Returns warnings. Raises SpecMismatch when the task differs, and, unless ``allow_mismatch``, when
    one of `DECISIVE` does.
    """
    task = target.interface.settings.get("task")
    recorded = facts.get("env_name")
    if recorded is not None and task is not None and recorded != task:
        raise SpecMismatch(
            f"{where} was recorded in {recorded!r}, environment {target.name!r} is {task!r}; "
            "import it for the environment it was recorded in"
        )
    warnings: list[str] = []
    if recorded is None:
        warnings.append(f"the file does not say where it was recorded; it is taken for {target.name!r}")
    expected = {"control_freq": target.interface.control_hz, **target.facts}
    decisive: list[str] = []
    for key in sorted((facts.keys() & expected.keys()) - {"env_name"}):
        if not _same(key, facts[key], expected[key]):
            line = f"{key}: the file says {facts[key]}, environment {target.name!r} has {expected[key]}"
            (decisive if key in DECISIVE else warnings).append(line)
    if decisive and not allow_mismatch:
        lines = "\n".join(f"  {line}" for line in decisive)
        raise SpecMismatch(
            f"{where} was recorded under another control, so its actions mean something else:\n{lines}\n"
            "import it for an environment that is set up alike, or pass --allow-mismatch to import it anyway"
        )
    return [*decisive, *warnings, *_decimation(target)]


def _decimation(target: Target) -> list[str]:
    decimation = target.interface.settings.get("control_decimation", 1)
    if decimation == 1:
        return []
    return [
        f"recorded with robosuite's own control loop, imported for control_decimation {decimation}: the "
        "actions move the arm a little differently there; --set decimation=none imports them as recorded"
    ]


def _arm_controller(config: Any) -> Mapping[str, Any]:
    if isinstance(config, Sequence) and not isinstance(config, str) and config:
        config = config[0]
    if not isinstance(config, Mapping):
        return {}
    parts = config.get("body_parts")
    if not isinstance(parts, Mapping):
        return config
    arms = parts.get("arms", parts)
    arm = arms.get("right", {}) if isinstance(arms, Mapping) else {}
    return arm if isinstance(arm, Mapping) else {}


def _same(key: str, left: Any, right: Any) -> bool:
    try:
        tolerance = _FREQUENCY_TOLERANCE if key == "control_freq" else 1e-6
        return bool(np.allclose(np.asarray(left, float), np.asarray(right, float), rtol=tolerance))
    except (ValueError, TypeError):
        return left == right


def _json(value: Any, where: str) -> dict[str, Any]:
    try:
        found = json.loads(_text(value))
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error}); mend it or take it from the original file") from None
    if not isinstance(found, dict):
        raise DataError(f"{where} is a JSON {type(found).__name__}, expected an object")
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
