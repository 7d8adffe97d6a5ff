"""Kubernetes' notation for numbers: `500m` cores, `64Gi` of memory."""

from __future__ import annotations

import re

from preflight.model.job import Plain, Value, lift

_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(m|k|K|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|[eE][+-]?[0-9]+)?\s*")
_FACTORS = {"": 1.0, "m": 0.001}
_FACTORS.update({sign: 1000.0**power for power, sign in enumerate("kMGTPE", start=1)})
_FACTORS.update({f"{sign}i": 1024.0**power for power, sign in enumerate("KMGTPE", start=1)})
_FACTORS["K"] = 1000.0


def amount(item: Plain) -> float:
    """Parse a quantity. Raises ValueError when it is not one."""
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"{item!r} is not a quantity")
    match = _AMOUNT.fullmatch(str(item))
    if match is None:
        raise ValueError(f"{item!r} is not a quantity")
    suffix = match[2] or ""
    if suffix[:1] in ("e", "E") and suffix not in _FACTORS:
        return float(match[1] + suffix)
    return float(match[1]) * _FACTORS[suffix]


def cores(value: Value) -> Value:
    """Parse a number of CPU cores, with fractions."""
    return lift(amount, value)


def whole_number(value: Value) -> Value:
    """Parse a number of devices, which must be whole."""
    return lift(lambda item: int(amount(item)), value)


def mebibytes(value: Value) -> Value:
    """Parse an amount of memory in MiB, rounded down."""
    return lift(lambda item: int(amount(item) / 1024**2), value)
