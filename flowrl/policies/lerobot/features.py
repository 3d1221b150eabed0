"""Match a checkpoint's features with a spec's: by name, never by position."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from flowrl.errors import SpecMismatch
from flowrl.normalisation import Normalisation
from flowrl.policies.lerobot.processors import Processors
from flowrl.spec import Feature, Spec


def matched(config: Any, spec: Spec, renamed: Mapping[str, str]) -> dict[str, str]:
    """The spec's name by the model's name, for every input of LeRobot's ``config``.

    ``renamed`` maps names of the spec to names of the model. Raises SpecMismatch listing every input without
    a feature and every one whose shape or action size differs, with the remedy.
    """
    given = {renamed.get(feature.name, feature.name): feature for feature in spec.observation}
    problems: list[str] = []
    found: dict[str, str] = {}
    for name, expected in config.input_features.items():
        if name.split(".")[-1].startswith("empty_camera_"):
            continue
        if name not in given:
            problems.append(_missing(name, expected, spec, given))
            continue
        found[name] = given[name].name
        if problem := _shape_problem(config, name, expected, given[name]):
            problems.append(problem)
    size = config.output_features["action"].shape[0]
    if size != spec.action.size:
        names = ", ".join(spec.action.names)
        problems.append(
            f"the policy's actions have {size} dimensions, the spec's {spec.action.size} ({names})"
        )
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise SpecMismatch(f"the LeRobot checkpoint ({config.type}) does not match the spec:\n{lines}")
    return found


def normalisation(processors: Processors, spec: Spec) -> Normalisation:
    """The statistics of a checkpoint as flowrl states them; what it has none of is left as it is.

    The checkpoint's own pipeline normalises what its network sees. These serve checks, and critics that see
    the state beside the encoder's features.
    """
    held = processors.statistics()
    mean, scale, low, high = list[float](), list[float](), list[float](), list[float]()
    for feature in spec.state_features:
        statistics = held.get(processors.renamed.get(feature.name, feature.name), {})
        columns = {name: value.flatten().tolist() for name, value in statistics.items()}
        zeros, ones = [0.0] * feature.size, [1.0] * feature.size
        bottom = columns.get("min", [-c for c in ones])
        top = columns.get("max", ones)
        centre = columns.get("mean", [(a + b) / 2 for a, b in zip(bottom, top, strict=True)])
        spread = columns.get("std", [(b - a) / 4 for a, b in zip(bottom, top, strict=True)])
        mean += centre if statistics else zeros
        scale += [max(s, 3e-3) for s in spread] if statistics else ones
        low += columns.get("q01", bottom)
        high += columns.get("q99", top)
    bounds = list(zip(spec.action.low, spec.action.high, strict=True))
    return Normalisation(
        state_mean=tuple(mean),
        state_scale=tuple(scale),
        state_q01=tuple(low),
        state_q99=tuple(high),
        action_centre=tuple((a + b) / 2 for a, b in bounds),
        action_half_range=tuple((b - a) / 2 for a, b in bounds),
    )


def _missing(name: str, expected: Any, spec: Spec, given: Mapping[str, Feature]) -> str:
    kind = "camera" if expected.type.value == "VISUAL" else "feature"
    free = [f.name for f in spec.observation if f.is_image == (kind == "camera")]
    near = difflib.get_close_matches(name, free, 1, 0.0)
    hint = f"; if {near[0]!r} is meant, rename {near[0]}={name}" if near else ""
    return f"{kind} {name!r} is missing; the spec has {', '.join(free) or 'none'}{hint}"


def _shape_problem(config: Any, name: str, expected: Any, feature: Feature) -> str | None:
    shape = tuple(expected.shape)
    if feature.is_image and resizes(config):
        return None
    if shape == feature.shape:
        return None
    remedy = (
        "record and act with frames of the policy's size (image_size)"
        if feature.is_image
        else ("choose the environment's settings with which the policy was trained")
    )
    return f"{feature.name!r} has shape {feature.shape}, the policy's {name!r} {shape}; {remedy}"


def resizes(config: Any) -> bool:
    """Whether the network itself brings frames to its size, so that theirs may be any."""
    if config.type in ("smolvla", "pi0", "pi05"):
        return True
    return getattr(config, "resize_shape", None) is not None or (
        getattr(config, "image_resize_shape", None) is not None
    )
