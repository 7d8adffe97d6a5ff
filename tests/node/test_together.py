"""Requests that share a child: one answer each, whatever becomes of the others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from preflight.node.process import stat_of
from preflight.node.together import PATIENCE_S, Together
from preflight.node.wire import Ask, Context, Done, Failed
from preflight.session import AgentSession
from tests.node.test_agent import EVERYWHERE

WithSession = Callable[..., Any]


def asked(
    with_session: WithSession, *probes: tuple[str, Any], context: Context | None = None, deadline_s: float = 4.0
) -> list[Done | Failed]:
    """What came of requests of one kind that were made at once."""

    async def use(session: AgentSession) -> list[Done | Failed]:
        asks = [
            Ask(0, f"shipped.probes:{name}", params, deadline_s, context, together="kind") for name, params in probes
        ]
        running = [session.start(ask) for ask in asks]
        return [await one.result() for one in running]

    return with_session(use)  # type: ignore[no-any-return]


def pids(answers: list[Done | Failed]) -> list[int]:
    assert all(isinstance(answer, Done) for answer in answers), answers
    return [answer.value for answer in answers if isinstance(answer, Done)]


@EVERYWHERE
def test_they_share_one_process(with_session: WithSession, context: Context | None) -> None:
    assert len(set(pids(asked(with_session, *[("own_pid", {})] * 5, context=context)))) == 1


def test_other_kinds_have_another_and_those_of_none_one_each(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> list[Done | Failed]:
        kinds = ("a", "b", "a", "", "")
        running = [session.start(Ask(0, "shipped.probes:own_pid", {}, 4.0, together=kind)) for kind in kinds]
        return [await one.result() for one in running]

    first, second, third, *alone = pids(with_session(use))
    assert first == third != second
    assert len({first, second, *alone}) == 4


@EVERYWHERE
def test_others_have_their_turn_between_two_looks(with_session: WithSession, context: Context | None) -> None:
    probes = [("twice", {"apart_s": 0.3}), ("once", {}), ("twice", {"apart_s": 0.2}), ("once", {})]
    long, one, short, other = pids(asked(with_session, *probes, context=context))
    assert len({answer[0] for answer in (long, one, short, other)}) == 1
    for looked in (one, other):
        assert long[1] < looked[1] < long[2], "it waited for the second look"
    assert long[2] - long[1] >= 0.3 and short[2] - short[1] >= 0.2
    assert short[1] < long[2], "one began where the other had ended"


@EVERYWHERE
def test_who_looks_twice_is_answered_alone_as_well(with_session: WithSession, context: Context | None) -> None:
    async def use(session: AgentSession) -> list[Done | Failed]:
        params: list[dict[str, Any]] = [{"apart_s": 0.1}, {"apart_s": 0.1, "crash": True}]
        asks = [Ask(0, "shipped.probes:twice", one, 4.0, context) for one in params]
        return [await session.run(ask) for ask in asks]

    looked, failed = with_session(use)
    assert looked.value[2] - looked.value[1] >= 0.1
    assert isinstance(failed, Failed) and failed.reason == "RuntimeError: on the second look"


@EVERYWHERE
def test_one_that_gets_stuck_loses_only_its_own_answer(with_session: WithSession, context: Context | None) -> None:
    before, stuck, after = asked(with_session, ("own_pid", {}), ("hang", {}), ("own_pid", {}), context=context)
    assert isinstance(stuck, Failed) and stuck.kind == "timeout", stuck
    assert "no answer within 4 s, waiting for shipped.probes:hang at " in stuck.reason and "in hang" in stuck.reason
    # What came before it had its answer already; what comes after it is asked again, alone.
    assert len(set(pids([before, after]))) == 2


@EVERYWHERE
def test_one_that_dies_loses_only_its_own_answer(with_session: WithSession, context: Context | None) -> None:
    number = int(signal.SIGKILL)
    before, dead, after = asked(
        with_session, ("echo", {"value": 1}), ("kill_self", {"signal": number}), ("echo", {"value": 2}), context=context
    )
    assert pids([before, after]) == [1, 2]
    assert isinstance(dead, Failed) and (dead.kind, dead.exit_code) == ("crashed", -number), dead
    assert "shipped.probes:kill_self was killed by signal 9 (SIGKILL)" in dead.reason


def test_one_that_raises_or_cannot_is_told_apart(with_session: WithSession) -> None:
    crashed, missing, fine = asked(with_session, ("crash", {}), ("unavailable", {}), ("echo", {"value": 3}))
    assert isinstance(crashed, Failed) and crashed.reason == "RuntimeError: no such luck"
    assert isinstance(missing, Failed) and missing.kind == "missing"
    assert pids([fine]) == [3]


def test_one_that_nobody_waits_for_is_not_asked_again(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> list[Done | Failed]:
        running = [
            session.start(Ask(0, f"shipped.probes:{name}", {}, 4.0, together="kind")) for name in ("hang", "own_pid")
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


def late(pid: int, *deadlines_s: float) -> Together:
    """A child, begun at 100 s, that has not answered requests with these deadlines."""
    child = Together(Ask(0, "requests", {}, PATIENCE_S), pid, 100.0)
    child.asks = {number: Ask(number, "probe", {}, deadline_s) for number, deadline_s in enumerate(deadlines_s)}
    return child


def reaches(pid: int, state: str) -> bool:
    """Wait for the kernel to have it in this state; the suite's own deadline ends what never gets there."""
    while (stat := stat_of(pid)) is not None and stat.state != state:
        os.sched_yield()
    return stat is not None


def test_one_that_could_run_is_given_time_and_not_without_end() -> None:
    # Whoever reads its own state is running.
    child = late(os.getpid(), 4.0, 9.0)
    assert child.deadline_at_s == 100.0 + PATIENCE_S
    assert child.is_starved(101.0)
    assert child.deadline_at_s == 101.0 + PATIENCE_S / 2
    assert child.is_starved(104.0)
    extended_s = child.deadline_at_s
    # The first of its requests has had its time.
    assert not child.is_starved(104.1)
    assert child.deadline_at_s == extended_s


@pytest.mark.parametrize(("number", "state"), [(None, "S"), (signal.SIGSTOP, "T")])
def test_one_that_waits_or_was_stopped_is_stuck(
    waiting: subprocess.Popen[bytes], number: signal.Signals | None, state: str
) -> None:
    if number is not None:
        waiting.send_signal(number)
    assert reaches(waiting.pid, state)
    child = late(waiting.pid, 4.0)
    assert not child.is_starved(101.0)
    assert child.deadline_at_s == 100.0 + PATIENCE_S


def test_one_that_is_gone_is_not_starved(waiting: subprocess.Popen[bytes]) -> None:
    waiting.kill()
    waiting.wait()
    assert not late(waiting.pid, 4.0).is_starved(101.0)
