"""Describes a framework's configuration file: how it is recognised, and which key states which quantity.

`frameworks.toml` has one such description for each. A framework needs no code unless values depend on each other; that
code is `also`.
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
    """The configuration of one framework, as `frameworks.toml` describes it.

    Args:
        name: the source of its claims.
        normal: converts a key to the spelling that is looked up, if the framework accepts several.
        also: states quantities that depend on several keys.
        min_keys: the number of keys that identifies a Python object as a configuration of this framework.
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


def _number(value: Value) -> Value:
    return Unresolved("`???`, which must be replaced") if value == Known("???") else as_int(value)


def _devices(value: Value) -> Value:
    """`8`, `"8"`, `[0, 1]` as a count; `-1` and `auto` mean all devices."""
    if isinstance(value, Known) and isinstance(value.value, tuple):
        return Known(len(value.value))
    return Unresolved("all devices of the node") if value in (Known("auto"), Known(-1), Known("-1")) else _number(value)


def _count_or_auto(value: Value) -> Value:
    return Unresolved("auto: found by trial in the first steps") if value == Known("auto") else as_int(value)


def _limit(item: Plain) -> Plain:
    if int(str(item)) < 1:
        raise ValueError("no step limit")
    return int(str(item))


#: Readers of values, by their names in `frameworks.toml`.
READERS: dict[str, Reader] = {
    "any": lambda value: value,
    "count": as_count,
    "int": as_int,
    "float": as_float,
    "flag": as_flag,
    "path": as_path,
    "text": as_text,
    "lower": map_alternatives(lambda item: str(item).lower()),
    "number": _number,
    "limit": map_alternatives(_limit),
    "at_least_one": at_least_one,
    "above_zero": map_alternatives(lambda item: int(str(item)) > 0),
    "count_or_auto": _count_or_auto,
    "devices": _devices,
    #: GPUs of one node; those of several nodes are a list of lists, which has no single number.
    "length": map_alternatives(lambda item: len(item) if isinstance(item, tuple) and item else 1),
    "minutes": map_alternatives(lambda item: int(float(str(item)) * 60)),
    "format": word_of(FORMATS, "number format"),
    "neox_format": map_alternatives(lambda item: {"bfloat16": "bf16"}.get(str(item), str(item))),
    "gated": map_alternatives(lambda item: str(item) in GATED),
    "recompute": word_of({word: word for word in ("full", "selective", "none")}, "mode of recomputation"),
    "full_if_true": map_alternatives(lambda item: "full" if item is True else "none"),
}
