"""Configuration: frozen classes that YAML recipes fill and dotted overrides change.

A configuration class states a field, its default and, in the string literal below it, its meaning::

    @configclass
    class CriticConfig:
        heads: int = 10
        \"\"\"M, critics in the ensemble.\"\"\"

Layers are merged in this order: defaults, recipe (after those it ``extends``), overrides. A layer
states only what it changes. A configuration field merges key by key; a plain ``dict`` or list field
is replaced as a whole by a recipe, while an override such as ``mix.demonstrations=0.5`` sets one key.
Alternatives are told apart by ``kind`` (see `BY_KIND`); naming another kind drops the settings of
the former one. Values are checked strictly: the text ``"5"`` is no number, 1.5 is no integer.

A rule across fields belongs in ``__post_init__`` and raises ValueError; the loader adds key and file.
"""

from flowrl.config import yaml_text
from flowrl.config.classes import BY_KIND, configclass, to_mapping
from flowrl.config.describe import Row, describe, show
from flowrl.config.merge import Layer, from_layers, load, parse_override
from flowrl.config.recipes import find_recipe, list_recipes, load_recipe, recipe_description

__all__ = [
    "BY_KIND",
    "Layer",
    "Row",
    "configclass",
    "describe",
    "find_recipe",
    "from_layers",
    "list_recipes",
    "load",
    "load_recipe",
    "parse_override",
    "recipe_description",
    "show",
    "to_mapping",
    "yaml_text",
]
