"""Open MPI's and MPICH's own mpirun to virtual nodes: the suite for both, and their error messages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from preflight._util import toml
from preflight.executors.base import ExecutorError, NodeRequest
from preflight.executors.mpi import MpiExecutor, command, environment_for_rank, explain, mpi_family
from preflight.executors.ssh import read_nodes, reason
from tests.cluster import Cluster, faults
from tests.cluster.faults.services import helper_gone
from tests.executors.conformance import Conformance, World, names, python_faults


def require(program: str, package: str) -> str:
    """Skip with the reason where an MPI is not installed; fail instead when CI=true."""
    found = shutil.which(program)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(f"{program} is missing (Debian package: {package}), and CI=true", pytrace=False)
    if found is None:
        pytest.skip(f"{program} is missing (Debian package: {package})")
    return program


def world_of(cluster: Cluster, program: str) -> World:
    arguments = ("--on", "mpi", "--on-option", f"program={program}", "--hosts", "node[1-4]")
    return World(
        cluster, cluster.head, names(cluster.nodes), arguments, **python_faults(cluster.node("node3"), "node3")
    )


@pytest.mark.thorough
class TestOpenMpi(Conformance):
    """Over mpirun of Open MPI, which goes over ssh here."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        """Four nodes."""
        yield world_of(cluster, require("mpirun.openmpi", "openmpi-bin"))


@pytest.mark.thorough
class TestHydra(Conformance):
    """Over mpiexec of MPICH."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        """Four nodes."""
        yield world_of(cluster, require("mpiexec.hydra", "mpich"))


@pytest.mark.thorough
@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.hydra"])
def test_transport_failures_are_explained(cluster: Cluster, program: str) -> None:
    require(program, "openmpi-bin, mpich")
    node = cluster.node("node2")
    with faults.sshd_stopped(node):
        assert problem(cluster, program) == ("unreachable", "nothing listens on its ssh port")
    with faults.sshd_frozen(node):
        said = problem(cluster, program)
        assert said[0] == "timeout", said
    with helper_gone(cluster, "node2"):
        assert problem(cluster, program) == ("missing", "MPI's own helper cannot be started there")


def problem(cluster: Cluster, program: str) -> tuple[str, str]:
    """The kind and meaning of the failure of node2; the other nodes are reached."""
    said = world_of(cluster, program).trial("look", "--deadline", "4")
    problems = {r["node"]["name"]: r for r in said["records"] if r["problem"]}
    assert list(problems) == ["node2"], problems
    message = problems["node2"]["problem"]
    return problems["node2"]["problem_kind"], message.removeprefix("node2: ").partition(" (")[0]


def test_mpi_families_are_recognised() -> None:
    for version in ("mpirun (Open MPI) 5.0.6", "mpirun.openmpi (OpenRTE) 4.1.4", "prterun (PRRTE) 3.0.7"):
        assert mpi_family(version) == "openmpi"
    for version in ("HYDRA build details:", "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307"):
        assert mpi_family(version) == "hydra"
    assert mpi_family("mpirun: command of somebody") == ""


def test_allow_root_option_only_for_root_and_open_mpi() -> None:
    assert "--allow-run-as-root" in command("mpirun", "openmpi", "n1", "nonce", root=True)
    assert "--allow-run-as-root" not in command("mpirun", "openmpi", "n1", "nonce", root=False)
    assert "--allow-run-as-root" not in command("mpiexec", "hydra", "n1", "nonce", root=True)


def test_variables_of_the_outer_launch_are_removed() -> None:
    given = {
        "OMPI_COMM_WORLD_SIZE": "4",
        "PMIX_RANK": "0",
        "OMPI_MCA_orte_tag_output": "1",
        "OMPI_MCA_oob_tcp_if_include": "eth1",
        "PATH": "/bin",
    }
    assert set(environment_for_rank(given)) == {"OMPI_MCA_oob_tcp_if_include", "PATH", "LC_ALL"}


@pytest.mark.parametrize("error", toml.beside(__file__, "errors.toml")["mpirun"])
def test_mpirun_errors_are_explained(error: dict[str, Any]) -> None:
    found = explain("n2", "n2", error.get("code"), error["words"], deadline_s=5)
    assert (found.kind, found.message.startswith("n2: ")) == (error["kind"], True), found.message
    assert error["message"] in found.message, found.message


# --- where batch systems say which nodes there are ---


def test_repeated_lines_count_slots(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("b1\nb1\na2\nb1\n")
    environment = {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "12.server"}
    found = read_nodes(environment)
    assert found is not None
    assert [(node.name, node.index, node.slots) for node in found[0]] == [("b1", 0, 3), ("a2", 1, 1)]
    assert found[1] == f"PBS job 12.server (PBS_NODEFILE={tmp_path / 'nodes'})"
    assert reason(environment) == "PBS_NODEFILE is set: this is inside a job of PBS"
    gathered = anyio.run(
        MpiExecutor({"program": "sh", "family": "openmpi"}).gather, NodeRequest(environment=environment)
    )
    assert gathered is not None and gathered.source.startswith("PBS job 12.server")


def test_grid_engine_counts_slots_in_a_column(tmp_path: Path) -> None:
    (tmp_path / "pe").write_text("n1.cluster 8 all.q@n1 UNDEFINED\nn2.cluster 4 all.q@n2 UNDEFINED\n")
    found = read_nodes({"PE_HOSTFILE": str(tmp_path / "pe")})
    assert found is not None and [(node.name, node.slots) for node in found[0]] == [
        ("n1.cluster", 8),
        ("n2.cluster", 4),
    ]


@pytest.mark.parametrize(
    ("text", "says"), [("", "names no nodes"), ("-oProxyCommand=x\n", "is not a valid host name"), (None, "read")]
)
def test_malformed_node_file_is_rejected(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    with pytest.raises(ExecutorError, match=says):
        read_nodes({"LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")})
    assert read_nodes({}) is None and reason({}) == ""
