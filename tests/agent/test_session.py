"""The head's side against faulty agents: garbage, silence, another protocol, a sudden end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from preflight.agent.child_handle import PROGRESS_TIMEOUT_S, BatchProcess
from preflight.agent.process import children_of, descendants, stat_of
from preflight.agent.wire import (
    LEASE_S,
    PROTOCOL,
    AgentRequest,
    Beat,
    Context,
    Done,
    Event,
    Failed,
    FrameReader,
    Ready,
    encode,
)
from preflight.executors.base import Channel, ExecutorError
from preflight.model.recording import HEAD_PAUSED, Node
from preflight.runner.session import AgentSession
from tests.agent.test_agent import EVERYWHERE
from tests.waiting import until

pytestmark = pytest.mark.thorough

READY = Ready(PROTOCOL, "host7", 1, "3.9.2", "/usr/bin/python3", "boot", "me")


class FakeChannel:
    """A channel whose agent is the test: the head reads `out`, and what it writes is in `sent`."""

    description = "a fake channel"

    def __init__(self) -> None:
        self.out: MemoryObjectSendStream[bytes]
        self._in: MemoryObjectReceiveStream[bytes]
        self.out, self._in = anyio.create_memory_object_stream[bytes](100)
        self.sent: list[object] = []
        self.closed = False
        self.abandoned = False
        self._reader = FrameReader()

    async def send(self, data: bytes) -> None:
        self.sent.extend(self._reader.feed(data))

    async def receive(self) -> bytes:
        try:
            return await self._in.receive()
        except anyio.EndOfStream:
            return b""

    def abandon(self) -> None:
        self.abandoned = True

    async def aclose(self) -> None:
        self.closed = True
        await self.out.aclose()
        await self._in.aclose()

    def error_tail(self) -> str:
        return "warning\nbroken pipe"


def test_the_fake_is_a_channel() -> None:
    async def main() -> None:
        channel = FakeChannel()
        assert isinstance(channel, Channel)
        await channel.aclose()

    anyio.run(main)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"", "ended before its first message"),
        (b"bash: python3: command not found", "sent an invalid message"),
        (encode(Beat(1.0)), "expected protocol 1"),
        (encode(Ready(99, "h", 1, "3.9", "", "", "")), "expected protocol 1"),
    ],
)
def test_wrong_first_message_is_an_error(message: bytes, words: str) -> None:
    async def main() -> None:
        channel = FakeChannel()
        if message:
            await channel.out.send(message)
        else:
            await channel.out.aclose()
        with pytest.raises(ExecutorError, match=words) as caught:
            async with AgentSession(channel, Node("node7", 0)):
                pass
        assert caught.value.message.startswith("node7: ")
        assert channel.closed

    anyio.run(main)


async def _answer_after(
    behave: Callable[[FakeChannel], None], deadline_s: float = 30.0
) -> tuple[Done | Failed, AgentSession]:
    channel = FakeChannel()
    await channel.out.send(encode(READY))
    async with AgentSession(channel, Node("node7", 0)) as session:
        running = session.start(AgentRequest(0, "a:b", {}, deadline_s))
        behave(channel)
        answer = await running.result()
        assert channel.abandoned
        return answer, session


@pytest.mark.parametrize(
    ("last_words", "sent", "pause_s", "kind"),
    [
        ("agent: the head was silent for 3.0 s", b"", LEASE_S + 0.2, HEAD_PAUSED),
        ("", b"", LEASE_S + 0.2, HEAD_PAUSED),
        ("agent: the head was silent for 3.0 s", b"", 0.0, "unreachable"),
        ("Connection to node7 closed by remote host.", b"", LEASE_S + 0.2, "unreachable"),
        ("", b"\xff\xff\xff\xff", LEASE_S + 0.2, "unreachable"),
    ],
    ids=["it says so", "no last words", "no pause", "another reason", "garbage"],
)
def test_a_pause_of_the_head_excuses_only_an_agent_that_heard_nothing(
    monkeypatch: pytest.MonkeyPatch, last_words: str, sent: bytes, pause_s: float, kind: str
) -> None:
    monkeypatch.setattr(FakeChannel, "error_tail", lambda self: last_words)

    def behave(channel: FakeChannel) -> None:
        time.sleep(pause_s)  # the whole process stands still, as if it were suspended
        channel.out.send_nowait(sent) if sent else channel.out.close()

    async def main() -> None:
        answer, session = await _answer_after(behave)
        assert isinstance(answer, Failed) and session.lost_kind == kind, session.lost
        assert ("did not run" in session.lost) is (kind == HEAD_PAUSED)

    anyio.run(main)


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (lambda channel: channel.out.send_nowait(b"\xff\xff\xff\xff"), "sent an invalid message"),
        (lambda channel: channel.out.close(), "a fake channel ended: broken pipe"),
        (lambda channel: None, "silent for"),
    ],
    ids=["garbage", "end", "silence"],
)
def test_requests_to_a_lost_node_fail(behave: Callable[[FakeChannel], None], words: str) -> None:
    async def main() -> None:
        answer, session = await _answer_after(behave)
        assert isinstance(answer, Failed) and answer.kind == "unreachable"
        assert answer.reason.startswith("node7 was lost ") and words in answer.reason
        assert session.lost == answer.reason
        again = await session.request("a:b")
        assert isinstance(again, Failed) and again.kind == "unreachable"

    anyio.run(main)


def test_error_of_the_caller_is_raised_unchanged() -> None:
    async def main() -> None:
        channel = FakeChannel()
        await channel.out.send(encode(READY))
        async with AgentSession(channel, Node("node7", 0)):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        anyio.run(main)


def test_clock_offset_uses_the_fastest_round_trip() -> None:
    async def main() -> None:
        channel = FakeChannel()
        await channel.out.send(encode(READY))
        async with AgentSession(channel, Node("node7", 0)) as session:
            for delay_s in (0.4, 0.0, 0.6):
                now = time.time()
                # Sent `delay_s` ago, received at once: the whole delay was on the way back.
                ahead = now + 100
                channel.out.send_nowait(encode(Beat(ahead - delay_s, now - delay_s, ahead - delay_s)))
            estimate = await session.measure_clock()
            assert estimate is not None
            # The other two are off by 0.2 and 0.3 s.
            assert abs(estimate.offset_s - 100) < 0.2
            assert estimate.round_trip_s < 0.4
            record = session.record()
            assert (record.host, record.clock_offset_s) == ("host7", estimate.offset_s)

    anyio.run(main)


# No process is left on a node after the head, an agent, a guardian or the connection dies.


ROOT = Path(__file__).parents[2]
HEAD = """
import sys
import anyio
from preflight.executors.pipe import LocalExecutor
from preflight.runner.session import open_fleet
from preflight.agent.wire import AgentRequest, Context
from preflight.model.recording import Node

async def main():
    extra = (("shipped.probes", open(sys.argv[1]).read()),)
    async with open_fleet(LocalExecutor(), [Node("a", 0), Node("b", 1)], extra=extra) as fleet:
        running = []
        for session in fleet.sessions.values():
            def on_event(event, name=session.node.name, agent=session.ready.pid):
                if "pid" in event.data and event.origin == "child":
                    print("rank", name, agent, event.data["pid"], flush=True)
            request = AgentRequest(0, "shipped.probes:stubborn", {}, 60.0, Context(sys.executable))
            running.append(session.start(request, on_event))
        for one in running:
            print("answer", repr(await one.result()), flush=True)

anyio.run(main)
"""
#: Two nodes, each with guardian, agent, rank, loader, and the daemon's daemon.
PROCESSES = 10
Gone = Callable[[list[int], float], list[int]]


@dataclass
class Head:
    """A running head: its process, and all processes below it by pid."""

    process: subprocess.Popen[str]
    output: IO[str]
    below: list[int]
    agent: int

    @property
    def guardian(self) -> int:
        """The parent of the first agent."""
        stat = stat_of(self.agent)
        assert stat is not None
        return stat.parent


@pytest.fixture
def head() -> Iterator[Head]:
    paths = [ROOT, ROOT / "checks", ROOT / "rules", Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(Path(__file__).parent / "shipped" / "probes.py")],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().split() for _ in range(2)]
        assert [words[0] for words in lines] == ["rank", "rank"], lines
        until(lambda: len(descendants(process.pid)) >= PROCESSES)
        below = descendants(process.pid)
        agent = next(int(words[2]) for words in lines if words[1] == "a")
        yield Head(process, process.stdout, below, agent)
    finally:
        process.kill()
        process.wait(timeout=5)
        process.stdout.close()


def test_nothing_outlives_a_killed_head(head: Head, gone_within: Gone) -> None:
    head.process.kill()
    assert gone_within(head.below, 5.0) == []


def test_nothing_outlives_an_interrupted_head(head: Head, gone_within: Gone) -> None:
    head.process.send_signal(signal.SIGINT)
    assert gone_within(head.below, 5.0) == []


def test_nothing_outlives_a_silent_head(head: Head, gone_within: Gone) -> None:
    head.process.send_signal(signal.SIGSTOP)
    assert gone_within(head.below, 5.0) == []


@pytest.mark.parametrize("who", ["agent", "guardian"])
def test_nothing_outlives_a_killed_agent_and_its_node_is_reported(head: Head, gone_within: Gone, who: str) -> None:
    guardian, agent = head.guardian, head.agent
    mine = [guardian, *descendants(guardian)]
    others = [pid for pid in head.below if pid not in mine]
    os.kill({"agent": agent, "guardian": guardian}[who], signal.SIGKILL)
    assert gone_within(mine, 5.0) == []
    answer = head.output.readline()
    assert "kind='unreachable'" in answer and "a was lost" in answer
    # On a loaded machine a short-lived helper of the start may be among them in place of one that starts later.
    assert len(gone_within(others, 0.0)) >= PROCESSES // 2 - 1


def test_a_stopped_agent_is_lost_with_its_lease(head: Head, gone_within: Gone) -> None:
    mine = [head.guardian, *descendants(head.guardian)]
    os.kill(head.agent, signal.SIGSTOP)
    answer = head.output.readline()
    assert "kind='unreachable'" in answer and ("silent for" in answer or "stopped or stuck" in answer)
    assert gone_within(mine, 5.0) == []


# Requests that share a child: each gets its answer, whatever happens to the others.


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


# Requests in the job context: it is entered once, and requests are still independent.


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
        assert "shipped.probes:echo, under the process in the job context" in answer.reason
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
