"""Requests in the job context: it is entered once, and requests are still independent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from preflight.agent.process import children_of, descendants, stat_of
from preflight.agent.wire import AgentRequest, Context, Done, Event, Failed
from preflight.runner.session import AgentSession

pytestmark = pytest.mark.thorough

WithSession = Callable[..., Any]
HERE = Context(interpreter=sys.executable)


def counted(folder: Path, *, interpreter: str = sys.executable, before: str = "") -> Context:
    """A context that writes a line to `entered` each time it is entered."""
    count = f'echo "$$" >> {folder}/entered; {before} exec "$@"'
    return Context(interpreter, wrapper=["sh", "-c", count, "sh"], directory=str(folder))


def entered(folder: Path) -> int:
    return len((folder / "entered").read_text().splitlines())


async def many(session: AgentSession, count: int, context: Context, **keywords: Any) -> list[Done | Failed]:
    answers: list[Done | Failed] = []

    async def ask(number: int) -> None:
        answers.append(await session.request("shipped.probes:echo", {"value": number}, context=context, **keywords))

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(ask, number)
    return answers


def test_context_is_entered_once_for_many_requests(with_session: WithSession, tmp_path: Path) -> None:
    async def use(session: AgentSession) -> None:
        answers = await many(session, 30, counted(tmp_path))
        assert sorted(answer.value for answer in answers if isinstance(answer, Done)) == list(range(30))
        await many(session, 3, counted(tmp_path))

    with_session(use)
    assert entered(tmp_path) == 1


def test_each_context_is_entered_separately(with_session: WithSession, tmp_path: Path) -> None:
    context = counted(tmp_path)
    other = Context(context.interpreter, context.wrapper, context.directory, {"RANK": "1"})

    async def use(session: AgentSession) -> None:
        for one, expected in ((context, None), (other, "1"), (context, None)):
            answer = await session.request("shipped.probes:place", {"variable": "RANK"}, context=one)
            assert isinstance(answer, Done) and answer.value["variable"] == expected

    with_session(use)
    assert entered(tmp_path) == 2


def test_rank_gets_its_own_interpreter(with_session: WithSession, tmp_path: Path) -> None:
    async def use(session: AgentSession) -> None:
        ranks = [
            session.start(AgentRequest(0, "shipped.probes:echo", {}, 5.0, counted(tmp_path), fresh=True))
            for _ in range(3)
        ]
        assert all([isinstance(await rank.result(), Done) for rank in ranks])

    with_session(use)
    assert entered(tmp_path) == 3


def test_failed_context_is_tried_once(with_session: WithSession, tmp_path: Path) -> None:
    async def use(session: AgentSession) -> None:
        context = counted(tmp_path, interpreter="/no/such/python")
        answers = [*await many(session, 8, context), *await many(session, 4, context)]
        assert {answer.kind for answer in answers if isinstance(answer, Failed)} == {"context"}
        assert len(answers) == 12 and len({answer.reason for answer in answers if isinstance(answer, Failed)}) == 1

    with_session(use)
    assert entered(tmp_path) == 1


def test_stuck_request_does_not_delay_others(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> None:
        wedged = [session.start(AgentRequest(0, "shipped.probes:hang", {}, 60.0, HERE)) for _ in range(8)]
        answers = await many(session, 20, HERE)
        assert all(isinstance(answer, Done) for answer in answers)
        assert all(one.answer is None for one in wedged)
        for one in wedged:
            one.cancel()
        kinds = {answer.kind for one in wedged if isinstance(answer := await one.result(), Failed)}
        assert kinds == {"cancelled"}

    with_session(use)


def test_cancelled_request_leaves_no_process(with_session: WithSession, gone_within: Any) -> None:
    async def use(session: AgentSession) -> None:
        send, receive = anyio.create_memory_object_stream[Event](10)
        ask = AgentRequest(0, "shipped.probes:stubborn", {}, 60.0, HERE)
        running = session.start(ask, lambda event: send.send_nowait(event) if event.origin == "child" else None)
        with anyio.fail_after(5):
            pid = (await receive.receive()).data["pid"]
        below = descendants(pid)
        running.cancel()
        assert await anyio.to_thread.run_sync(gone_within, [pid, *below], 3.0) == []
        assert isinstance((await many(session, 1, HERE))[0], Done)
        send.close()
        receive.close()

    with_session(use)


def context_pid_of(session: AgentSession) -> int:
    """The pid of the context process, the only child of an idle agent."""
    assert session.ready is not None
    (pid,) = children_of(session.ready.pid)
    return pid


def test_killed_context_process_is_reported_and_replaced(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> None:
        await many(session, 1, HERE)
        first = context_pid_of(session)
        hanging = session.start(AgentRequest(0, "shipped.probes:hang", {}, 30.0, HERE))
        await many(session, 1, HERE)
        os.kill(first, signal.SIGKILL)
        answer = await hanging.result()
        assert isinstance(answer, Failed) and (answer.kind, answer.exit_code) == ("crashed", -9)
        assert "process in the job context" in answer.reason and "SIGKILL" in answer.reason
        assert isinstance((await many(session, 1, HERE))[0], Done)
        assert context_pid_of(session) != first

    with_session(use)


def test_stopped_context_process_is_reported_and_replaced(with_session: WithSession, gone_within: Any) -> None:
    async def use(session: AgentSession) -> None:
        await many(session, 1, HERE)
        first = context_pid_of(session)
        os.kill(first, signal.SIGSTOP)
        answer = await session.request("shipped.probes:echo", context=HERE, deadline_s=0.3)
        assert isinstance(answer, Failed) and answer.kind == "timeout"
        assert "shipped.probes:echo below the process in the job context" in answer.reason
        assert answer.reason.endswith("which is stopped")
        assert await anyio.to_thread.run_sync(gone_within, [first], 3.0) == []
        assert isinstance((await many(session, 1, HERE))[0], Done)

    with_session(use)


def test_entering_a_context_may_take_longer_than_the_probe(with_session: WithSession, tmp_path: Path) -> None:
    context = counted(tmp_path, before="sleep 0.8;")

    async def use(session: AgentSession) -> None:
        running = session.start(AgentRequest(0, "shipped.probes:echo", {}, 0.4, context, start_s=5.0))
        answer = await session.request("shipped.probes:echo", context=context, deadline_s=0.4)
        assert isinstance(answer, Failed) and "waiting for the job context to start (`sh -c" in answer.reason
        # The request with a longer start time is answered; the next one finds the context entered.
        assert isinstance(await running.result(), Done)
        hung = await session.run(AgentRequest(0, "shipped.probes:hang", {}, 0.4, context, start_s=5.0))
        assert isinstance(hung, Failed) and "no answer within 0.4 s, waiting for shipped.probes:hang at" in hung.reason

    with_session(use)
    assert entered(tmp_path) == 1


def test_changes_of_a_request_do_not_affect_others(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> None:
        for _ in range(2):
            answer = await session.request("shipped.probes:first_time", context=HERE)
            assert isinstance(answer, Done) and answer.value is True

    with_session(use)


PID_NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]


@pytest.mark.parametrize("flags", [["--mount-proc"], []], ids=["own-proc", "proc-of-the-host"])
def test_container_with_its_own_pid_namespace(with_session: WithSession, gone_within: Any, flags: list[str]) -> None:
    wrapper = [*PID_NAMESPACE, *flags]
    tried = subprocess.run([*wrapper, "true"], capture_output=True, text=True, timeout=10, check=False)
    if tried.returncode:
        pytest.skip(f"no pid namespaces here: {tried.stderr.strip()}")
    context = Context(sys.executable, wrapper=wrapper)

    async def use(session: AgentSession) -> list[int]:
        answer = await session.request("shipped.probes:own_pid", context=context)
        assert isinstance(answer, Done) and answer.value < 100
        killed = await session.request("shipped.probes:kill_self", {"signal": 9}, context=context)
        assert isinstance(killed, Failed) and killed.exit_code == -9 and "last words" in killed.detail
        hung = await session.request("shipped.probes:hang", context=context, deadline_s=0.5)
        assert isinstance(hung, Failed) and "probes.py" in hung.reason and "in hang" in hung.reason
        stubborn = session.start(AgentRequest(0, "shipped.probes:stubborn", {}, 60.0, context))
        assert all(isinstance(answer, Done) for answer in await many(session, 10, context))
        assert session.ready is not None
        below = descendants(session.ready.pid)
        assert len(below) >= 3 and all(stat_of(pid) for pid in below) and stubborn.answer is None
        return below

    assert gone_within(with_session(use), 4.0) == []
