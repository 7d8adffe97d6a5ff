"""The choice of the executor, its options, and the source of the nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from preflight._util.usage_error import UsageError
from preflight.agent.process import stat_of
from preflight.agent.wire import LEASE_S, Done
from preflight.executors.base import (
    Bundle,
    Channel,
    Executor,
    ExecutorError,
    GatheredNodes,
    NodeRequest,
    Option,
)
from preflight.executors.pipe import MAX_LOCAL, LocalExecutor
from preflight.executors.ssh import EXECUTOR, SshExecutor
from preflight.model.configuration import RunOptions
from preflight.model.job import Job, Launch, Scope
from preflight.model.recording import Node, NodeRecord, Origin, Recording
from preflight.plugins import registry
from preflight.runner import preparation as node_selection
from preflight.runner import run
from preflight.runner.preparation import LoadedJobs, LoadJobs, choose, claimed_count, context_of, find, main_launch
from preflight.runner.session import AgentSession, KeepaliveThread, open_fleet
from tests.builders import add_executor, claim, job, span


def _a_number(value: str) -> str:
    return "" if value.isdecimal() else f"{value!r} is no job; a number is expected"


@dataclass(frozen=True)
class FakeScheduler(Executor):
    """A scheduler whose allocation has a, b and c if PRETENDED is set."""

    given: Mapping[str, str] = field(default_factory=dict)
    problem: ExecutorError | None = None
    name: str = "pretended"
    options: tuple[Option, ...] = (Option("jobid", "the job", "7", _a_number), Option("account", "who pays"))
    closed: list[str] = field(default_factory=list)

    def configured(self, given: Mapping[str, str]) -> Executor:
        return replace(self, given=given)

    def detect(self, environment: Mapping[str, str]) -> str:
        return f"PRETENDED={environment['PRETENDED']} is set" if "PRETENDED" in environment else ""

    async def gather(self, wanted: NodeRequest) -> GatheredNodes | None:
        if self.problem is not None:
            raise self.problem
        if "jobid" in self.given and int(self.given["jobid"]) == 0:
            await anyio.sleep_forever()
        if wanted.named_nodes:
            return None
        return GatheredNodes((Node("a", 0), Node("b", 1), Node("c", 2)), "pretended job 7", ("one note",))

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        raise ExecutorError("unreachable", f"{node.name}: it is only pretended")

    async def aclose(self) -> None:
        self.closed.append("closed")


@pytest.fixture
def fake_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeScheduler]:
    """Register one more executor."""
    executor = FakeScheduler()
    add_executor(monkeypatch, executor)
    yield executor


def loading(base: Recording) -> LoadJobs:
    return lambda progress: LoadedJobs(base, registry.checks())


def make_check(*jobs: Job) -> Recording:
    return Recording(jobs, "2026-11-22T00:00:00+00:00", "0.1", verb="check")


def chosen(
    *options: str, hosts: str = "", executor: str = "", environment: Mapping[str, str] | None = None
) -> node_selection.ExecutorChoice:
    async def main() -> node_selection.ExecutorChoice:
        return await node_selection.choose(
            hosts=hosts, hostfile=None, executor=executor, options=options, environment=environment or {}
        )

    return anyio.run(main)


def found(choice: node_selection.ExecutorChoice, wanted: NodeRequest | None = None) -> tuple[tuple[str, ...], Origin]:
    async def main() -> node_selection.FoundNodes:
        return await node_selection.find(choice, replace(wanted or NodeRequest(), named_nodes=choice.named_nodes))

    there = anyio.run(main)
    return tuple(node.name for node in there.nodes), there.origin


@pytest.mark.parametrize("group", [registry.EXECUTORS])
def test_every_executor_declares_valid_options(group: str) -> None:
    for executor in registry.load(group).items:
        assert isinstance(executor, Executor)
        for option in executor.options:
            assert option.name == option.name.lower() and option.meaning
            wrong = option.problem_of(option.example)
            assert wrong in ("", f"the file {option.example} does not exist"), option


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("jobid", "expected NAME=VALUE"),
        ("=7", "expected NAME=VALUE"),
        ("jobld=7", "did you mean 'jobid'.*known options: account, jobid"),
        ("jobid=seven", "'seven' is no job; a number is expected"),
    ],
)
def test_an_invalid_option_is_explained(fake_scheduler: FakeScheduler, option: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        chosen(option, executor="pretended")


def test_ssh_gets_the_time_to_keep_connections() -> None:
    choice = chosen("keep=60", executor="ssh")
    assert isinstance(choice.executor, SshExecutor) and choice.executor.keep_s == 60
    assert EXECUTOR.keep_s == 0
    for wrong in ("0", "3601", "-1", "1.5", "a minute", ""):
        with pytest.raises(UsageError, match=f"--on-option keep={wrong}: '{wrong}' is not a number of seconds from 1"):
            chosen(f"keep={wrong}", executor="ssh")


def test_options_go_to_the_executor(fake_scheduler: FakeScheduler) -> None:
    choice = chosen("jobid=7", "account=a=b", executor="pretended")
    assert isinstance(choice.executor, FakeScheduler)
    assert choice.executor.given == {"jobid": "7", "account": "a=b"}
    with pytest.raises(UsageError, match="was already set to '7'"):
        chosen("jobid=7", "jobid=8", executor="pretended")
    with pytest.raises(UsageError, match="the executor local has no option 'jobid'; known options: python"):
        chosen("jobid=7", executor="local")


def test_the_environment_chooses_and_the_user_overrides(fake_scheduler: FakeScheduler) -> None:
    inside = {"PRETENDED": "7"}
    assert (chosen().executor.name, chosen().because) == ("ssh", "no other executor was chosen")
    choice = chosen(environment=inside)
    assert (choice.executor.name, choice.because) == ("pretended", "PRETENDED=7 is set")
    assert chosen(executor="ssh", environment=inside).executor.name == "ssh"
    # Nodes that the user names are reached through the allocation only if they are in it.
    assert chosen(hosts="a,c", environment=inside).executor.name == "pretended"
    choice = chosen(hosts="a,x", environment=inside)
    assert (choice.executor.name, choice.because) == ("ssh", "nodes were named")


def test_precedence_of_node_sources(fake_scheduler: FakeScheduler) -> None:
    listed = (job(claim("hosts", ("x", "y"))),)
    names, origin = found(chosen(hosts="c,a", executor="pretended"))
    assert (names, origin.source, origin.words) == (("c", "a"), "hosts", "--hosts c,a")
    names, origin = found(chosen(executor="pretended"), NodeRequest(listed, trust_job=True))
    assert (names, origin.source, origin.words) == (("a", "b", "c"), "executor", "pretended job 7")
    assert origin.notes == ("one note",)
    names, origin = found(chosen(executor="ssh"), NodeRequest(listed, trust_job=True))
    assert (names, origin.source) == (("x", "y"), "job")


def test_an_executor_that_never_answers_is_abandoned(
    fake_scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_selection, "LATE_S", 0.05)
    names, origin = found(chosen("jobid=0", executor="pretended"), NodeRequest(deadline_s=0.05))
    assert (names, origin.problem_kind) == ((), "timeout")
    assert "pretended did not list its nodes within 0.05 s" in origin.problem


def test_a_run_without_nodes_has_a_reason_and_passes_nothing(
    monkeypatch: pytest.MonkeyPatch, fake_scheduler: FakeScheduler
) -> None:
    object.__setattr__(
        fake_scheduler, "problem", ExecutorError("missing", "no node of partition gpu is free", "all of it")
    )
    base = make_check(job(claim("nodes", 2)))
    made = run.run("check", RunOptions(executor="pretended"), loading(base))
    assert made.nodes == () and made.executor == "pretended"
    assert made.origin == Origin(
        "executor", "pretended", "--on pretended", "no node of partition gpu is free", "missing", "all of it"
    )
    assert [stage.name for stage in made.stages][:2] == ["gather", "open"]
    assert fake_scheduler.closed

    from preflight import api

    report = api.judge(made)
    assert (report.verdict.value, report.exit_code) == ("incomplete", 3)
    told = {outcome.id: outcome for outcome in report.outcomes}
    assert told["NOD003"].required and "no node of partition gpu is free" in told["NOD003"].reason
    assert not report.findings


def test_each_node_of_an_allocation_that_cannot_be_reached_is_named(
    fake_scheduler: FakeScheduler, tmp_path: Path
) -> None:
    base = make_check(job(claim("nodes", 3)))
    made = run.run("check", RunOptions(executor="pretended", until="node"), loading(base))
    assert [r.problem for r in made.nodes] == [f"{name}: it is only pretended" for name in "abc"]
    assert made.origin is not None and made.origin.words == "pretended job 7"


# Many nodes at once: each answers or has a reason, and all agents have ended when the fleet is closed.


@dataclass
class SelectiveExecutor(Executor):
    """Reaches every node on this machine except those in `against`."""

    against: dict[str, Callable[[], None]]
    name: str = "choosy"
    closed: bool = False

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        if node.name in self.against:
            self.against[node.name]()
            await anyio.sleep_forever()
        return await LocalExecutor().open(node, deadline_s=deadline_s, bundle=bundle)

    async def aclose(self) -> None:
        self.closed = True


def refuse() -> None:
    raise ExecutorError("denied", "n1: no", "all of it")


@pytest.mark.thorough
def test_each_node_is_reached_or_has_a_reason() -> None:
    async def main() -> None:
        told: list[NodeRecord] = []
        executor = SelectiveExecutor({"n1": refuse, "n3": lambda: None})
        nodes = [Node(f"n{i}", i) for i in range(4)]
        async with open_fleet(executor, nodes, deadline_s=2.0, on_progress=told.append) as fleet:
            assert list(fleet.sessions) == ["n0", "n2"]
            assert [record.problem_kind for record in fleet.records] == ["", "denied", "", "timeout"]
            assert fleet.records[1].notes == ("all of it",)
            assert "waiting for choosy to reach it" in fleet.records[3].problem
            assert [node.name for node in fleet.snapshot().reached] == ["n0", "n2"]
            assert sorted(record.node.name for record in told) == ["n0", "n1", "n2", "n3"]
            assert isinstance(fleet.session("n0"), AgentSession)
            assert isinstance(fleet.session("n1"), NodeRecord)
            assert not executor.closed
        assert executor.closed

    anyio.run(main)


@pytest.mark.parametrize("error", [None, LookupError("mine")])
def test_agents_are_gone_when_the_fleet_is_left(error: Exception | None) -> None:
    pids: list[int] = []

    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node(f"n{i}", i) for i in range(8)]) as fleet:
            for session in fleet.sessions.values():
                assert session.ready is not None
                pids.append(session.ready.pid)
            assert len(pids) == 8 and all(stat_of(pid) for pid in pids)
            if error is not None:
                raise error

    if error is None:
        anyio.run(main)
    else:
        with pytest.raises(LookupError, match="mine"):
            anyio.run(main)
    assert [pid for pid in pids if stat_of(pid) is not None] == []


def test_a_cancelled_run_closes_its_fleet() -> None:
    async def main() -> list[int]:
        pids: list[int] = []
        with anyio.move_on_after(0.8):
            async with open_fleet(LocalExecutor(), [Node("n0", 0)]) as fleet:
                ready = fleet.sessions["n0"].ready
                assert ready is not None
                pids.append(ready.pid)
                await anyio.sleep_forever()
        return pids

    pids = anyio.run(main)
    assert pids and stat_of(pids[0]) is None


def test_a_missing_interpreter_is_named() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(interpreter="/no/python3"), [Node("n0", 0)]) as fleet:
            assert fleet.records[0].problem_kind == "missing"
            assert "`/no/python3` cannot be run" in fleet.records[0].problem

    anyio.run(main)


def test_events_of_one_node_do_not_wait_for_another() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node("n0", 0), Node("n1", 1)]) as fleet:
            answers: dict[str, Done] = {}

            async def ask(name: str) -> None:
                answer = await fleet.sessions[name].request("json:dumps", {"name": name})
                assert isinstance(answer, Done)
                answers[name] = answer

            async with anyio.create_task_group() as group:
                for name in fleet.sessions:
                    group.start_soon(ask, name)
            assert {name: answer.value for name, answer in answers.items()} == {
                "n0": '{"name": "n0"}',
                "n1": '{"name": "n1"}',
            }

    anyio.run(main)


def test_two_nodes_with_the_same_name_are_an_error() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node("n0", 0), Node("n0", 1)]):
            pass

    with pytest.raises(ValueError, match="share a name"):
        anyio.run(main)


@pytest.mark.thorough
def test_a_briefly_busy_head_keeps_its_agents() -> None:
    async def main() -> None:
        async with open_fleet(LocalExecutor(), [Node("n0", 0), Node("n1", 1)]) as fleet:
            # This blocks the loop for longer than the agents' lease.
            time.sleep(LEASE_S + 1.5)
            for session in fleet.sessions.values():
                assert isinstance(await session.request("json:dumps", {}), Done)
            assert [record.problem for record in fleet.records] == ["", ""]

    anyio.run(main)


@pytest.mark.thorough
def test_a_stuck_head_loses_its_agents() -> None:
    spoken: list[bytes] = []
    keeper = KeepaliveThread(late_s=0.0, stuck_s=0.7)
    keeper.register("n0", spoken.append)
    keeper.start()
    time.sleep(1.8)
    keeper.stop()
    assert len(spoken) == 1


# The nodes and the context of a run; files determine neither unless they are trusted.


HOSTS = claim("hosts", ("gpu1", "gpu2"), source="hostfile")


def names(
    *jobs: Job, hosts: str = "", hostfile: Path | None = None, trust_job: bool = False, executor: str = "ssh"
) -> tuple[str, ...]:
    """The names of the nodes, in rank order."""
    nodes, origin = context_found(*jobs, hosts=hosts, hostfile=hostfile, trust_job=trust_job, executor=executor)
    assert [node.index for node in nodes] == list(range(len(nodes)))
    assert origin.because == f"--on {executor}" and not origin.problem
    return tuple(node.name for node in nodes)


def context_found(
    *jobs: Job,
    hosts: str = "",
    hostfile: Path | None = None,
    trust_job: bool = False,
    executor: str = "ssh",
) -> tuple[tuple[Node, ...], Origin]:
    """The nodes of a run and where they came from."""

    async def main() -> tuple[tuple[Node, ...], Origin]:
        way = await choose(hosts=hosts, hostfile=hostfile, executor=executor, options=(), environment={})
        found = await find(way, NodeRequest(jobs, way.named_nodes, claimed_count(jobs), trust_job))
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
    nodes, _ = context_found(hosts="train_01@a,b")
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
    assert context_found(hosts="a")[1] == Origin("hosts", "--hosts a", "--on ssh")
    assert context_found(job(HOSTS), trust_job=True)[1] == Origin("job", "run.sh:3", "--on ssh")
    assert context_found(job(claim("nodes", 2)), executor="local")[1].words == "this machine as 2 nodes"


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
    nodes, origin = context_found(hostfile=path)
    assert (origin.source, origin.words) == ("hostfile", f"--hostfile {path}")
    assert nodes == (Node("b", 0, "b", 4), Node("a", 1, "a", 8))


@pytest.mark.parametrize("text", ["", "# nothing\n", "a slots=many\n"])
def test_an_empty_hostfile_is_rejected(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError, match="hosts"):
        context_found(hostfile=path)


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
    assert named.context is not None and "outside the container nvcr.io/x:1" in named.provenance


def test_the_launch_of_several_processes_is_the_main_one() -> None:
    single, several = Launch("run.sh:1", "python", span()), LAUNCH
    found = job(claim("world_size", 8, scope=HERE), launches=(single, several))
    assert main_launch(found) is several
    assert main_launch(job(launches=(single,))) is single
    assert main_launch(job(launches=())) is None
