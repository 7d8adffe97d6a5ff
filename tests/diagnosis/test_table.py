"""The tables of symptoms: every row recognises its own lines, points at what there is, and is quick on any text."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pytest

from preflight import catalog
from preflight.diagnosis.lines import LONGEST, Finder
from preflight.diagnosis.model import Kind
from preflight.diagnosis.table import Row, known, needles_of, parse
from preflight.errors import UsageError
from preflight.explain import everything, explanation

TABLE = known()
#: A row that is whole.
ROW = """schema = 1
[[symptom]]
id = "flux-capacitor-empty"
kind = "cause"
systems = ["site"]
needles = ["flux capacitor"]
pattern = 'flux capacitor of rank (?P<rank>[0-9]{1,6}) is empty'
meaning = "It is empty."
remedy = "Fill it."
told_by = ["MEM011"]
sources = ["https://example.org/wiki"]
"""

each_row = pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.symptom.id)


@each_row
def test_a_row_takes_its_own_lines_and_no_row_before_it_does(row: Row) -> None:
    assert row.lines
    for line in row.lines:
        found = TABLE.match(line)
        assert found is not None, line
        assert found[0].id == row.symptom.id, line


def test_every_rule_and_check_that_a_row_names_exists() -> None:
    there = {item.meta.id for item in everything()}
    named = {name for row in TABLE.rows for name in row.symptom.told_by}
    assert named - there == set()
    # A cause that nobody looks for beforehand says why.
    assert not [row.symptom.id for row in TABLE.rows if not row.symptom.told_by and not row.symptom.beyond]


def test_every_symptom_that_a_row_explains_exists() -> None:
    there = {row.symptom.id for row in TABLE.rows}
    assert {name for row in TABLE.rows for name in row.symptom.explains} - there == set()


def test_no_symptom_has_the_name_of_a_rule_and_every_source_is_an_address() -> None:
    names = catalog.names_of(everything())
    assert not [row.symptom.id for row in TABLE.rows if row.symptom.id in names]
    assert not [one for row in TABLE.rows for one in row.symptom.sources if not one.startswith("https://")]
    assert max(Counter(row.symptom.id for row in TABLE.rows).values()) == 1


@each_row
def test_no_repeat_of_a_pattern_is_unbounded_or_within_another(row: Row) -> None:
    plain = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "x", row.pattern.pattern)
    assert not re.search(r"[x.)][*+]|\{\d+,\}", plain)
    assert not re.search(r"\{\d+,\d+\}\??\)(?:[*+]|\{)", plain)


@each_row
def test_hostile_lines_cost_no_time(row: Row) -> None:
    needle = row.needles[0]
    seeds = (
        needle,
        needle + " ",
        *(line[:40] for line in row.lines),
        *(line[:-1] for line in row.lines),
        "a",
        "1,",
        " ",
    )
    started = time.process_time()
    for seed in seeds:
        row.pattern.search((seed * LONGEST)[:LONGEST])
        row.pattern.search(needle + (seed * LONGEST)[:LONGEST])
    assert time.process_time() - started < 5


def test_whatever_a_row_looks_for_is_found_in_a_chunk() -> None:
    finder = Finder(needles_of(TABLE.rows))
    lines = [line for row in TABLE.rows for line in row.lines if not line.startswith("@")]
    chunk = b"".join(b"step 12 loss 0.25\n" + line.replace("\n", " ").encode() + b"\n" for line in lines)
    found = {chunk[start : chunk.find(b"\n", start)] for start in finder.starts(chunk)}
    assert {line.encode() for line in lines} <= found
    assert b"step 12 loss 0.25" not in found


def test_a_table_of_ones_own_comes_first_and_may_not_take_an_id(tmp_path: Path) -> None:
    own = tmp_path / "site.toml"
    own.write_text(ROW)
    assert known([own]).rows[0].symptom.id == "flux-capacitor-empty"
    own.write_text(ROW.replace("flux-capacitor-empty", "disk-full"))
    with pytest.raises(UsageError, match="two tables have a symptom 'disk-full'"):
        known([own])
    with pytest.raises(UsageError, match="cannot be read"):
        known([tmp_path / "absent.toml"])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('kind = "cause"', 'kind = "reason"', "kind is one of cause, consequence"),
        ("schema = 1", "schema = 2", "`schema = 1` is expected"),
        ('needles = ["flux capacitor"]', 'needles = ["Flux"]', "in lower case"),
        ("(?P<rank>", "(?P<who>", "groups that mean nothing: who"),
        ("(?P<rank>", "(", "pattern"),
        ('meaning = "It is empty."', "", "meaning is expected"),
        ('told_by = ["MEM011"]', 'told_by = "MEM011"', "list of texts"),
        ('systems = ["site"]', 'system = ["site"]', "unknown keys: system"),
        ("[[symptom]]", "[[symptom", "is no TOML"),
    ],
)
def test_a_mistake_in_a_table_is_named(old: str, new: str, why: str) -> None:
    text = ROW.replace(old, new)
    if (old, new) == ("(?P<rank>", "("):
        text = text.replace("{1,6})", "{1,6}")
    with pytest.raises(ValueError, match=re.escape(why)):
        parse(text, "site.toml")


def test_explain_tells_what_a_symptom_means() -> None:
    said = explanation("port-already-in-use")
    assert "symptom in logs · cause, named" in said
    assert "PRT011 port-in-use" in said
    assert "EADDRINUSE" in said
    with pytest.raises(UsageError, match="the nearest: port-already-in-use"):
        explanation("port-alreddy-in-use")


def test_consequences_and_causes_are_both_there() -> None:
    kinds = Counter(row.symptom.kind for row in TABLE.rows)
    assert kinds[Kind.CAUSE] >= 60
    assert kinds[Kind.CONSEQUENCE] >= 15
