"""Published models: their families and layer classes."""

from __future__ import annotations

import functools
import re

from preflight.sources.tables import load_table
from preflight_rules.data_tables import models

#: Longer texts are not names.
_MAX_NAME_LENGTH = 200


@functools.lru_cache(maxsize=256)
def family_of(name: str) -> str:
    """The family of a model by its published name (`meta-llama/Llama-2-7b-hf`); empty if the name does not show it."""
    last = name.rstrip("/").rpartition("/")[2].lower()[:_MAX_NAME_LENGTH]
    return next((family for pattern, family in models() if re.search(pattern, last)), "")


@functools.cache
def layers_of(family: str) -> tuple[str, ...]:
    """The layer classes of a family that are kept whole, the repeated one last."""
    return tuple(row.dest for row in load_table("transformer_layers").rows if row.kind == family)


@functools.cache
def families_with(layer: str) -> frozenset[str]:
    """The families that have a layer class of this name; empty for an unknown class."""
    return frozenset(row.kind for row in load_table("transformer_layers").rows if row.dest == layer)


def main_layer(family: str) -> str:
    """The layer class that most of a model of this family consists of; empty where none is known."""
    return next((name for name in layers_of(family) if name.endswith(("Layer", "Block"))), "")
