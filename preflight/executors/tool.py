"""Running a scheduler's own tools: a list of arguments, a deadline, bounded output, gone when this process is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

import anyio

from preflight.executors.base import ExecutorError
from preflight.lazy.dataclasses import dataclass
from preflight.node import process

#: What a tool of a large cluster may print.
_MOST_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    """How a tool ended and what it said."""

    code: int
    output: str
    errors: str

    @property
    def last_error(self) -> str:
        """The last line of standard error that is not empty."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


async def run_tool(command: Sequence[str], *, deadline_s: float, environment: Mapping[str, str] | None = None) -> Ran:
    """Run `command` to its end.

    Raises:
        ExecutorError: it is not there ("missing"), or did not end in time ("timeout").
    """
    chosen = {**(os.environ if environment is None else environment), "LC_ALL": "C"}
    try:
        started = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=chosen,
            start_new_session=True,
            limit=_MOST_BYTES,
            preexec_fn=_end_with_us,
        )
    except OSError as error:
        raise ExecutorError("missing", f"`{command[0]}` cannot be run here: {error.strerror}") from error
    try:
        with anyio.fail_after(deadline_s):
            output, errors = await started.communicate()
    except TimeoutError:
        raise ExecutorError("timeout", f"`{' '.join(command)}` did not answer within {deadline_s:.3g} s") from None
    finally:
        if started.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(started.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await started.wait()
    code = started.returncode if started.returncode is not None else -signal.SIGKILL
    return Ran(code, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def _end_with_us() -> None:
    process.die_with_parent(signal.SIGKILL)
