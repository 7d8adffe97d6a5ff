"""One agent on this machine: every outcome of a request is distinguished."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from preflight.agent import agent as module
from preflight.agent import guardian, process
from preflight.agent.agent import WATCH_S, Agent
from preflight.agent.process import Stat
from preflight.agent.wire import LEASE_S, AgentRequest, Context, Done, Event, Failed
from preflight.executors.pipe import LocalExecutor
from preflight.runner.session import AgentSession
from tests.waiting import LIMIT_S

WithSession = Callable[..., Any]
HERE = Context(interpreter=sys.executable, provenance="run.sh:7")
EVERYWHERE = pytest.mark.parametrize("context", [None, HERE], ids=["forked", "context"])


def ask(with_session: WithSession, name: str, params: Any = None, **keywords: Any) -> Done | Failed:
    async def use(session: AgentSession) -> Done | Failed:
        return await session.request(f"shipped.probes:{name}", params, **keywords)

    return with_session(use)  # type: ignore[no-any-return]


def failed(answer: Done | Failed, kind: str) -> Failed:
    assert isinstance(answer, Failed), answer
    assert answer.kind == kind, answer
    return answer


@EVERYWHERE
def test_value_is_returned_as_json(with_session: WithSession, context: Context | None) -> None:
    answer = ask(with_session, "place", {"variable": "HOME"}, context=context)
    assert isinstance(answer, Done), answer
    assert answer.value["folder"] == str(Path.cwd())
    assert answer.value["variable"] == os.environ.get("HOME")
    assert answer.value["numbers"] == [1.5, "inf"]


@EVERYWHERE
def test_an_exception_is_a_crash_with_its_traceback(with_session: WithSession, context: Context | None) -> None:
    answer = failed(ask(with_session, "crash", context=context), "crashed")
    assert answer.reason == "RuntimeError: no such luck"
    assert 'File "preflight-bundle:/shipped/probes.py"' in answer.detail
    assert 'raise RuntimeError("no such luck")' in answer.detail


def test_probe_reports_unavailable(with_session: WithSession) -> None:
    assert failed(ask(with_session, "unavailable"), "missing").reason == "ibstat is not installed"


@EVERYWHERE
def test_killed_child_is_reported_at_once(with_session: WithSession, context: Context | None) -> None:
    number = int(signal.SIGKILL if context else signal.SIGSEGV)
    answer = failed(ask(with_session, "kill_self", {"signal": number}, context=context), "crashed")
    assert answer.exit_code == -number
    assert signal.Signals(number).name in answer.reason
    assert "last words" in answer.detail


def test_sys_exit_is_a_crash(with_session: WithSession) -> None:
    assert "SystemExit: 3" in failed(ask(with_session, "leave"), "crashed").reason


@EVERYWHERE
def test_timeout_names_what_the_probe_waited_for(with_session: WithSession, context: Context | None) -> None:
    answer = failed(ask(with_session, "hang", deadline_s=1.0, context=context), "timeout")
    assert "within 1 s" in answer.reason
    assert "shipped.probes:hang" in answer.reason
    assert "probes.py" in answer.reason and "in hang" in answer.reason


@EVERYWHERE
def test_probe_output_does_not_disturb_the_protocol(with_session: WithSession, context: Context | None) -> None:
    answer = ask(with_session, "print_noise", context=context)
    assert isinstance(answer, Done) and answer.value == "quiet"


@EVERYWHERE
def test_events_arrive_in_order_before_the_answer(with_session: WithSession, context: Context | None) -> None:
    seen: list[Event] = []
    answer = ask(with_session, "count", {"upto": 50}, on_event=seen.append, context=context)
    assert isinstance(answer, Done) and answer.value == 50
    assert [event.data["number"] for event in seen if event.origin == "child"] == list(range(50))
    assert all(0 <= event.at_s < 60 for event in seen)


def test_large_value_arrives_complete(with_session: WithSession) -> None:
    answer = ask(with_session, "big", {"bytes": 4_000_000}, deadline_s=20.0)
    assert isinstance(answer, Done) and answer.value == "x" * 4_000_000


def test_value_above_four_mebibytes_is_rejected_by_its_sender(with_session: WithSession) -> None:
    answer = ask(with_session, "big", {"bytes": 30_000_000}, deadline_s=20.0)
    assert isinstance(answer, Failed) and answer.kind == "crashed"
    assert "cannot send its result: a message of 300000" in answer.reason
    assert "is larger than 4194304" in answer.reason


def test_a_value_without_json_form_is_a_crash(with_session: WithSession) -> None:
    assert "no JSON form" in failed(ask(with_session, "no_json"), "crashed").reason
    assert "larger" in failed(ask(with_session, "big", {"bytes": 40_000_000}, deadline_s=20.0), "crashed").reason


def test_missing_target_is_a_crash(with_session: WithSession) -> None:
    assert "nothing_of_that_name" in failed(ask(with_session, "nothing_of_that_name"), "crashed").reason


def test_hanging_child_does_not_delay_others(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> None:
        hanging = session.start(AgentRequest(0, "shipped.probes:hang", {}, 30.0))
        for number in range(20):
            answer = await session.request("shipped.probes:echo", {"value": number})
            assert isinstance(answer, Done) and answer.value == number
        assert hanging.answer is None
        hanging.cancel()
        assert failed(await hanging.result(), "cancelled")

    with_session(use)


def test_a_cancelled_scope_kills_the_child(with_session: WithSession, gone_within: Any) -> None:
    async def use(session: AgentSession) -> list[int]:
        pids: list[int] = []
        with anyio.CancelScope() as scope:

            def heard(event: Event) -> None:
                pids.append(event.data["pid"])
                scope.cancel()

            await session.request("shipped.probes:announce_and_hang", deadline_s=30.0, on_event=heard)
        assert await anyio.to_thread.run_sync(gone_within, pids, 2.0) == []
        return pids

    assert with_session(use)


def test_processes_left_by_a_finished_probe_are_killed(with_session: WithSession, gone_within: Any) -> None:
    async def use(session: AgentSession) -> None:
        answer = await session.request("shipped.probes:leave_daemon")
        assert isinstance(answer, Done), answer
        assert await anyio.to_thread.run_sync(gone_within, [answer.value], 4.0) == []

    with_session(use)


@EVERYWHERE
def test_daemon_lives_until_its_starter_ends(with_session: WithSession, context: Context | None) -> None:
    answer = ask(with_session, "keep_orphan", context=context)
    assert isinstance(answer, Done) and answer.value is True, answer


def test_the_context_has_its_directory_and_variables(with_session: WithSession, tmp_path: Path) -> None:
    context = Context(sys.executable, directory=str(tmp_path), environment={"NCCL_DEBUG": "INFO"})
    answer = ask(with_session, "place", {"variable": "NCCL_DEBUG"}, context=context)
    assert isinstance(answer, Done), answer
    assert answer.value["folder"] == str(tmp_path)
    assert answer.value["variable"] == "INFO"


def test_files_in_the_job_directory_do_not_shadow_modules(
    with_session: WithSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "preflight", "select", "faulthandler", "threading"):
        (tmp_path / f"{name}.py").write_text("raise SystemError('shadowed')")
    monkeypatch.chdir(tmp_path)
    context = Context(sys.executable, directory=str(tmp_path))
    assert isinstance(ask(with_session, "place", context=context), Done)


def test_wrappers_and_setup_lines_may_print(with_session: WithSession) -> None:
    context = Context(
        sys.executable,
        wrapper=["sh", "-c", 'echo wrapped; exec "$@"', "sh"],
        prelude=["echo loading modules; cat </dev/null", "export FROM_PRELUDE=yes"],
    )
    answer = ask(with_session, "place", {"variable": "FROM_PRELUDE"}, context=context)
    assert isinstance(answer, Done), answer
    assert answer.value["variable"] == "yes"


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (Context("/no/python", provenance="run.sh:7"), ["`/no/python` (run.sh:7)", "No such file"]),
        (Context(sys.executable, directory="/no/folder"), ["working directory /no/folder", "No such file"]),
        (Context("nopython", prelude=[":"]), ["`nopython` ended with exit code 127", "not found"]),
        (Context(sys.executable, wrapper=["false"]), ["exit code 1 before its Python started"]),
    ],
    ids=["interpreter", "directory", "inside", "wrapper"],
)
def test_context_that_cannot_be_entered_gives_the_reason(
    with_session: WithSession, context: Context, words: list[str]
) -> None:
    answer = failed(ask(with_session, "place", context=context), "context")
    assert [word for word in words if word not in answer.reason] == [], answer


def test_timeout_names_a_context_that_does_not_start(with_session: WithSession) -> None:
    context = Context(sys.executable, wrapper=["sh", "-c", "sleep 60", "apptainer"])
    answer = failed(ask(with_session, "place", context=context, deadline_s=0.5), "timeout")
    assert "waiting for the job context to start (`sh -c" in answer.reason


def test_a_stopped_rank_is_reported(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> None:
        send, receive = anyio.create_memory_object_stream[Event](100)
        running = session.start(AgentRequest(0, "shipped.probes:announce_and_hang", {}, 30.0, HERE), send.send_nowait)

        async def until(key: str, value: Any = None) -> Event:
            with anyio.fail_after(LIMIT_S):
                while True:
                    event = await receive.receive()
                    if key in event.data and value in (None, event.data[key]):
                        return event

        pid = (await until("pid")).data["pid"]
        os.kill(pid, signal.SIGSTOP)
        stopped = await until("state", "T")
        assert (stopped.origin, stopped.data["pid"]) == ("agent", pid)
        os.kill(pid, signal.SIGCONT)
        await until("state", "R")
        running.dump_stacks()
        assert "in announce_and_hang" in (await until("stacks")).data["stacks"]
        running.cancel()
        failed(await running.result(), "cancelled")
        send.close()
        receive.close()

    with_session(use)


OLD = Path("~/.pyenv/versions/3.8.18/bin/python3.8").expanduser()


def test_agents_and_children_run_on_python_3_8(with_session: WithSession) -> None:
    if not OLD.exists():
        pytest.skip("there is no Python 3.8 here")

    async def use(session: AgentSession) -> None:
        assert session.ready is not None and session.ready.python.startswith("3.8.")
        for context in (None, Context(str(OLD))):
            answer = await session.request("shipped.probes:place", context=context)
            assert isinstance(answer, Done) and answer.value["python"] == "3.8", answer

    with_session(use, executor=LocalExecutor(interpreter=str(OLD)))


def test_clock_offset_of_the_own_machine_is_zero(with_session: WithSession) -> None:
    async def use(session: AgentSession) -> Any:
        return session.record()

    record = with_session(use)
    assert abs(record.clock_offset_s) <= record.round_trip_s
    assert record.python == "{}.{}.{}".format(*sys.version_info[:3])


# The lease of the head, with a clock that the test turns: an agent that hears nothing ends in time, and not before.


class Turned:
    """An agent, and the clock by which it lives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fd_in: int, fd_out: int) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s, time=lambda: self.now_s))
        self.agent = Agent(b"", fd_in, fd_out)
        self.agent._selector = SimpleNamespace(select=self._select)  # type: ignore[assignment]
        self.step_s = WATCH_S

    def _select(self, timeout_s: float) -> list[object]:
        self.now_s += self.step_s
        return []

    def run(self, seconds: float) -> str:
        """Let so many seconds pass, or fewer if the agent ends; the reason of its end."""
        ends = self.now_s + seconds
        while self.now_s < ends and not self.agent._end_reason:
            self.agent._step()
        return self.agent._end_reason


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turned]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        yield Turned(monkeypatch, reading, writing)
    finally:
        os.close(reading)
        os.close(writing)


def test_an_agent_that_hears_nothing_ends_after_its_lease(turned: Turned) -> None:
    began = turned.now_s
    assert turned.run(LEASE_S) == ""
    assert "for 3.0 s" in turned.run(10 * LEASE_S)
    assert LEASE_S < turned.now_s - began <= LEASE_S + 2 * WATCH_S


def test_a_word_of_the_head_renews_the_lease(turned: Turned) -> None:
    for _ in range(5):
        assert turned.run(LEASE_S - WATCH_S) == ""
        turned.agent._last_frame_s = turned.now_s
    assert turned.run(2 * LEASE_S) != ""


def test_time_in_which_the_agent_itself_stood_still_does_not_count(turned: Turned) -> None:
    turned.step_s = 60.0
    turned.agent._step()
    turned.step_s = WATCH_S
    assert turned.run(LEASE_S / 2) == ""


# How long a guardian waits for an agent without heartbeats depends on the agent's state in the kernel.


@pytest.mark.parametrize(
    ("state", "leases"), [("T", 1), ("t", 1), ("R", guardian.MAX_MISSED_LEASES), ("D", guardian.MAX_MISSED_LEASES)]
)
def test_only_a_stopped_agent_is_lost_after_one_lease(monkeypatch: pytest.MonkeyPatch, state: str, leases: int) -> None:
    class Ended(Exception):
        pass

    def finish(why: str) -> None:
        raise Ended(why)

    waited: list[float] = []

    def silent(reading: object, writing: object, failing: object, timeout_s: float) -> tuple[list[int], ...]:
        waited.append(timeout_s)
        return [], [], []

    monkeypatch.setattr(guardian, "_end_all", finish)
    monkeypatch.setattr(guardian, "select", SimpleNamespace(select=silent))
    monkeypatch.setattr(guardian.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(process, "stat_of", lambda pid: Stat(pid, 1, state, "python3", 0, 0))
    with pytest.raises(Ended, match="stopped or stuck"):
        guardian._guard(os.getpid(), 0)
    assert sum(waited) == leases * guardian.LEASE_S
