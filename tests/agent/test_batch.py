"""Requests that share a child: each gets its answer, whatever happens to the others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from preflight.agent.child_handle import PROGRESS_TIMEOUT_S, BatchProcess
from preflight.agent.process import stat_of
from preflight.agent.wire import AgentRequest, Context, Done, Failed
from preflight.runner.session import AgentSession
from tests.agent.test_agent import EVERYWHERE

pytestmark = pytest.mark.thorough

WithSession = Callable[..., Any]


def asked(
    with_session: WithSession, *probes: tuple[str, Any], context: Context | None = None, deadline_s: float = 4.0
) -> list[Done | Failed]:
    """The answers to requests of one kind that were sent together."""

    async def use(session: AgentSession) -> list[Done | Failed]:
        requests = [
            AgentRequest(0, f"shipped.probes:{name}", params, deadline_s, context, together="kind")
            for name, params in probes
        ]
        running = [session.start(request) for request in requests]
        return [await one.result() for one in running]

    return with_session(use)  # type: ignore[no-any-return]


def pids(answers: list[Done | Failed]) -> list[int]:
    assert all(isinstance(answer, Done) for answer in answers), answers
    return [answer.value for answer in answers if isinstance(answer, Done)]


@EVERYWHERE
def test_requests_of_one_kind_share_a_process(with_session: WithSession, context: Context | None) -> None:
    assert len(set(pids(asked(with_session, *[("own_pid", {})] * 5, context=context)))) == 1


def test_other_kinds_get_their_own_process(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> list[Done | Failed]:
        kinds = ("a", "b", "a", "", "")
        running = [session.start(AgentRequest(0, "shipped.probes:own_pid", {}, 4.0, together=kind)) for kind in kinds]
        return [await one.result() for one in running]

    first, second, third, *alone = pids(with_session(use))
    assert first == third != second
    assert len({first, second, *alone}) == 4


@EVERYWHERE
def test_other_requests_run_between_two_measurements(with_session: WithSession, context: Context | None) -> None:
    probes = [("twice", {"apart_s": 0.3}), ("once", {}), ("twice", {"apart_s": 0.2}), ("once", {})]
    long, one, short, other = pids(asked(with_session, *probes, context=context))
    assert len({answer[0] for answer in (long, one, short, other)}) == 1
    for looked in (one, other):
        assert long[1] < looked[1] < long[2], "it waited for the second look"
    assert long[2] - long[1] >= 0.3 and short[2] - short[1] >= 0.2
    assert short[1] < long[2], "one began where the other had ended"


@EVERYWHERE
def test_single_request_with_two_measurements_is_answered(with_session: WithSession, context: Context | None) -> None:
    async def use(session: AgentSession) -> list[Done | Failed]:
        params: list[dict[str, Any]] = [{"apart_s": 0.1}, {"apart_s": 0.1, "crash": True}]
        requests = [AgentRequest(0, "shipped.probes:twice", one, 4.0, context) for one in params]
        return [await session.run(request) for request in requests]

    looked, failed = with_session(use)
    assert looked.value[2] - looked.value[1] >= 0.1
    assert isinstance(failed, Failed) and failed.reason == "RuntimeError: on the second look"


@EVERYWHERE
def test_stuck_request_loses_only_its_own_answer(with_session: WithSession, context: Context | None) -> None:
    before, stuck, after = asked(with_session, ("own_pid", {}), ("hang", {}), ("own_pid", {}), context=context)
    assert isinstance(stuck, Failed) and stuck.kind == "timeout", stuck
    assert "no answer within 4 s, waiting for shipped.probes:hang at " in stuck.reason and "in hang" in stuck.reason
    # Earlier requests have their answers already; later ones are repeated in their own children.
    assert len(set(pids([before, after]))) == 2


@EVERYWHERE
def test_dying_request_loses_only_its_own_answer(with_session: WithSession, context: Context | None) -> None:
    number = int(signal.SIGKILL)
    before, dead, after = asked(
        with_session, ("echo", {"value": 1}), ("kill_self", {"signal": number}), ("echo", {"value": 2}), context=context
    )
    assert pids([before, after]) == [1, 2]
    assert isinstance(dead, Failed) and (dead.kind, dead.exit_code) == ("crashed", -number), dead
    assert "shipped.probes:kill_self was killed by signal 9 (SIGKILL)" in dead.reason


def test_crash_and_unavailable_are_distinguished(with_session: WithSession) -> None:
    crashed, missing, fine = asked(with_session, ("crash", {}), ("unavailable", {}), ("echo", {"value": 3}))
    assert isinstance(crashed, Failed) and crashed.reason == "RuntimeError: no such luck"
    assert isinstance(missing, Failed) and missing.kind == "missing"
    assert pids([fine]) == [3]


def test_cancelled_request_is_not_repeated(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> list[Done | Failed]:
        running = [
            session.start(AgentRequest(0, f"shipped.probes:{name}", {}, 4.0, together="kind"))
            for name in ("hang", "own_pid")
        ]
        running[0].cancel()
        return [await one.result() for one in running]

    hung, fine = with_session(use)
    assert isinstance(hung, Failed) and hung.kind == "cancelled"
    assert isinstance(fine, Done)


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def late(pid: int, *deadlines_s: float) -> BatchProcess:
    """A child, started at 100 s, that has not answered requests with these deadlines."""
    child = BatchProcess(AgentRequest(0, "requests", {}, PROGRESS_TIMEOUT_S), pid, 100.0)
    child.requests = {
        number: AgentRequest(number, "probe", {}, deadline_s) for number, deadline_s in enumerate(deadlines_s)
    }
    return child


def reaches(pid: int, state: str) -> bool:
    """Wait until the process is in this state; the suite's own deadline limits the wait."""
    while (stat := stat_of(pid)) is not None and stat.state != state:
        os.sched_yield()
    return stat is not None


def test_starved_process_gets_more_time_up_to_a_limit() -> None:
    # A process that reads its own state is running.
    child = late(os.getpid(), 4.0, 9.0)
    assert child.deadline_at_s == 100.0 + PROGRESS_TIMEOUT_S
    assert child.is_starved(101.0)
    assert child.deadline_at_s == 101.0 + PROGRESS_TIMEOUT_S / 2
    assert child.is_starved(104.0)
    extended_s = child.deadline_at_s
    # The deadline of its first request has passed.
    assert not child.is_starved(104.1)
    assert child.deadline_at_s == extended_s


@pytest.mark.parametrize(("number", "state"), [(None, "S"), (signal.SIGSTOP, "T")])
def test_waiting_or_stopped_process_is_not_starved(
    waiting: subprocess.Popen[bytes], number: signal.Signals | None, state: str
) -> None:
    if number is not None:
        waiting.send_signal(number)
    assert reaches(waiting.pid, state)
    child = late(waiting.pid, 4.0)
    assert not child.is_starved(101.0)
    assert child.deadline_at_s == 100.0 + PROGRESS_TIMEOUT_S


def test_ended_process_is_not_starved(waiting: subprocess.Popen[bytes]) -> None:
    waiting.kill()
    waiting.wait()
    assert not late(waiting.pid, 4.0).is_starved(101.0)
