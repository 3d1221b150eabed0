"""Configuration classes and what can be read off them: fields, alternatives, meanings, defaults."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

BY_KIND: Any = Field(discriminator="kind")
"""Marks alternatives: ``algorithm: Annotated[SQAMConfig | BCConfig, BY_KIND]``.

Each alternative has a field such as ``kind: Literal["sqam"] = "sqam"``.
"""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field, field))
def configclass[C](cls: type[C]) -> type[C]:
    """Turn a class into a frozen, keyword-only, strictly typed configuration class.

    A dictionary or list may be a default; each instance gets its own copy.
    """
    for name in inspect.get_annotations(cls):
        default = cls.__dict__.get(name)
        if isinstance(default, (dict, list, set)):
            setattr(cls, name, field(default_factory=partial(deepcopy, cast(object, default))))
    settings = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, validate_default=True)
    return cast(type[C], pydantic_dataclass(cls, config=settings, frozen=True, kw_only=True))


def to_mapping(cfg: object) -> dict[str, Any]:
    """A configuration as nested dictionaries of YAML values, every default included."""
    return cast(dict[str, Any], plain(cfg))


def config_fields(cls: type) -> dict[str, FieldInfo]:
    """The fields of a configuration class by name."""
    return cast(dict[str, FieldInfo], getattr(cls, "__pydantic_fields__", {}))


def is_config(annotation: object) -> bool:
    """Whether a type is a configuration class."""
    return (
        isinstance(annotation, type)
        and is_dataclass(annotation)
        and hasattr(annotation, "__pydantic_fields__")
    )


def alternatives(annotation: object) -> list[object]:
    """The alternatives of a type, through Annotated and unions."""
    if get_origin(annotation) is typing.Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [inner for member in get_args(annotation) for inner in alternatives(member)]
    return [annotation]


def options_of(annotation: object) -> list[type]:
    """The configuration classes among the alternatives of a type."""
    return [cast(type, member) for member in alternatives(annotation) if is_config(member)]


def kind_of(cls: type) -> str | None:
    """The kind that tells a configuration class from its alternatives, if it has one."""
    info = config_fields(cls).get("kind")
    if info is None or get_origin(info.annotation) is not Literal:
        return None
    return str(get_args(info.annotation)[0])


def meaning_of(cls: type, name: str) -> str:
    """A field's docstring; an inherited field keeps the one of the class that states it."""
    for base in cls.__mro__:
        info: FieldInfo | None = getattr(base, "__pydantic_fields__", {}).get(name)
        if info is not None and info.description:
            return " ".join(info.description.split())
    return ""


def plain(value: object) -> object:
    """A value as YAML can hold it: classes and tuples become mappings and lists, paths become text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast(Mapping[Any, object], value).items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in cast(Sequence[object], value)]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def default_mapping(cls: type) -> dict[str, Any]:
    """The defaults of a class as a mapping; required fields are absent."""
    found: dict[str, Any] = {}
    for name, info in config_fields(cls).items():
        if not info.is_required():
            found[name] = plain(info.get_default(call_default_factory=True, validated_data={}))
    return found
