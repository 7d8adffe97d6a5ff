"""The nodes and the context of a run; files determine neither unless they are trusted."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from preflight._util.usage_error import UsageError
from preflight.executors.base import NodeRequest
from preflight.executors.pipe import MAX_LOCAL
from preflight.model.job import Job, Launch, Scope
from preflight.model.recording import Node, Origin
from preflight.runner.preparation import choose, claimed_count, context_of, find, main_launch
from tests.builders import claim, job, span

HOSTS = claim("hosts", ("gpu1", "gpu2"), source="hostfile")


def names(
    *jobs: Job, hosts: str = "", hostfile: Path | None = None, trust_job: bool = False, executor: str = "ssh"
) -> tuple[str, ...]:
    """The names of the nodes, in rank order."""
    nodes, origin = found(*jobs, hosts=hosts, hostfile=hostfile, trust_job=trust_job, executor=executor)
    assert [node.index for node in nodes] == list(range(len(nodes)))
    assert origin.because == f"--on {executor}" and not origin.problem
    return tuple(node.name for node in nodes)


def found(
    *jobs: Job,
    hosts: str = "",
    hostfile: Path | None = None,
    trust_job: bool = False,
    executor: str = "ssh",
) -> tuple[tuple[Node, ...], Origin]:
    """The nodes of a run and where they came from."""

    async def main() -> tuple[tuple[Node, ...], Origin]:
        way = await choose(hosts=hosts, hostfile=hostfile, executor=executor, options=(), environment={})
        found = await find(way, NodeRequest(jobs, way.named, claimed_count(jobs), trust_job))
        return found.nodes, found.origin

    return anyio.run(main)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("node[1-3]", ("node1", "node2", "node3")),
        ("node[08-10]", ("node08", "node09", "node10")),
        ("b,a", ("b", "a")),
        ("b, a[1,3] ,c", ("b", "a1", "a3", "c")),
        ("10.0.0.1,fd00::1", ("10.0.0.1", "fd00::1")),
    ],
)
def test_hosts_as_the_user_names_them(hosts: str, expected: tuple[str, ...]) -> None:
    assert names(hosts=hosts) == expected


def test_a_user_name_stays_with_the_address() -> None:
    nodes, _ = found(hosts="train_01@a,b")
    assert nodes == (Node("a", 0, "train_01@a"), Node("b", 1, "b"))


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("-oProxyCommand=x", "not a host name"),
        ("a;reboot", "not a host name"),
        ("a/b", "not a host name"),
        ("-oProxyCommand=x@a", "not a user name"),
        ("$(id)@a", "not a user name"),
        ("@a", "not a user name"),
        ("a,b,a", "listed twice"),
        ("node[1-", "--hosts"),
        ("@group[1-2]", "not a user name"),
        (" , ", "empty"),
    ],
)
def test_invalid_hosts_are_rejected(hosts: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        names(hosts=hosts)


def test_hosts_of_the_jobs_own_files_need_trust() -> None:
    with pytest.raises(UsageError, match=r"\(gpu1, gpu2\); pass --trust-job"):
        names(job(HOSTS))
    assert names(job(HOSTS), trust_job=True) == ("gpu1", "gpu2")
    assert names(job(HOSTS), hosts="other") == ("other",)


def test_a_hostile_host_in_a_trusted_file_is_rejected() -> None:
    with pytest.raises(UsageError, match="not a host name"):
        names(job(claim("hosts", ("-oProxyCommand=x",))), trust_job=True)


def test_endpoints_of_the_jobs_processes_name_its_nodes() -> None:
    servers = claim("ps_server_endpoints", ("ps1:6170", "a:6170"))
    trainers = claim("ps_worker_endpoints", ("a:6171", "b:6171", "127.0.0.1:6172"))
    assert names(job(servers, trainers), trust_job=True) == ("a", "b", "ps1")
    with pytest.raises(UsageError, match="name nodes \\(a, b, ps1"):
        names(job(servers, trainers))


def test_the_origin_of_nodes_is_kept() -> None:
    assert found(hosts="a")[1] == Origin("hosts", "--hosts a", "--on ssh")
    assert found(job(HOSTS), trust_job=True)[1] == Origin("job", "run.sh:3", "--on ssh")
    assert found(job(claim("nodes", 2)), executor="local")[1].words == "this machine as 2 nodes"


def test_without_nodes_there_is_a_hint() -> None:
    with pytest.raises(UsageError, match=r"--hosts node\[1-4\]"):
        names(job())


def test_local_nodes_are_as_many_as_the_job_has() -> None:
    assert names(job(claim("nodes", 3)), executor="local") == ("local0", "local1", "local2")
    assert names(job(), executor="local") == ("local0",)


def test_a_file_cannot_start_unlimited_agents_on_this_machine() -> None:
    with pytest.raises(UsageError, match=f"at most {MAX_LOCAL}"):
        names(job(claim("nodes", 10**9)), executor="local")


def test_a_hostfile_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("b slots=4\na slots=8\n")
    nodes, origin = found(hostfile=path)
    assert (origin.source, origin.words) == ("hostfile", f"--hostfile {path}")
    assert nodes == (Node("b", 0, "b", 4), Node("a", 1, "a", 8))


@pytest.mark.parametrize("text", ["", "# nothing\n", "a slots=many\n"])
def test_an_empty_hostfile_is_rejected(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError, match="hosts"):
        found(hostfile=path)


# --- the context ---

LAUNCH = Launch("run.sh:3", "torchrun", span())
HERE = Scope(launch=LAUNCH.id)
FULL = job(
    claim("interpreter", "/opt/env/bin/python", scope=HERE),
    claim("working_directory", "/data/job", scope=HERE),
    claim("env.NCCL_DEBUG", "INFO"),
    claim("env.WANDB_API_KEY", "****"),
    claim("env.PATH", "/evil"),
    claim("prelude", "module load cuda"),
    launches=(LAUNCH,),
)


def test_nothing_of_the_job_is_used_without_trust() -> None:
    found = context_of(FULL, python="", directory="", trust_job=False, prelude=True)
    assert found.context is None
    assert "--trust-job" in found.missing
    found = context_of(FULL, python="/usr/bin/python3", directory="", trust_job=False, prelude=True)
    assert found.context is not None
    assert (found.context.interpreter, found.context.directory) == ("/usr/bin/python3", None)
    assert (found.context.environment, found.context.prelude) == ({}, [])


def test_a_trusted_job_names_its_context_but_no_secret_and_no_path() -> None:
    found = context_of(FULL, python="", directory="", trust_job=True, prelude=False)
    assert found.context is not None
    assert (found.context.interpreter, found.context.directory) == ("/opt/env/bin/python", "/data/job")
    assert found.context.environment == {"NCCL_DEBUG": "INFO"}
    assert found.context.prelude == []
    assert "interpreter /opt/env/bin/python (the job)" in found.provenance


def test_setup_lines_run_only_with_consent() -> None:
    found = context_of(FULL, python="", directory="", trust_job=True, prelude=True)
    assert found.context is not None
    assert found.context.prelude == ["module load cuda"]


def test_options_of_the_user_come_first() -> None:
    found = context_of(FULL, python="/mine", directory="/here", trust_job=True, prelude=False)
    assert found.context is not None
    assert (found.context.interpreter, found.context.directory) == ("/mine", "/here")


def test_an_unnamed_context_is_missing_and_not_guessed() -> None:
    found = context_of(job(launches=()), python="", directory="", trust_job=True, prelude=False)
    assert found.context is None
    assert "--python PATH" in found.missing


def test_a_container_that_cannot_be_entered_is_reported() -> None:
    found = context_of(job(claim("container", "nvcr.io/x:1")), python="", directory="", trust_job=True, prelude=False)
    assert found.context is None
    assert "nvcr.io/x:1" in found.missing
    named = context_of(
        job(claim("container", "nvcr.io/x:1")), python="/usr/bin/python3", directory="", trust_job=True, prelude=False
    )
    assert named.context is not None and "outside of the container nvcr.io/x:1" in named.provenance


def test_the_launch_of_several_processes_is_the_main_one() -> None:
    single, several = Launch("run.sh:1", "python", span()), LAUNCH
    found = job(claim("world_size", 8, scope=HERE), launches=(single, several))
    assert main_launch(found) is several
    assert main_launch(job(launches=(single,))) is single
    assert main_launch(job(launches=())) is None
