"""Describes a framework's configuration file as a table: how it is recognised, and which key states which quantity.

A framework needs no specific code unless values depend on each other; that code is `also`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from preflight.model.job import Known, Plain, Relation, Unresolved, Value, as_int, lift
from preflight.sources.configs import fsdp
from preflight.sources.formats.structured import Node, NodeClaims

Reader = Callable[[Value], Value]
Also = Callable[[NodeClaims, Node], None]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a configuration, dotted from the top: `parallelism.tensor_parallel_degree`.

    If several keys state one quantity, the first that the file has counts. A key with `beside` counts only in a file
    that also has the `beside` key.
    """

    path: str
    quantity: str
    read: Reader = as_int
    relation: Relation = Relation.SETS
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """The configuration of one framework.

    Args:
        name: the source of its claims.
        suffixes: the suffixes of its files.
        signs: patterns that must all occur in the head of a file; its keys identify it, not its name.
        keys: the keys that are read. Their source, with its version, is in the docstring of the table's module.
        programs: how the names of its scripts or modules end; they identify a command line without a file.
        normal: converts a key to the spelling that is looked up, if the framework accepts several.
        also: states quantities that depend on several keys.
        others: keys of other frameworks; a file with one of them does not belong to this framework.
        base: a key that names the file whose values count if this one has none.
        imports: strings of which a Python module that builds such a configuration contains one. Empty if no module
        does.
        registries: folders below which `--module NAME --config FUNCTION` finds NAME/config_registry.py.
        min_keys: the number of keys that identifies a Python object as a configuration of this framework.
        head: the number of characters that are searched for `signs`.
        extended_by: keys that name a module with further keys.
        settings: whether every key is stated as a setting, too.
    """

    name: str
    suffixes: tuple[str, ...]
    signs: tuple[re.Pattern[str], ...]
    keys: tuple[Key, ...]
    programs: tuple[str, ...] = ()
    normal: Callable[[Node], Node] | None = None
    also: Also | None = None
    others: tuple[re.Pattern[str], ...] = ()
    base: str = ""
    imports: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    min_keys: int = 2
    head: int = 40_000
    extended_by: tuple[str, ...] = ()
    settings: bool = False


def map_alternatives(function: Callable[[Plain], Plain]) -> Reader:
    """A reader that applies `function` to each alternative."""
    return lambda value: lift(function, value)


def as_text(value: Value) -> Value:
    """The value as a string."""
    return lift(str, value)


def as_path(value: Value) -> Value:
    """A folder or file; an address of object storage (`s3://bucket/run`) is neither."""
    return lift(_path, value)


def _path(item: Plain) -> str:
    text = str(item)
    if "://" in text or not text.strip():
        raise ValueError(f"{text[:80]}: not a path in a file system")
    return text


def as_flag(value: Value) -> Value:
    """A boolean, also as the word `true` or `false`."""
    return fsdp.as_bool(value)


def as_float(value: Value) -> Value:
    """A floating-point number, also from a string: YAML reads `1e-4` as a string."""
    return lift(_float, value)


def _float(item: Plain) -> float:
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"not a number: {item!r}")
    return float(item)


def as_count(value: Value) -> Value:
    """A positive number; `???` must be replaced, and -1 leaves the number to the framework."""
    if value == Known("???"):
        return Unresolved("`???`, which must be replaced")
    return lift(_positive, as_int(value))


def _positive(item: Plain) -> Plain:
    if not isinstance(item, int) or item < 1:
        raise ValueError(f"{item}: left to the framework")
    return item


def at_least_one(value: Value) -> Value:
    """A parallel degree, of which 0 means the same as 1."""
    return lift(lambda item: max(int(str(item)), 1), value)


def word_of(words: dict[str, str], kind: str) -> Reader:
    """A reader that translates one of a few words into the vocabulary of claims; any other word is unresolved."""

    def read(item: Plain) -> Plain:
        found = words.get(str(item).lower())
        if found is None:
            raise ValueError(f"{item!r} is not a {kind}")
        return found

    return lambda value: lift(read, value)


#: Number formats, by the names that most frameworks use.
FORMATS = {
    **dict.fromkeys(("16", "16-mixed", "16-true", "fp16", "float16", "amp_fp16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bf16-mixed", "bf16-true", "bfloat16", "amp_bf16"), "bf16"),
    **dict.fromkeys(("32", "32-true", "64", "64-true", "fp32", "float32", "float"), "no"),
    **dict.fromkeys(("amp_fp8", "fp8"), "fp8"),
}
#: Activation functions whose feed-forward part has a gate.
GATED = frozenset(("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu"))
