"""Runs a scheduler's own tools: an argument list, a deadline, bounded output, and no process left behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import anyio

from preflight._util import toml
from preflight._util.log import command_text
from preflight.agent import process
from preflight.executors.base import ExecutorError

_log = logging.getLogger(__name__)

#: Largest output of a tool on a large cluster.
_MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The exit code and output of a tool."""

    code: int
    output: str
    errors: str

    @property
    def last_error(self) -> str:
        """Return the last non-empty line of standard error."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


async def run_tool(
    command: Sequence[str], *, deadline_s: float, environment: Mapping[str, str] | None = None
) -> ToolResult:
    """Run `command` to its end.

    Raises:
        ExecutorError: it was not found ("missing"), or did not end in time ("timeout").
    """
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("run %s", command_text(command))
    began_s = time.monotonic()
    chosen = {**(os.environ if environment is None else environment), "LC_ALL": "C"}
    try:
        started = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=chosen,
            start_new_session=True,
            limit=_MAX_BYTES,
            preexec_fn=_die_with_parent,
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
            kill_tree(started.pid)
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await started.wait()
    code = started.returncode if started.returncode is not None else -signal.SIGKILL
    _log.debug("%s: exit code %d after %.3f s", command[0], code, time.monotonic() - began_s)
    return ToolResult(code, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, including those in separate sessions."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process_below in (*root.children(recursive=True), root):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process_below.kill()
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    process.die_with_parent(signal.SIGKILL)


class ErrorMeaning(NamedTuple):
    """What messages that match a pattern mean: the kind of failure, a sentence, and what to do."""

    pattern: str
    kind: str
    meaning: str
    remedy: str


@functools.cache
def _meanings() -> dict[str, list[ErrorMeaning]]:
    tables = toml.load(Path(__file__).with_name("error_meanings.toml"))
    return {name: [ErrorMeaning(*row) for row in rows] for name, rows in tables.items()}


def find_meaning(table: str, lines: Iterable[str]) -> tuple[ErrorMeaning, str] | None:
    """The first row of a table of `error_meanings.toml` that matches a line, and the first such line."""
    kept = tuple(lines)
    for row in _meanings()[table]:
        line = next((line for line in kept if re.search(row.pattern, line, re.IGNORECASE)), None)
        if line is not None:
            return row, line
    return None
