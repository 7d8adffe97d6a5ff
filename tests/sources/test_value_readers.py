"""Readers of values of settings, by their names in tables."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Unresolved, Value
from preflight.sources.value_readers import READERS


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("devices", Known("8"), Known(8)),
        ("devices", Known((0, 1)), Known(2)),
        ("devices", Known("auto"), Unresolved("all devices of the node")),
        ("devices", OneOf((8, -1)), Unresolved("all devices of the node")),
        ("devices", Known("???"), Unresolved("`???`, which must be replaced")),
        ("boolean", Known("off"), Unresolved("'off' is neither true nor false")),
        ("flag", Known("off"), Known(False)),
        ("text", Known(False), Known("no")),
        ("areal_data", Known("fsdp:d4p1t2"), Known(4)),
        ("areal_pipeline", Known("sglang.d4t2"), Known(1)),
    ],
)
def test_a_value_is_read(name: str, value: Value, expected: Value) -> None:
    assert READERS[name](value) == expected
