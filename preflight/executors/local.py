"""Every node is this machine: each gets an agent of its own, as a process here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from preflight.executors.base import ExecutorError
from preflight.executors.pipe import PipeChannel, new_nonce, start_agent
from preflight.node import bootstrap
from preflight.recording import Node


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs agents on this machine, for jobs of one node and for trying things out.

    `interpreter` runs the agents; `environment` is laid over this process's own.
    """

    interpreter: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "local"

    async def open(self, node: Node, *, deadline_s: float, bundle: bytes) -> PipeChannel:
        """Start an agent here. Raises ExecutorError when the interpreter cannot be run or says nothing."""
        nonce = new_nonce()
        command = bootstrap.arguments(self.interpreter, nonce, ["-I", "-u"])
        try:
            channel = PipeChannel(
                command,
                description=f"the agent's process for {node.name} on this machine",
                environment={**os.environ, **self.environment},
            )
        except OSError as error:
            raise ExecutorError(
                "missing", f"{node.name}: `{self.interpreter}` cannot be run: {error.strerror}"
            ) from error

        def diagnose(code: int | None, words: str) -> ExecutorError:
            if code is None:
                return ExecutorError(
                    "timeout",
                    f"{node.name}: `{self.interpreter}` did not start within {deadline_s:g} s",
                    words,
                )
            if code == bootstrap.TOO_OLD:
                return ExecutorError("missing", f"{node.name}: `{self.interpreter}` is older than Python 3.8", words)
            said = f": {words.splitlines()[-1]}" if words else ""
            return ExecutorError("crashed", f"{node.name}: the agent ended with exit code {code}{said}", words)

        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel

    async def aclose(self) -> None:
        """Nothing is shared."""


EXECUTOR = LocalExecutor()
