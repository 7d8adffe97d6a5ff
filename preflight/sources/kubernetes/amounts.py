"""Kubernetes' way to write numbers: `500m` cores, `64Gi` of memory."""

from __future__ import annotations

from preflight.job import Plain, Value, lift
from preflight.lazy.patterns import lazy_pattern

_AMOUNT = lazy_pattern(r"\s*([0-9]*\.?[0-9]+)\s*(m|k|K|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei|[eE][+-]?[0-9]+)?\s*")
_FACTORS = {"": 1.0, "m": 0.001}
_FACTORS.update({sign: 1000.0**power for power, sign in enumerate("kMGTPE", start=1)})
_FACTORS.update({f"{sign}i": 1024.0**power for power, sign in enumerate("KMGTPE", start=1)})
_FACTORS["K"] = 1000.0


def amount(item: Plain) -> float:
    """The number a quantity stands for. Raises ValueError for what is none."""
    if isinstance(item, bool) or item is None or isinstance(item, tuple):
        raise ValueError(f"{item!r} is no quantity")
    match = _AMOUNT.fullmatch(str(item))
    if match is None:
        raise ValueError(f"{item!r} is no quantity")
    suffix = match[2] or ""
    if suffix[:1] in ("e", "E") and suffix not in _FACTORS:
        return float(match[1] + suffix)
    return float(match[1]) * _FACTORS[suffix]


def cores(value: Value) -> Value:
    """CPU cores, with fractions."""
    return lift(amount, value)


def whole(value: Value) -> Value:
    """Devices, which only come whole."""
    return lift(lambda item: int(amount(item)), value)


def mebibytes(value: Value) -> Value:
    """Memory in MiB, rounded down."""
    return lift(lambda item: int(amount(item) / 1024**2), value)
