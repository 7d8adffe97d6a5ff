"""The bridge process: calls and streams that crash, stall, flood or outlive their head."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from preflight.agent import bootstrap
from preflight.agent.process import stat_of
from preflight.executors.base import ExecutorError
from preflight.executors.bridge import head as head_module
from preflight.executors.bridge.head import Bridge
from preflight.executors.bundle import pack
from preflight.executors.pipe import PipeChannel, start_agent
from tests.waiting import becomes

#: A side without any client library: `start` runs a program here.
SIDE = """
import os, subprocess, time
from preflight.executors.bridge import mux

class Program(mux.Stream):
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    def read(self):
        return os.read(self.process.stdout.fileno(), 65536)
    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()
    def exit_state(self):
        return self.process.wait(), "last words"
    def close(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass

class Side(mux.BridgeServer):
    def do_echo(self, value):
        return value
    def do_path(self):
        import sys
        return sys.path
    def do_pid(self):
        return os.getpid()
    def do_sleep(self, seconds):
        time.sleep(seconds)
    def do_crash(self):
        raise KeyError("gone")
    def do_refuse(self):
        raise mux.BridgeError("denied", "no", "all of it")
    def do_noise(self):
        print("noise on standard output", flush=True)
        os.system("echo more noise")
        return "quiet"
    def start(self, command, wait_s=0.0):
        time.sleep(wait_s)
        return Program(command)
    def close(self):
        path = os.environ.get("LEFT")
        if path:
            open(path, "w").write("closed")
        time.sleep(float(os.environ.get("SLOW", "0")))

def main(bundle, fd_in, fd_out):
    mux.serve(Side(), fd_in, fd_out)
"""
WithBridge = Callable[[Callable[[Bridge], Awaitable[None]]], None]


@pytest.fixture
def with_bridge(monkeypatch: pytest.MonkeyPatch) -> WithBridge:
    """Run a function with a bridge whose other end is SIDE."""
    folder = Path(head_module.__file__).parent
    modules = {"preflight": "", "preflight.executors": "", "preflight.agent": "", "preflight.executors.bridge": ""}
    packages = list(modules)
    modules["preflight.executors.bridge.mux"] = (
        (folder / "mux.py").read_text().replace("SHUTDOWN_S = 8", "SHUTDOWN_S = 2")
    )
    modules["preflight.executors.bridge.fake_side"] = SIDE
    modules[bootstrap.__name__] = Path(bootstrap.__file__).read_text()
    monkeypatch.setattr(head_module, "_bundle", lambda: pack(modules, packages))

    def run(use: Callable[[Bridge], Awaitable[None]]) -> None:
        async def main() -> None:
            bridge = Bridge("fake_side:main", interpreter=sys.executable)
            try:
                await use(bridge)
            finally:
                await bridge.aclose()

        anyio.run(main)

    return run


def test_calls_run_concurrently(with_bridge: WithBridge) -> None:
    async def use(bridge: Bridge) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: bridge.call("sleep", {"seconds": 20}, deadline_s=30))
            assert await bridge.call("echo", {"value": {"a": [1, None, "ü"]}}, deadline_s=10) == {"a": [1, None, "ü"]}
            group.cancel_scope.cancel()

    with_bridge(use)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("crash", "crashed", "KeyError"), ("refuse", "denied", "no"), ("unheard_of", "crashed", "do_unheard_of")],
)
def test_failing_call_does_not_affect_others(with_bridge: WithBridge, name: str, kind: str, words: str) -> None:
    async def use(bridge: Bridge) -> None:
        with pytest.raises(ExecutorError, match=words) as caught:
            await bridge.call(name, deadline_s=10)
        assert caught.value.kind == kind and caught.value.detail
        assert await bridge.call("noise", deadline_s=10) == "quiet"

    with_bridge(use)


def test_late_call_times_out(with_bridge: WithBridge) -> None:
    async def use(bridge: Bridge) -> None:
        assert await bridge.call("echo", {"value": 1}, deadline_s=10) == 1
        with pytest.raises(ExecutorError, match=r"within 0\.2 s"):
            await bridge.call("sleep", {"seconds": 30}, deadline_s=0.2)
        assert await bridge.call("echo", {"value": 2}, deadline_s=10) == 2

    with_bridge(use)


def test_streams_are_ordered_and_report_their_end(with_bridge: WithBridge) -> None:
    payload = os.urandom(3 << 20)

    async def use(bridge: Bridge) -> None:
        one = await bridge.open({"command": ["cat"]}, description="cat", deadline_s=10)
        other = await bridge.open({"command": ["sh", "-c", "exit 7"]}, description="sh", deadline_s=10)
        assert await other.receive() == b""
        assert (await other.exit_code(5), other.error_tail()) == (7, "last words")
        with pytest.raises(ExecutorError, match="sh is gone"):
            await other.send(b"x")
        heard = bytearray()

        async def listen() -> None:
            while len(heard) < len(payload):
                heard.extend(await one.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            for start in range(0, len(payload), 100_000):
                await one.send(payload[start : start + 100_000])
        assert heard == payload
        await one.aclose()
        assert await one.exit_code(1) == 0

    with_bridge(use)


def test_blocked_stream_does_not_delay_others(with_bridge: WithBridge) -> None:
    async def use(bridge: Bridge) -> None:
        stuck = await bridge.open({"command": ["sleep", "60"]}, description="sleep", deadline_s=10)
        with anyio.fail_after(20):
            for _ in range(16):
                await stuck.send(b"x" * (1 << 20))
            assert await bridge.call("echo", {"value": 1}, deadline_s=10) == 1
        await bridge.call("pid", deadline_s=5)

    with_bridge(use)


def test_stream_abandoned_while_opening_is_closed(with_bridge: WithBridge, tmp_path: Path) -> None:
    marker = tmp_path / "ended"

    async def use(bridge: Bridge) -> None:
        await bridge.call("echo", {"value": 1}, deadline_s=10)
        command = ["sh", "-c", f"cat; echo > {marker}"]
        with pytest.raises(ExecutorError, match="within"):
            await bridge.open({"command": command, "wait_s": 0.5}, description="late", deadline_s=0.1)
        await becomes(marker.exists)

    with_bridge(use)


def test_death_of_the_bridge_fails_calls_and_streams(with_bridge: WithBridge) -> None:
    async def use(bridge: Bridge) -> None:
        channel = await bridge.open({"command": ["cat"]}, description="cat", deadline_s=10)
        pid = await bridge.call("pid", deadline_s=5)
        os.kill(pid, signal.SIGKILL)
        assert await channel.receive() == b""
        assert "exit code -9" in channel.error_tail()
        with pytest.raises(ExecutorError, match="exit code -9"):
            await bridge.call("echo", {"value": 1}, deadline_s=5)
        with pytest.raises(ExecutorError):
            await channel.send(b"x")

    with_bridge(use)


@pytest.mark.parametrize("slow", ["0", "60"])
def test_side_cleans_up_even_if_a_stream_hangs(
    with_bridge: WithBridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setenv("LEFT", str(tmp_path / "left"))
    monkeypatch.setenv("SLOW", slow)
    pids: list[int] = []

    async def use(bridge: Bridge) -> None:
        pids.append(await bridge.call("pid", deadline_s=10))

    with_bridge(use)
    assert (tmp_path / "left").read_text() == "closed"
    assert stat_of(pids[0]) is None


def test_unusable_python_is_reported() -> None:
    async def main() -> None:
        bridge = Bridge("fake_side:main", interpreter="/no/python")
        with pytest.raises(ExecutorError, match="`/no/python` cannot be run") as caught:
            await bridge.call("echo", deadline_s=5)
        assert caught.value.kind == "missing"
        await bridge.aclose()

    anyio.run(main)


def test_only_user_modules_are_importable(
    with_bridge: WithBridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile, mine = tmp_path / "tree", tmp_path / "mine"
    hostile.mkdir()
    mine.mkdir()
    for name in ("zlib", "binascii", "json", "threading", "site", "sitecustomize", "usercustomize"):
        (hostile / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w').write({name!r})\n")
    (mine / "client_library.py").write_text("")
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PYTHONPATH", f"{mine}{os.pathsep}{os.pathsep}.{os.pathsep}relative")

    async def use(bridge: Bridge) -> None:
        path = await bridge.call("path", deadline_s=10)
        assert str(mine) in path
        assert not {"", ".", "relative", str(hostile)} & set(path)

    with_bridge(use)
    assert not (tmp_path / "run").exists()


# The channel over a child process: its end is detected, and closing it leaves nothing.


#: Far longer than anything here takes without a fault.
LONG_S = 30.0


def channel(script: str) -> PipeChannel:
    return PipeChannel(["sh", "-c", script], description="a shell")


def no_descriptors_of_processes(pid: int, flags: int = 0) -> int:
    raise OSError("Function not implemented")


@pytest.fixture(params=[None, no_descriptors_of_processes], ids=["told", "asking"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that reports the end of a process, and one that does not."""
    instead: Callable[..., int] | None = request.param
    if instead is not None:
        monkeypatch.setattr(os, "pidfd_open", instead)


@pytest.mark.usefixtures("system")
def test_exit_code() -> None:
    async def codes() -> list[int | None]:
        seven, killed = channel("sleep 0.2; exit 7"), channel("kill -9 $$")
        found = [await seven.exit_code(LONG_S), await killed.exit_code(LONG_S), await seven.exit_code(0)]
        await seven.aclose()
        await killed.aclose()
        return found

    assert anyio.run(codes) == [7, -9, 7]


@pytest.mark.usefixtures("system")
def test_exit_code_is_none_at_the_deadline() -> None:
    async def codes() -> list[int | None]:
        one = channel("read x; exit 3")
        found = [await one.exit_code(0), await one.exit_code(0.05)]
        await one.aclose()
        return [*found, await one.exit_code(0)]

    assert anyio.run(codes) == [None, None, 3]


@pytest.mark.thorough
def test_closed_channel_does_not_affect_the_next() -> None:
    async def heard() -> bytes:
        # A descendant holds the stream open after the process has ended.
        one = channel("sleep 2 & exit 0")
        assert await one.exit_code(LONG_S) == 0
        async with anyio.create_task_group() as group:
            group.start_soon(one.receive)
            await anyio.sleep(0.05)
            group.cancel_scope.cancel()
            # The event loop has not yet processed the end of that read.
            await one.aclose()
            # It gets the descriptor numbers of the first one.
            other = channel("sleep 0.1; echo here")
            with anyio.fail_after(5.0, shield=True):
                said = await other.receive()
        await other.aclose()
        return said

    assert anyio.run(heard) == b"here\n"


def test_a_login_that_ends_in_a_time_out_is_quoted() -> None:
    said = 'Please login as the user "ubuntu" rather than the user "root".'

    def diagnose(code: int | None, text: str) -> ExecutorError:
        assert code is None
        return ExecutorError("timeout", "node3: no agent in time", text)

    async def failure(script: str) -> ExecutorError:
        with pytest.raises(ExecutorError) as caught:
            await start_agent(channel(script), "node3", "abc", bundle=no_bundle, diagnose=diagnose, deadline_s=0.5)
        return caught.value

    async def no_bundle() -> bytes:
        raise AssertionError("the bundle must not be sent")

    async def both() -> tuple[ExecutorError, ExecutorError]:
        return await failure(f"echo '{said}'; echo; read x"), await failure("read x")

    printed, silent = anyio.run(both)
    assert printed.message == f'node3: no agent in time; the node printed: "{said}"' and printed.kind == "timeout"
    assert silent.message == "node3: no agent in time"
