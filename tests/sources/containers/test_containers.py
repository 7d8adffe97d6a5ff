"""Compose files: the commands and resources of services."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, NoteKind, Unresolved, Value
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.containers import ComposeSource, DockerfileSource
from preflight.sources.formats.tree import MemoryTree

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


def test_a_command_written_as_one_string() -> None:
    said = _of(_read(COMPOSE), 0)
    assert said["nodes"].value == Known(2)
    assert (said["nodes"].span.line, said["nodes"].span.column) == (7, 23)
    assert isinstance(said["processes_per_node"].value, Unresolved)
    assert (said["shm_mib"].value, said["gpus_per_node"].value) == (Known(8192), Known(2))
    assert said["env.NCCL_DEBUG"].value == Known("INFO")


def test_a_command_written_as_a_list_and_escaped_dollars() -> None:
    said = _of(_read(COMPOSE), 1)
    assert said["processes_per_node"].value == Known(8)
    assert COMPOSE.split("\n")[14][said["processes_per_node"].span.column - 1 :].startswith("--nproc_per_node")
    assert isinstance(said["shm_mib"].value, Unresolved)
    assert isinstance(said["container_run"].value, Unresolved)
    assert said["container_network"].value == Known("compose")


def test_a_service_that_launches_nothing_still_has_claims() -> None:
    reading = _read("services:\n  db: {image: postgres, runtime: nvidia}\n")
    assert reading.launches == ()
    assert {claim.quantity for claim in reading.claims} == {"container_run", "container_gpus", "container_network"}


def test_broken_and_empty_files() -> None:
    assert _read("services:\n").claims == ()
    notes = _read("services:\n  a: [\n").notes
    assert [note.kind for note in notes] == [NoteKind.MALFORMED]


def test_other_yaml_is_not_recognised() -> None:
    assert not ComposeSource().recognises(SourceFile("values.yaml", "services:\n", "", 10))
    assert not ComposeSource().recognises(SourceFile("compose.yaml", "model: a\n", "", 9))


ENVIRONMENT_FILES = """\
services:
  master:
    image: example/cuda:1
    env_file: common.env
    command: torchrun --nnodes=2 --master_addr=master train.py
  worker:
    image: example/cuda:1
    env_file:
      - common.env
      - path: deploy/worker.env
      - {path: optional.env, required: false}
      - missing.env
    environment:
      NCCL_DEBUG: WARN
    command: bash -c 'torchrun --nnodes=2 --node_rank=$$RANK --master_addr=master train.py'
"""


def test_files_of_variables_reach_the_command() -> None:
    tree = MemoryTree(
        {
            "compose.yaml": ENVIRONMENT_FILES,
            "common.env": "PET_NODE_RANK=0\nNCCL_DEBUG=INFO\n",
            "deploy/worker.env": "RANK=1\n",
        }
    )
    file = SourceFile("compose.yaml", ENVIRONMENT_FILES, "", len(ENVIRONMENT_FILES))
    reading = ComposeSource().read(file, tree)
    master, worker = _of(reading, 0), _of(reading, 1)
    assert (master["node_rank"].value, master["node_rank"].span.path) == (Known(0), "common.env")
    assert master["env.NCCL_DEBUG"].value == Known("INFO")
    assert worker["node_rank"].value == Known(1)
    assert worker["env.NCCL_DEBUG"].value == Known("WARN")
    assert [note.kind for note in reading.notes] == [NoteKind.MISSING]
    assert "missing.env" in reading.notes[0].message
    named = {(r.target, r.scope.launch) for r in reading.references if r.role == "environment"}
    assert named == {
        ("common.env", reading.launches[0].id),
        ("common.env", reading.launches[1].id),
        ("deploy/worker.env", reading.launches[1].id),
    }


# Dockerfiles: the environment of the last stage, and the command of the image.


TRAIN = """\
# syntax=docker/dockerfile:1
FROM python:3.11 AS base
ENV NCCL_SOCKET_IFNAME=eth0 \\
    # not this one
    NCCL_DEBUG="INFO"
FROM base
ARG N=4
ENV OMP_NUM_THREADS $N
RUN <<EOF
CMD nothing
EOF
ENTRYPOINT ["torchrun", "--nproc_per_node=4"]
CMD ["train.py", "--lr", "0.1"]
"""


def _dockerfile_read(text: str) -> Reading:
    file = SourceFile("Dockerfile", text, "", len(text))
    assert DockerfileSource().recognises(file)
    return DockerfileSource().read(file, MemoryTree({"Dockerfile": text}))


def _values(reading: Reading, quantity: str) -> list[Value]:
    return [claim.value for claim in reading.claims if claim.quantity == quantity]


def test_entry_point_and_command_are_one_launch() -> None:
    reading = _dockerfile_read(TRAIN)
    (launch,) = reading.launches
    assert (launch.launcher, launch.program, launch.arguments) == ("torchrun", "train.py", ("--lr", "0.1"))
    (processes,) = [claim for claim in reading.claims if claim.quantity == "processes_per_node"]
    assert (processes.value, processes.span.line, processes.span.column) == (Known(4), 12, 26)


def test_variables_of_base_stages_are_inherited() -> None:
    reading = _dockerfile_read(TRAIN)
    assert _values(reading, "env.NCCL_DEBUG") == [Known("INFO")]
    assert _values(reading, "env.NCCL_SOCKET_IFNAME") == [Known("eth0")]
    (threads,) = _values(reading, "env.OMP_NUM_THREADS")
    assert isinstance(threads, Unresolved)


def test_the_shell_form() -> None:
    (launch,) = _dockerfile_read("FROM a\nENV P=8\nCMD cd /w && torchrun --nproc_per_node=$P train.py\n").launches
    assert launch.program.endswith("train.py")
    assert _values(
        _dockerfile_read("FROM a\nENV P=8\nCMD torchrun --nproc_per_node=$P t.py\n"), "processes_per_node"
    ) == [Known(8)]


def test_other_stages_make_no_claims() -> None:
    assert _dockerfile_read("FROM a AS build\nENV NCCL_ALGO=Ring\nFROM b\nCMD bash\n") == Reading()


def test_variables_of_ranks_count_without_a_launch() -> None:
    reading = _dockerfile_read("FROM a\nENV NCCL_DEBUG=INFO NCCL_VERSION=2.19 PATH=/x:$PATH\n")
    assert [claim.quantity for claim in reading.claims] == ["image_base", "env.NCCL_DEBUG"]
    assert reading.claims[0].value == Known("a")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu", "train.dockerfile", "Containerfile", "a/Dockerfile"])
def test_names(name: str) -> None:
    assert DockerfileSource().recognises(SourceFile(name, "FROM a\n", "", 7))


@pytest.mark.parametrize("text", ["", "FROM", "no stage\n"])
def test_other_files_are_not_dockerfiles(text: str) -> None:
    assert not DockerfileSource().recognises(SourceFile("Dockerfile", text, "", len(text)))


@pytest.mark.parametrize(
    "text", ["FROM a\nCMD [", "FROM a\nENV\n", "FROM a\nENV =\\", "FROM a\nRUN <<E\n", "FROM a\nCMD\n"]
)
def test_broken_lines_are_skipped(text: str) -> None:
    assert _dockerfile_read(text).launches == ()


def test_a_template_is_unresolved() -> None:
    (value,) = _values(_dockerfile_read("FROM a\nENV NCCL_ALGO=${ALGO}\n"), "env.NCCL_ALGO")
    assert isinstance(value, Unresolved)
