"""What is known of published models: to which family a name belongs, and which layers a family has."""

from __future__ import annotations

import functools
import re

from preflight.tables.transformer_layers import TRANSFORMER_LAYERS
from preflight_rules.tables import models

#: Longer texts are no names.
_LONGEST_NAME = 200


@functools.lru_cache(maxsize=256)
def family_of(name: str) -> str:
    """The family of a model by its published name (`meta-llama/Llama-2-7b-hf`); empty when the name does not tell."""
    last = name.rstrip("/").rpartition("/")[2].lower()[:_LONGEST_NAME]
    return next((family for pattern, family in models() if re.search(pattern, last)), "")


@functools.cache
def layers_of(family: str) -> tuple[str, ...]:
    """The layer classes of a family that its models keep whole, the one with a number of layers last."""
    return tuple(row.dest for row in TRANSFORMER_LAYERS.rows if row.kind == family)


@functools.cache
def families_with(layer: str) -> frozenset[str]:
    """The families that have a layer class of this name; empty for one that is not known."""
    return frozenset(row.kind for row in TRANSFORMER_LAYERS.rows if row.dest == layer)


def main_layer(family: str) -> str:
    """The layer class that makes up most of a model of this family; empty where none is known."""
    return next((name for name in layers_of(family) if name.endswith(("Layer", "Block"))), "")
