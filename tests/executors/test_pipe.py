"""The channel over a child process: its end is detected, and closing it leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
import pytest

from preflight.executors.base import ExecutorError
from preflight.executors.pipe import PipeChannel, start_agent

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
