"""Accelerate's configuration: claims, their locations, and faults, which do not affect the rest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model.job import Claim, Known, NoteKind, Relation, Scope, Strength, Unresolved, Value
from preflight.model.job.value import QUANTITIES, is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.framework_files import MAX_NOTES, DeepSpeedSource
from preflight.sources.configs.hugging_face import AccelerateSource
from preflight.sources.formats import lenient_json, structured
from preflight.sources.formats.tree import MemoryTree

GOOD = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_hostfile: hosts
  gradient_accumulation_steps: 4
  zero_stage: 3
machine_rank: 1
main_process_ip: node-0
main_process_port: 29511
mixed_precision: bf16
num_machines: 2
num_processes: 16
gpu_ids: 0,1
"""


def _file(text: str, path: str = "acc.yaml") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str, path: str = "acc.yaml", **files: str) -> Reading:
    return AccelerateSource().read(_file(text, path), MemoryTree(dict(files)), scope=Scope(launch="run.sh:1"))


def _only_claim(reading: Reading, quantity: str) -> Claim:
    (claim,) = [claim for claim in reading.claims if claim.quantity == quantity]
    return claim


def test_a_good_file() -> None:
    reading = _read(GOOD)
    assert reading.notes == ()
    assert all(is_known(claim.quantity) for claim in reading.claims)
    for claim in reading.claims:
        if isinstance(claim.value, Known) and claim.quantity in QUANTITIES:
            assert isinstance(claim.value.value, QUANTITIES[claim.quantity].kind), claim
    world, nodes = _only_claim(reading, "world_size"), _only_claim(reading, "nodes")
    assert (world.value, world.span.line, world.spelling) == (Known(16), 12, "num_processes: 16")
    assert (nodes.value, nodes.relation, nodes.strength) == (Known(2), Relation.REQUIRES, Strength.CONFIG)
    assert _only_claim(reading, "gradient_accumulation_steps").source == "deepspeed"
    assert _only_claim(reading, "zero_stage").value == Known(3)
    assert _only_claim(reading, "env.CUDA_VISIBLE_DEVICES").value == Known("0,1")
    assert [(r.target, r.role) for r in reading.references] == [("hosts", "hostfile")]


def test_a_json_file_gives_the_same_claims() -> None:
    reading = _read(
        '{"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "num_processes": 8}', "a.json"
    )
    assert _only_claim(reading, "world_size").value == Known(8)
    assert _only_claim(reading, "nodes").strength is Strength.DEFAULT
    assert _only_claim(reading, "master_port").value == Known(29500)


def test_fsdp_settings_are_read_in_every_spelling() -> None:
    reading = _read(
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: 3\n"
        "  state_dict_type: full_state_dict\n"
        "  fsdp_offload_params: 'true'\n  fsdp_transformer_layer_cls_to_wrap: [A, B]\n"
        "  fsdp_version: 2\n"
    )
    assert _only_claim(reading, "fsdp_sharding_strategy").value == Known("NO_SHARD")
    assert _only_claim(reading, "fsdp_state_dict_type").value == Known("FULL_STATE_DICT")
    assert _only_claim(reading, "fsdp_offload_params").value == Known(True)
    assert _only_claim(reading, "fsdp_layer_classes").value == Known(("A", "B"))
    assert _only_claim(reading, "fsdp_version").value == Known(2)


def test_placeholders_in_values_are_unresolved() -> None:
    reading = _read(
        "distributed_type: MULTI_GPU\nnum_processes: -1\nnum_machines: {{ n }}\nmain_process_ip: xxx.xxx.xxx.xxx\n"
        "main_process_port: 0\n"
    )
    for quantity in ("world_size", "nodes", "master_addr", "master_port"):
        assert isinstance(_only_claim(reading, quantity).value, Unresolved), quantity


def test_a_deepspeed_file_becomes_a_reference() -> None:
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\n"
        "deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}\n"
    )
    reading = _read(text, **{"ds.json": "{}"})
    assert [(r.target, r.role) for r in reading.references] == [("ds.json", "config")]
    assert not [claim for claim in reading.claims if claim.source == "deepspeed"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, True),
        ("distributed_type: 'NO'\nnum_processes: 1\n", True),
        ("distributed_type: ddp\nmixed_precision: bf16\n", False),
        ("model: llama\nnum_processes: 8\n", False),
        ("", False),
    ],
)
def test_files_are_recognised_by_their_keys(text: str, expected: bool) -> None:
    assert AccelerateSource().recognises(_file(text)) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n- b\n",
        "distributed_type: [\nnum_processes: 8\n",
        "distributed_type: MULTI_GPU\nfsdp_config: 3\ndeepspeed_config: [1]\nnum_processes: {a: b}\n",
        "deepspeed_config:\n  deepspeed_config_file: 7\n  deepspeed_hostfile: /etc/hosts\n",
        "fsdp_config:\n  fsdp_version: two\n  fsdp_offload_params: perhaps\n",
    ],
)
def test_a_malformed_file_does_not_raise(text: str) -> None:
    reading = _read(text)
    assert all(claim.span.line >= 1 for claim in reading.claims)


def test_a_fault_gives_a_located_note_and_the_rest_is_read() -> None:
    reading = _read("distributed_type: MULTI_GPU\nnum_processes: 8\nfsdp_config: {a: [\n")
    assert [note.kind for note in reading.notes] == [NoteKind.MALFORMED]
    assert _only_claim(reading, "world_size").value == Known(8)


# DeepSpeed's configuration: claims, their locations, and faults, which do not affect the rest.


def _deepspeed_file(text: str, path: str = "ds_config.json") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _deepspeed_read(text: str) -> Reading:
    return DeepSpeedSource().read(_deepspeed_file(text), MemoryTree({}), scope=Scope(launch="run.sh:1"), role="config")


def _claim(reading: Reading, quantity: str) -> Claim:
    (claim,) = [claim for claim in reading.claims if claim.quantity == quantity]
    return claim


DEEPSPEED_GOOD = """{
\t"train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": "auto",
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
  "fp16": {"enabled": false}, "bf16": {"enabled": true}
}
"""


def test_deepspeed_a_good_file() -> None:
    reading = _deepspeed_read(DEEPSPEED_GOOD)
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
    reading = _deepspeed_read('{"train_batch_size": ' + written + "}")
    assert _claim(reading, "train_batch_size").value == value
    assert reading.notes == ()


@pytest.mark.parametrize(
    "written", ['"{{ batch }}"', "TRAIN_BATCH", "{{ batch }}", "{{ batch }}0", '"${BATCH}"', "${BATCH}"]
)
def test_a_placeholder_is_unresolved(written: str) -> None:
    reading = _deepspeed_read('{"train_batch_size": ' + written + ', "zero_optimization": {"stage": 3}}')
    assert isinstance(_claim(reading, "train_batch_size").value, Unresolved)
    assert _claim(reading, "zero_stage").value == Known(3)
    assert all(note.kind is NoteKind.TEMPLATE for note in reading.notes)


def test_template_statements_around_members() -> None:
    reading = _deepspeed_read('{\n{% if fp16 %}\n"fp16": {"enabled": true},\n{% endif %}\n"train_batch_size": 8\n}')
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
    reading = _deepspeed_read(text)
    if "never closed" not in word:
        assert _claim(reading, "train_batch_size").value == Known(8)
    found = next(note for note in reading.notes if word in note.message)
    assert found.kind is NoteKind.MALFORMED
    assert (found.span.line, found.span.column) == (line, column)


def test_a_missing_comma_keeps_the_nesting() -> None:
    reading = _deepspeed_read(
        '{"train_batch_size": 8 "zero_optimization": {"offload": {"a": 1} "stage": 2} "stage": 9}'
    )
    assert _claim(reading, "zero_stage").value == Known(2)


def test_the_last_of_equal_keys_wins() -> None:
    reading = _deepspeed_read('{"train_batch_size": 8,\n "train_batch_size": 16}')
    assert _claim(reading, "train_batch_size").value == Known(16)
    (note,) = reading.notes
    assert note.span.line == 2 and "already on line 1" in note.message


@pytest.mark.parametrize("text", ["", "   ", "[1]", "64", '"x"', "{{ everything }}", "not json"])
def test_a_value_that_is_not_an_object_gives_a_note(text: str) -> None:
    reading = _deepspeed_read(text)
    assert reading.claims == () and reading.notes


def test_depth_is_bounded() -> None:
    for text in ("[" * 200_000, '{"a":' * 200_000, '{"train_batch_size": 8, "a": ' + "[" * 100_000):
        assert any("deep" in note.message for note in _deepspeed_read(text).notes)


def test_the_number_of_notes_is_bounded() -> None:
    assert len(_deepspeed_read("{" + "?" * 100_000).notes) <= MAX_NOTES


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
    assert DeepSpeedSource().recognises(_deepspeed_file(text, path)) is expected


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
    reading = _deepspeed_read(text)
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
