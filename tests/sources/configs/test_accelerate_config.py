"""Accelerate's configuration: claims, their locations, and faults, which do not affect the rest."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, NoteKind, Relation, Scope, Strength, Unresolved
from preflight.model.job.value import QUANTITIES, is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.accelerate_config import AccelerateSource
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
