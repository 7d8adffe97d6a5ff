"""Which executor reaches the nodes, what it may be told, and whose word about the nodes counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest

from preflight import catalog, reach
from preflight.brief import Brief, Read
from preflight.check_options import CheckOptions
from preflight.errors import UsageError
from preflight.executors.base import (
    Bundle,
    Channel,
    Configurable,
    Detector,
    Executor,
    ExecutorError,
    Gathered,
    Gatherer,
    Option,
    Wanted,
)
from preflight.executors.ssh import EXECUTOR, SshExecutor
from preflight.job import Job
from preflight.recording import Node, Origin, Recording
from preflight.run import record
from tests.building import as_it_is, claim, executor_more, job


def _a_number(value: str) -> str:
    return "" if value.isdigit() else f"{value!r} is no job; a number is expected"


@dataclass(frozen=True)
class Pretended:
    """A scheduler whose allocation holds a, b and c, where PRETENDED says so."""

    given: Mapping[str, str] = field(default_factory=dict)
    problem: ExecutorError | None = None
    name: str = "pretended"
    options: tuple[Option, ...] = (Option("jobid", "the job", "7", _a_number), Option("account", "who pays"))
    closed: list[str] = field(default_factory=list)

    def configured(self, given: Mapping[str, str]) -> Executor:
        return replace(self, given=given)

    def detect(self, environment: Mapping[str, str]) -> str:
        return f"PRETENDED={environment['PRETENDED']} is set" if "PRETENDED" in environment else ""

    async def gather(self, wanted: Wanted) -> Gathered | None:
        if self.problem is not None:
            raise self.problem
        if "jobid" in self.given and int(self.given["jobid"]) == 0:
            await anyio.sleep_forever()
        if wanted.named:
            return None
        return Gathered((Node("a", 0), Node("b", 1), Node("c", 2)), "pretended job 7", ("one note",))

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> Channel:
        raise ExecutorError("unreachable", f"{node.name}: it is only pretended")

    async def aclose(self) -> None:
        self.closed.append("closed")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    """An executor more than there are."""
    executor = Pretended()
    executor_more(monkeypatch, executor)
    yield executor


def briefly(base: Recording) -> Read:
    return lambda tell: Brief(base, catalog.checks())


def a_check(*jobs: Job) -> Recording:
    return Recording(jobs, "2026-11-22T00:00:00+00:00", "0.1", verb="check")


def chosen(
    *options: str, hosts: str = "", executor: str = "", environment: Mapping[str, str] | None = None
) -> reach.Way:
    async def main() -> reach.Way:
        return await reach.choose(
            hosts=hosts, hostfile=None, executor=executor, options=options, environment=environment or {}
        )

    return anyio.run(main)


def found(way: reach.Way, wanted: Wanted | None = None) -> tuple[tuple[str, ...], Origin]:
    async def main() -> reach.Found:
        return await reach.find(way, replace(wanted or Wanted(), named=way.named))

    there = anyio.run(main)
    return tuple(node.name for node in there.nodes), there.origin


def test_the_protocols_are_what_an_executor_of_a_scheduler_has() -> None:
    executor = Pretended()
    for protocol in (Executor, Configurable, Gatherer, Detector):
        assert isinstance(executor, protocol)


@pytest.mark.parametrize("group", [catalog.EXECUTORS])
def test_every_executor_there_is_declares_well_formed_options(group: str) -> None:
    for executor in catalog.load(group).items:
        assert isinstance(executor, Executor)
        for option in executor.options if isinstance(executor, Configurable) else ():
            assert option.name == option.name.lower() and option.meaning
            wrong = option.wrong(option.example)
            assert not wrong or "no file" in wrong, option


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("jobid", "expected NAME=VALUE"),
        ("=7", "expected NAME=VALUE"),
        ("jobld=7", "did you mean 'jobid'.*known are account, jobid"),
        ("jobid=seven", "'seven' is no job; a number is expected"),
    ],
)
def test_an_option_that_will_not_do_is_explained(pretended: Pretended, option: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        chosen(option, executor="pretended")


def test_ssh_is_told_how_long_to_keep_connections() -> None:
    way = chosen("keep=60", executor="ssh")
    assert isinstance(way.executor, SshExecutor) and way.executor.keep_s == 60
    assert EXECUTOR.keep_s == 0
    for wrong in ("0", "3601", "-1", "1.5", "a minute", ""):
        with pytest.raises(UsageError, match=f"--on-option keep={wrong}: '{wrong}' is no number of seconds from 1"):
            chosen(f"keep={wrong}", executor="ssh")


def test_options_go_to_the_executor(pretended: Pretended) -> None:
    way = chosen("jobid=7", "account=a=b", executor="pretended")
    assert isinstance(way.executor, Pretended)
    assert way.executor.given == {"jobid": "7", "account": "a=b"}
    with pytest.raises(UsageError, match="was given before, as '7'"):
        chosen("jobid=7", "jobid=8", executor="pretended")
    with pytest.raises(UsageError, match="the executor local has no option 'jobid'; known are python"):
        chosen("jobid=7", executor="local")


def test_the_surroundings_choose_and_the_user_overrules_them(pretended: Pretended) -> None:
    inside = {"PRETENDED": "7"}
    assert (chosen().executor.name, chosen().because) == ("ssh", "nothing else was chosen")
    way = chosen(environment=inside)
    assert (way.executor.name, way.because) == ("pretended", "PRETENDED=7 is set")
    assert chosen(executor="ssh", environment=inside).executor.name == "ssh"
    # Nodes that the user names are reached through the allocation if they are in it, and not otherwise.
    assert chosen(hosts="a,c", environment=inside).executor.name == "pretended"
    way = chosen(hosts="a,x", environment=inside)
    assert (way.executor.name, way.because) == ("ssh", "nodes were named")


def test_whose_word_counts(pretended: Pretended) -> None:
    listed = (job(claim("hosts", ("x", "y"))),)
    names, origin = found(chosen(hosts="c,a", executor="pretended"))
    assert (names, origin.source, origin.words) == (("c", "a"), "hosts", "--hosts c,a")
    names, origin = found(chosen(executor="pretended"), Wanted(listed, trust_job=True))
    assert (names, origin.source, origin.words) == (("a", "b", "c"), "executor", "pretended job 7")
    assert origin.notes == ("one note",)
    names, origin = found(chosen(executor="ssh"), Wanted(listed, trust_job=True))
    assert (names, origin.source) == (("x", "y"), "job")


def test_an_executor_that_never_answers_is_not_waited_for(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "LATE_S", 0.05)
    names, origin = found(chosen("jobid=0", executor="pretended"), Wanted(deadline_s=0.05))
    assert (names, origin.problem_kind) == ((), "timeout")
    assert "pretended did not say within 0.05 s" in origin.problem


def test_a_run_without_nodes_says_why_and_passes_nothing(monkeypatch: pytest.MonkeyPatch, pretended: Pretended) -> None:
    object.__setattr__(pretended, "problem", ExecutorError("missing", "no node of partition gpu is free", "all of it"))
    base = a_check(job(claim("nodes", 2)))
    made = record("check", briefly(base), CheckOptions(executor="pretended"), as_it_is)
    assert made.nodes == () and made.executor == "pretended"
    assert made.origin == Origin(
        "executor", "pretended", "--on pretended", "no node of partition gpu is free", "missing", "all of it"
    )
    assert [stage.name for stage in made.stages][:2] == ["gather", "open"]
    assert pretended.closed

    from preflight import api

    report = api.judge(made)
    assert (report.verdict.value, report.exit_code) == ("incomplete", 3)
    told = {outcome.id: outcome for outcome in report.outcomes}
    assert told["NOD003"].required and "no node of partition gpu is free" in told["NOD003"].reason
    assert not report.findings


def test_each_node_of_an_allocation_that_cannot_be_reached_is_named(pretended: Pretended, tmp_path: Path) -> None:
    base = a_check(job(claim("nodes", 3)))
    made = record("check", briefly(base), CheckOptions(executor="pretended", until="node"), as_it_is)
    assert [r.problem for r in made.nodes] == [f"{name}: it is only pretended" for name in "abc"]
    assert made.origin is not None and made.origin.words == "pretended job 7"
