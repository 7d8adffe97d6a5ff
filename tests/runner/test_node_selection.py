"""The choice of the executor, its options, and the source of the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from preflight._util.usage_error import UsageError
from preflight.executors.base import (
    Bundle,
    Channel,
    Executor,
    ExecutorError,
    GatheredNodes,
    NodeRequest,
    Option,
)
from preflight.executors.ssh import EXECUTOR, SshExecutor
from preflight.model.configuration import RunOptions
from preflight.model.job import Job
from preflight.model.recording import Node, Origin, Recording
from preflight.plugins import registry
from preflight.runner import preparation as node_selection
from preflight.runner import run
from preflight.runner.preparation import LoadedJobs, LoadJobs
from tests.builders import add_executor, claim, job


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
        if wanted.named:
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
        return await node_selection.find(choice, replace(wanted or NodeRequest(), named=choice.named))

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
