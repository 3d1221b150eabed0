"""Layers of settings merged along the types of a configuration class, then checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from flowrl.config import yaml_text
from flowrl.config.classes import alternatives, config_fields, default_mapping, kind_of, options_of
from flowrl.config.describe import describe
from flowrl.errors import ConfigError


@dataclass(frozen=True)
class Layer:
    """Settings of one origin: a file, an override. ``depth`` counts the dots of an override."""

    values: Mapping[str, Any]
    source: str
    depth: int = 0


def load[C](cls: type[C], mapping: Mapping[str, Any], source: str = "configuration") -> C:
    """Fill ``cls`` from a nested mapping; ``source`` names the mapping in messages.

    Raises:
        ConfigError: an unknown key (with the nearest valid one), a missing or a wrong value.
    """
    return from_layers(cls, [Layer(mapping, source)])


def from_layers[C](cls: type[C], layers: Sequence[Layer]) -> C:
    """Merge layers, later ones winning, and check the result. Raises ConfigError as `load` does."""
    merge = _Merge(cls)
    merged: dict[str, Any] = default_mapping(cls)
    for layer in layers:
        merged = merge.value(cls, merged, layer.values, layer, "", layer.depth)
    try:
        return TypeAdapter(cls).validate_json(to_json(merged, inf_nan_mode="constants"))
    except ValidationError as error:
        raise ConfigError(_explain(cls, merged, merge.origins, error)) from None


def parse_override(text: str) -> Layer:
    """``a.b=value`` as a layer; the value is YAML. Raises ConfigError when the text has another form."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {text!r}: expected KEY=VALUE, for example algorithm.kl_budget=0.3")
    nested: Any = yaml_text.parse(value, f"override {text!r}")
    for part in reversed(parts):
        nested = {part: nested}
    return Layer(nested, f"override {text!r}", depth=len(parts))


class _Merge:
    """Merges layers along the types of ``root`` and remembers which origin set which key."""

    def __init__(self, root: type) -> None:
        self.root = root
        self.origins: dict[str, str] = {}

    def value(self, annotation: object, base: Any, new: Any, layer: Layer, key: str, depth: int) -> Any:
        """``new`` laid over ``base``; with ``depth`` > 0 an override still descends, so dicts merge."""
        self.origins[key] = layer.source
        options = options_of(annotation)
        if options and isinstance(new, Mapping):
            return self._config(options, base, cast(Mapping[str, Any], new), layer, key, depth)
        if options and not (new is None and type(None) in alternatives(annotation)):
            raise ConfigError(
                f"{layer.source}: {key or 'the file'} is {new!r}; expected {_config_hint(options, key)}"
            )
        for member in alternatives(annotation):
            inner = get_args(member)
            if get_origin(member) is dict and isinstance(new, Mapping):
                merged = dict(base or {}) if depth > 0 else {}
                for name, item in cast(Mapping[str, Any], new).items():
                    merged[name] = self.value(
                        inner[1], merged.get(name), item, layer, f"{key}.{name}", depth - 1
                    )
                return merged
            if get_origin(member) in (list, tuple) and isinstance(new, list) and options_of(inner[0]):
                items = cast(list[Any], new)
                return [self.value(inner[0], None, v, layer, f"{key}.{i}", 0) for i, v in enumerate(items)]
        return new

    def _config(
        self,
        options: list[type],
        base: Mapping[str, Any] | None,
        new: Mapping[str, Any],
        layer: Layer,
        key: str,
        depth: int,
    ) -> dict[str, Any]:
        cls = self._choose(options, base, new, layer, key)
        kind = kind_of(cls)
        merged = default_mapping(cls) if base is None or base.get("kind") != kind else dict(base)
        for name, item in new.items():
            dotted = f"{key}.{name}" if key else str(name)
            if name not in config_fields(cls):
                raise ConfigError(self._unknown(cls, str(name), dotted, layer.source, key))
            annotation = config_fields(cls)[name].annotation
            merged[name] = self.value(annotation, merged.get(name), item, layer, dotted, depth - 1)
        return merged

    @staticmethod
    def _choose(
        options: list[type],
        base: Mapping[str, Any] | None,
        new: Mapping[str, Any],
        layer: Layer,
        key: str,
    ) -> type:
        if len(options) == 1:
            return options[0]
        kinds = {kind_of(option): option for option in options}
        kind = new.get("kind", (base or {}).get("kind"))
        if kind in kinds:
            return kinds[kind]
        names = [str(name) for name in kinds]
        if kind is None:
            raise ConfigError(f"{layer.source}: {key}.kind is missing; expected one of {', '.join(names)}")
        near = difflib.get_close_matches(str(kind), names, 1, 0.0)[0]
        known = ", ".join(names)
        raise ConfigError(
            f"{layer.source}: unknown {key}.kind {kind!r}; the nearest is {near!r} (known: {known})"
        )

    def _unknown(self, cls: type, name: str, dotted: str, source: str, key: str) -> str:
        prefix = f"{key}." if key else ""
        here = [prefix + field for field in config_fields(cls)]
        near = difflib.get_close_matches(name, config_fields(cls), 1)
        if near:
            return f"{source}: unknown key {dotted!r}; the nearest valid key is {prefix + near[0]!r}"
        everywhere = [row.key for row in describe(self.root)]
        misplaced = [valid for valid in everywhere if valid.rpartition(".")[2] == name]
        far = misplaced or difflib.get_close_matches(dotted, everywhere, 1, 0.0)
        return (
            f"{source}: unknown key {dotted!r}; the nearest valid key is {far[0]!r} "
            f"(valid here: {', '.join(here)})"
        )


def _config_hint(options: list[type], key: str) -> str:
    if len(options) > 1:
        return f"a mapping with {key}.kind, one of {', '.join(str(kind_of(option)) for option in options)}"
    return f"a mapping with keys such as {', '.join(list(config_fields(options[0]))[:3])}"


def _explain(cls: type, merged: Mapping[str, Any], origins: Mapping[str, str], error: ValidationError) -> str:
    """The first problem pydantic found of every key, in the user's terms."""
    seen: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        key = _dotted(problem["loc"], merged, problem["type"] == "missing")
        source = origins.get(key) or origins.get(key.rpartition(".")[0]) or origins.get("", "configuration")
        if problem["type"] == "missing":
            text = f"{source}: {key} is missing and has no default"
        elif problem["type"] == "value_error":
            text = f"{source}: {key + ': ' if key else ''}{problem['msg'].removeprefix('Value error, ')}"
        else:
            expected = problem["msg"].removeprefix("Input should be ")
            text = f"{source}: {key} is {problem['input']!r}; expected {expected}"
        seen.setdefault(key, text + _type_note(cls, key))
    return "\n".join(seen.values())


def _type_note(cls: type, key: str) -> str:
    row = next((row for row in describe(cls) if row.key == key), None)
    return f" ({row.type}; {row.meaning})" if row and row.meaning else ""


def _dotted(location: Sequence[int | str], merged: Any, missing: bool) -> str:
    """Pydantic's location without the names of union members, which are no keys of ours."""
    parts: list[str] = []
    here, told = merged, None
    for index, part in enumerate(location):
        # An alternative's kind comes before its keys, and may be the name of one of them.
        if isinstance(here, dict) and here is not told and cast(Any, here).get("kind") == part:
            told = here
            continue
        inside = part in here if isinstance(here, dict) else isinstance(here, list) and isinstance(part, int)
        if inside:
            here = cast(Any, here)[part]
        if inside or (missing and index == len(location) - 1):
            parts.append(str(part))
    return ".".join(parts)
