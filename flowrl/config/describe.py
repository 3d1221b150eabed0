"""A configuration shown to people: a table of settings, or YAML with meanings as comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, cast, get_args, get_origin

from flowrl.config import yaml_text
from flowrl.config.classes import (
    alternatives,
    config_fields,
    default_mapping,
    is_config,
    kind_of,
    meaning_of,
    options_of,
    plain,
)


@dataclass(frozen=True)
class Row:
    """One setting as `describe` lists it; ``only_for`` names the kind it belongs to, if any."""

    key: str
    type: str
    default: str
    meaning: str
    only_for: str = ""


def describe(cls: type) -> list[Row]:
    """Every setting of ``cls`` with its dotted key, type, default and meaning."""
    return list(_rows(cls, default_mapping(cls), "", ""))


def show(cfg: object) -> str:
    """A configuration as YAML with every meaning as a comment; `load` of it gives an equal one.

    A value that differs from its default has the default in its comment.
    """
    return "\n".join(_lines(cfg, default_mapping(type(cfg)), "")) + "\n"


def _type_name(annotation: object) -> str:
    members = alternatives(annotation)
    if len(members) > 1:
        return " | ".join(_type_name(member) for member in members)
    member = members[0]
    if get_origin(member) is Literal:
        return " | ".join(str(value) for value in get_args(member))
    if member is type(None):
        return "null"
    if get_origin(member) is not None:
        inner = ", ".join("..." if arg is Ellipsis else _type_name(arg) for arg in get_args(member))
        return f"{getattr(get_origin(member), '__name__', member)}[{inner}]"
    return getattr(member, "__name__", str(member))


def _rows(cls: type, defaults: Mapping[str, Any], prefix: str, only_for: str) -> Iterator[Row]:
    for name, field in config_fields(cls).items():
        key, options, meaning = prefix + name, options_of(field.annotation), meaning_of(cls, name)
        stated = defaults.get(name)
        if not options:
            default = yaml_text.scalar(stated) if name in defaults else "required"
            yield Row(key, _type_name(field.annotation), default, meaning, only_for)
            continue
        if len(options) > 1 or stated is None:
            kinds = " | ".join(str(kind_of(option)) for option in options)
            default = stated["kind"] if stated else "null" if name in defaults else "required"
            choice = (f"{key}.kind", kinds) if len(options) > 1 else (key, _type_name(field.annotation))
            yield Row(*choice, default, meaning, only_for)
        for option in options:
            inner = stated if stated and stated.get("kind") == kind_of(option) else default_mapping(option)
            condition = f"{key}.kind={kind_of(option)}" if len(options) > 1 else only_for
            for row in _rows(option, inner, f"{key}.", condition):
                if len(options) == 1 or row.key != f"{key}.kind":
                    yield row


def _lines(cfg: object, defaults: Mapping[str, Any] | None, indent: str) -> Iterator[str]:
    for field in fields(cast(Any, cfg)):
        value, meaning = getattr(cfg, field.name), meaning_of(type(cfg), field.name)
        default = (defaults or {}).get(field.name, MISSING)
        if is_config(type(value)):
            yield from ([f"{indent}# {meaning}"] if meaning else [])
            yield f"{indent}{field.name}:"
            same_kind = isinstance(default, dict) and cast(Any, default).get("kind") == kind_of(type(value))
            inner = cast(Any, default) if same_kind else default_mapping(type(value))
            yield from _lines(value, inner, indent + "  ")
            continue
        shown = plain(value)
        changed = default is not MISSING and shown != default
        note = " ".join(filter(None, [meaning, f"(default {yaml_text.scalar(default)})" if changed else ""]))
        line = f"{indent}{field.name}: {yaml_text.scalar(shown)}"
        if note and len(line) + len(note) + 4 > 100:
            yield f"{indent}# {note}"
            yield line
        else:
            yield f"{line}  # {note}" if note else line
