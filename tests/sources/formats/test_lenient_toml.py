from __future__ import annotations

from typing import Any

import pytest

from preflight._util import toml
from preflight.sources.formats import lenient_toml
from preflight.sources.formats.structured import Kind, Node

GOOD = """# a training
title = "small"
"quoted key" = 'literal \\n'
a.b.c = 1_000

[training]
steps = 0x10
lr = 3e-4          # a number
seq = [
  1024,
  2048,  # twice
]
inline = { x = 1, y = { z = "deep" } }
note = \"\"\"
two
lines\"\"\"
on = true

[training.inner]
value = -1

[[stage]]
name = "first"
[[stage]]
name = "second"
"""


def plain(node: Node) -> Any:
    """The value in the types of `tomllib`."""
    if node.kind is Kind.OBJECT:
        return {member.key: plain(member.node) for member in node.in_force}
    return [plain(item) for item in node.items] if node.kind is Kind.ARRAY else node.value


def test_values_are_those_of_tomllib() -> None:
    document = lenient_toml.parse(GOOD)
    assert document.root is not None and not document.faults
    assert plain(document.root) == toml.loads(GOOD)


def test_every_value_has_its_location() -> None:
    root = lenient_toml.parse(GOOD).root
    assert root is not None
    member = root.member("training", "lr")
    assert member is not None
    assert GOOD[member.key_start : member.node.end] == "lr = 3e-4"
    assert GOOD[member.node.start : member.node.end] == "3e-4"


def test_a_broken_line_does_not_affect_others() -> None:
    document = lenient_toml.parse("a = \nb = text\n[c\nd = 4\n[e]\nf = 5\n")
    assert document.root is not None
    assert plain(document.root) == {"d": 4, "e": {"f": 5}}
    assert len(document.faults) == 3


@pytest.mark.parametrize("text", ["x = ${N}", "x = {{ n }}", 'x = "$N"', 'x = "${N}"', "x = <nodes>"])
def test_a_placeholder_is_not_a_value(text: str) -> None:
    root = lenient_toml.parse(text).root
    assert root is not None and [member.node.kind for member in root.members] == [Kind.TEMPLATE]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "[", "[[a]", "a", "a = [1,", "a = {b", 'a = "x', "a" + ".a" * 100 + " = 1", "[" * 500]
)
def test_damaged_text_does_not_raise(text: str) -> None:
    document = lenient_toml.parse(text)
    assert document.root is None and document.faults


def test_a_table_with_the_name_of_a_value_is_a_fault() -> None:
    document = lenient_toml.parse("a = 1\n[a.b]\nc = 2\n")
    assert [fault.message for fault in document.faults] == ["a already has a value and cannot be a table"]
