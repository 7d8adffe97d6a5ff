"""DeepSpeed's configuration: claims, their locations, and faults, which do not affect the rest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model.job import Claim, Known, NoteKind, Scope, Strength, Unresolved, Value
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.framework_files import MAX_NOTES, DeepSpeedSource
from preflight.sources.formats import lenient_json, structured
from preflight.sources.formats.tree import MemoryTree


def _file(text: str, path: str = "ds_config.json") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str) -> Reading:
    return DeepSpeedSource().read(_file(text), MemoryTree({}), scope=Scope(launch="run.sh:1"), role="config")


def _claim(reading: Reading, quantity: str) -> Claim:
    (claim,) = [claim for claim in reading.claims if claim.quantity == quantity]
    return claim


GOOD = """{
\t"train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": "auto",
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
  "fp16": {"enabled": false}, "bf16": {"enabled": true}
}
"""


def test_a_good_file() -> None:
    reading = _read(GOOD)
    assert reading.notes == ()
    batch = _claim(reading, "train_batch_size")
    assert batch.value == Known(64)
    assert batch.spelling == '"train_batch_size": 64'
    assert (batch.span.line, batch.span.column, batch.span.end_column) == (2, 22, 24)
    assert batch.scope == Scope(launch="run.sh:1")
    assert batch.strength is Strength.CONFIG and batch.source == "deepspeed"
    assert _claim(reading, "gradient_accumulation_steps").value == Unresolved("auto: filled in by the trainer")
    stage = _claim(reading, "zero_stage")
    assert stage.value == Known(2) and stage.span.line == 5
    assert _claim(reading, "bf16_enabled").value == Known(True)
    assert all(is_known(claim.quantity) for claim in reading.claims)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"64"', Known("64")),
        ("1.5", Known(1.5)),
        ("-4", Known(-4)),
        ("0", Known(0)),
        ("true", Known(True)),
        ("null", Known(None)),
        ("[1, 2]", Known("[1, 2]")),
        ("1e2", Known(100.0)),
    ],
)
def test_a_wrong_type_is_claimed_as_written(written: str, value: Value) -> None:
    reading = _read('{"train_batch_size": ' + written + "}")
    assert _claim(reading, "train_batch_size").value == value
    assert reading.notes == ()


@pytest.mark.parametrize(
    "written", ['"{{ batch }}"', "TRAIN_BATCH", "{{ batch }}", "{{ batch }}0", '"${BATCH}"', "${BATCH}"]
)
def test_a_placeholder_is_unresolved(written: str) -> None:
    reading = _read('{"train_batch_size": ' + written + ', "zero_optimization": {"stage": 3}}')
    assert isinstance(_claim(reading, "train_batch_size").value, Unresolved)
    assert _claim(reading, "zero_stage").value == Known(3)
    assert all(note.kind is NoteKind.TEMPLATE for note in reading.notes)


def test_template_statements_around_members() -> None:
    reading = _read('{\n{% if fp16 %}\n"fp16": {"enabled": true},\n{% endif %}\n"train_batch_size": 8\n}')
    assert _claim(reading, "train_batch_size").value == Known(8)
    assert [note.span.line for note in reading.notes] == [2, 4]


@pytest.mark.parametrize(
    ("text", "line", "column", "word"),
    [
        ('{"fp16": {"enabled": true}\n "train_batch_size": 8}', 1, 26, "comma is missing"),
        ('{"train_batch_size": 8,\n}', 1, 23, "a comma before `}`"),
        ('{// why\n"train_batch_size": 8}', 1, 2, "no comments"),
        ('{/* why\n"train_batch_size": 8}', 1, 2, "never closed"),
        ('{"train_batch_size": 8', 1, 23, "the file ends inside the object"),
        ('{"train_batch_size": 8, "fp16": {"enab', 1, 34, "not closed on its line"),
        ('{"train_batch_size": 8, "fp16": }', 1, 25, "has no value"),
        ('{"train_batch_size": 8, "fp16" 3}', 1, 25, "expected `:`"),
        ('{"train_batch_size": 8} {', 1, 25, "after the end"),
        ('{"train_batch_size": 8, "a": True}', 1, 30, "Python"),
        ('{"train_batch_size": 8, "a": yes}', 1, 30, "not a JSON value"),
        ("{'train_batch_size': 8}", 1, 2, "single quotes"),
        ("{train_batch_size: 8}", 1, 2, "not in double quotes"),
        ('{"train_batch_size": 8]}', 1, 22, "comma is missing"),
    ],
)
def test_a_fault_is_located_and_the_rest_is_read(text: str, line: int, column: int, word: str) -> None:
    reading = _read(text)
    if "never closed" not in word:
        assert _claim(reading, "train_batch_size").value == Known(8)
    found = next(note for note in reading.notes if word in note.message)
    assert found.kind is NoteKind.MALFORMED
    assert (found.span.line, found.span.column) == (line, column)


def test_a_missing_comma_keeps_the_nesting() -> None:
    reading = _read('{"train_batch_size": 8 "zero_optimization": {"offload": {"a": 1} "stage": 2} "stage": 9}')
    assert _claim(reading, "zero_stage").value == Known(2)


def test_the_last_of_equal_keys_wins() -> None:
    reading = _read('{"train_batch_size": 8,\n "train_batch_size": 16}')
    assert _claim(reading, "train_batch_size").value == Known(16)
    (note,) = reading.notes
    assert note.span.line == 2 and "already on line 1" in note.message


@pytest.mark.parametrize("text", ["", "   ", "[1]", "64", '"x"', "{{ everything }}", "not json"])
def test_a_value_that_is_not_an_object_gives_a_note(text: str) -> None:
    reading = _read(text)
    assert reading.claims == () and reading.notes


def test_depth_is_bounded() -> None:
    for text in ("[" * 200_000, '{"a":' * 200_000, '{"train_batch_size": 8, "a": ' + "[" * 100_000):
        assert any("deep" in note.message for note in _read(text).notes)


def test_the_number_of_notes_is_bounded() -> None:
    assert len(_read("{" + "?" * 100_000).notes) <= MAX_NOTES


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("ds.json", '{"train_batch_size": 1}', True),
        ("conf/x.json", '{"zero_optimization": {}}', True),
        ("model.json", '{"train_batch_size": 1}', False),
        ("x.json", '{"train_batch_size": 1, "fp16": {}, "optimizer": {}}', True),
        ("ds.txt", '{"zero_optimization": {}}', False),
        ("package.json", "{}", False),
    ],
)
def test_recognition(path: str, text: str, expected: bool) -> None:
    assert DeepSpeedSource().recognises(_file(text, path)) is expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _plain(node: structured.Node) -> object:
    if node.kind is structured.Kind.OBJECT:
        return {member.key: _plain(member.node) for member in node.members}
    if node.kind is structured.Kind.ARRAY:
        return [_plain(item) for item in node.items]
    return node.value


@given(_JSON, st.sampled_from([None, 2, "\t"]))
def test_real_json_is_read_as_json_reads_it(value: object, indent: int | str | None) -> None:
    text = json.dumps(value, indent=indent)
    document = lenient_json.parse(text)
    assert document.root is not None
    if "{{" in text or "{%" in text or "${" in text or "<%" in text or "$(" in text or "@" in text:
        return
    assert document.faults == ()
    assert _plain(document.root) == value


@given(st.text(alphabet="{}[]\",:\\/*#$@%<> \n\t'ab1-.eé", max_size=80) | st.text(max_size=80))
def test_any_text_gives_claims_or_notes(text: str) -> None:
    reading = _read(text)
    length = text.count("\n") + 1
    assert all(1 <= note.span.line <= length for note in reading.notes)


def test_keys_are_claimed_by_name_at_the_top_and_below_zero() -> None:
    text = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, "x": 1}'
    tree = MemoryTree({"ds.json": text})
    file = tree.read("ds.json")
    assert isinstance(file, SourceFile)
    found = [c for c in DeepSpeedSource().read(file, tree).claims if c.quantity == "deepspeed_key"]
    assert [c.value for c in found] == [
        Known("train_batch_size"),
        Known("zero_optimization"),
        Known("x"),
        Known("zero_optimization.stage"),
        Known("zero_optimization.offload_param"),
        Known("zero_optimization.offload_param.device"),
    ]
    assert (found[1].span.column, found[1].spelling) == (25, '"zero_optimization"')
