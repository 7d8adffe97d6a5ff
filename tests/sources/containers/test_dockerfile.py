"""Dockerfiles: the environment of the last stage, and the command of the image."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Unresolved, Value
from preflight.sources.base import Reading, SourceFile
from preflight.sources.containers.sources import DockerfileSource
from preflight.sources.formats.tree import MemoryTree

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


def _read(text: str) -> Reading:
    file = SourceFile("Dockerfile", text, "", len(text))
    assert DockerfileSource().recognises(file)
    return DockerfileSource().read(file, MemoryTree({"Dockerfile": text}))


def _values(reading: Reading, quantity: str) -> list[Value]:
    return [claim.value for claim in reading.claims if claim.quantity == quantity]


def test_entry_point_and_command_are_one_launch() -> None:
    reading = _read(TRAIN)
    (launch,) = reading.launches
    assert (launch.launcher, launch.program, launch.arguments) == ("torchrun", "train.py", ("--lr", "0.1"))
    (processes,) = [claim for claim in reading.claims if claim.quantity == "processes_per_node"]
    assert (processes.value, processes.span.line, processes.span.column) == (Known(4), 12, 26)


def test_variables_of_base_stages_are_inherited() -> None:
    reading = _read(TRAIN)
    assert _values(reading, "env.NCCL_DEBUG") == [Known("INFO")]
    assert _values(reading, "env.NCCL_SOCKET_IFNAME") == [Known("eth0")]
    (threads,) = _values(reading, "env.OMP_NUM_THREADS")
    assert isinstance(threads, Unresolved)


def test_the_shell_form() -> None:
    (launch,) = _read("FROM a\nENV P=8\nCMD cd /w && torchrun --nproc_per_node=$P train.py\n").launches
    assert launch.program.endswith("train.py")
    assert _values(_read("FROM a\nENV P=8\nCMD torchrun --nproc_per_node=$P t.py\n"), "processes_per_node") == [
        Known(8)
    ]


def test_other_stages_make_no_claims() -> None:
    assert _read("FROM a AS build\nENV NCCL_ALGO=Ring\nFROM b\nCMD bash\n") == Reading()


def test_variables_of_ranks_count_without_a_launch() -> None:
    reading = _read("FROM a\nENV NCCL_DEBUG=INFO NCCL_VERSION=2.19 PATH=/x:$PATH\n")
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
    assert _read(text).launches == ()


def test_a_template_is_unresolved() -> None:
    (value,) = _values(_read("FROM a\nENV NCCL_ALGO=${ALGO}\n"), "env.NCCL_ALGO")
    assert isinstance(value, Unresolved)
