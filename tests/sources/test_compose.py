"""Compose files: what services run and are given."""

from __future__ import annotations

from preflight.job import Claim, Known, NoteKind, Unresolved
from preflight.job.quantities import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.containers.compose import ComposeSource
from preflight.sources.tree import MemoryTree

COMPOSE = """\
services:
  master:
    image: example/cuda:1
    environment:
      NCCL_DEBUG: INFO
      N: ${N:-4}
    command: torchrun --nnodes=2 --node_rank=0 --master_addr=master --nproc_per_node=$N train.py
    shm_size: 8gb
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
  worker:
    build: .
    environment:
      - P=8
      - HF_TOKEN
    command: ["bash", "-c", "torchrun --nnodes=2 --node_rank=1 --nproc_per_node=$$P train.py"]
    ipc: host
"""


def _read(text: str, path: str = "docker-compose.yml") -> Reading:
    file = SourceFile(path, text, "", len(text))
    assert ComposeSource().recognises(file)
    reading = ComposeSource().read(file, MemoryTree({path: text}))
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _of(reading: Reading, launch: int) -> dict[str, Claim]:
    scope = reading.launches[launch].scope
    return {claim.quantity: claim for claim in reading.claims if claim.scope == scope}


def test_a_command_in_one_text() -> None:
    said = _of(_read(COMPOSE), 0)
    assert said["nodes"].value == Known(2)
    assert (said["nodes"].span.line, said["nodes"].span.column) == (7, 23)
    assert isinstance(said["processes_per_node"].value, Unresolved)
    assert (said["shm_mib"].value, said["gpus_per_node"].value) == (Known(8192), Known(2))
    assert said["env.NCCL_DEBUG"].value == Known("INFO")


def test_a_command_in_words_and_doubled_signs() -> None:
    said = _of(_read(COMPOSE), 1)
    assert said["processes_per_node"].value == Known(8)
    assert COMPOSE.split("\n")[14][said["processes_per_node"].span.column - 1 :].startswith("--nproc_per_node")
    assert isinstance(said["shm_mib"].value, Unresolved)
    assert isinstance(said["container_run"].value, Unresolved)
    assert said["container_network"].value == Known("compose")


def test_a_service_that_starts_nothing_is_still_told() -> None:
    reading = _read("services:\n  db: {image: postgres, runtime: nvidia}\n")
    assert reading.launches == ()
    assert {claim.quantity for claim in reading.claims} == {"container_run", "container_gpus", "container_network"}


def test_broken_and_empty_files() -> None:
    assert _read("services:\n").claims == ()
    notes = _read("services:\n  a: [\n").notes
    assert [note.kind for note in notes] == [NoteKind.MALFORMED]


def test_other_yaml_is_left_alone() -> None:
    assert not ComposeSource().recognises(SourceFile("values.yaml", "services:\n", "", 10))
    assert not ComposeSource().recognises(SourceFile("compose.yaml", "model: a\n", "", 9))
