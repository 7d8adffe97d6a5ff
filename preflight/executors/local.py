"""Every node is this machine: each gets an agent of its own, as a process here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import field, replace

from preflight.errors import UsageError
from preflight.executors.base import Bundle, ExecutorError, Gathered, Option, Wanted
from preflight.executors.pipe import PipeChannel, new_nonce, start_agent
from preflight.lazy.dataclasses import dataclass
from preflight.node import bootstrap
from preflight.recording import Node

#: The number of nodes comes out of a file; so many agents are started on this machine without being asked for.
MOST_LOCAL = 16
#: What a shell script that is the interpreter ends with when it does not find what it should start.
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs agents on this machine, for jobs of one node and for trying things out.

    `interpreter` runs the agents; `environment` is laid over this process's own.
    """

    interpreter: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "local"

    @property
    def options(self) -> tuple[Option, ...]:
        """What can be told by --on-option."""
        return (Option("python", "Interpreter that runs the agents, instead of preflight's own.", "/usr/bin/python3"),)

    def configured(self, given: Mapping[str, str]) -> LocalExecutor:
        """The same with what was told."""
        return replace(self, interpreter=given.get("python", self.interpreter))

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """This machine is there."""
        return f"this machine plays up to {MOST_LOCAL} nodes; links between them are not measured"

    async def gather(self, wanted: Wanted) -> Gathered | None:
        """As many nodes as the job wants, all of them played by this machine.

        Raises:
            UsageError: the job wants more than one machine should play.
        """
        if wanted.named:
            nodes = tuple(replace(node, address="localhost") for node in wanted.named)
            return Gathered(nodes, "this machine")
        count = wanted.count or 1
        if count > MOST_LOCAL:
            raise UsageError(
                f"the job wants {count} nodes, and --on local plays at most {MOST_LOCAL} on this machine; "
                f"name fewer with --hosts local[1-{MOST_LOCAL}]"
            )
        nodes = tuple(Node(f"local{index}", index, "localhost") for index in range(count))
        played = "one node" if count == 1 else f"{count} nodes"
        return Gathered(nodes, f"this machine, which plays {played}")

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
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
            if code == _NOT_FOUND:
                return ExecutorError("missing", f"{node.name}: `{self.interpreter}` cannot be run", words)
            if code == bootstrap.TOO_OLD:
                return ExecutorError("missing", f"{node.name}: `{self.interpreter}` is older than Python 3.8", words)
            said = f": {words.splitlines()[-1]}" if words else ""
            return ExecutorError("crashed", f"{node.name}: the agent ended with exit code {code}{said}", words)

        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel

    async def aclose(self) -> None:
        """Nothing is shared."""


EXECUTOR = LocalExecutor()
