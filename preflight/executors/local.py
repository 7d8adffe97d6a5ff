"""Runs the agents of all nodes as local processes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from preflight._util.usage_error import UsageError
from preflight.agent import bootstrap
from preflight.executors.base import Bundle, Executor, ExecutorError, GatheredNodes, NodeRequest, Option
from preflight.executors.pipe import PipeChannel, make_nonce, start_agent
from preflight.model.recording import Node

#: Largest number of agents started here, since the number of nodes may come from a file.
MAX_LOCAL = 16
#: Exit code of a shell script used as interpreter that does not find its program.
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class LocalExecutor(Executor):
    """Runs agents on this machine, for single-node jobs and for experiments.

    `interpreter` runs the agents; `environment` is added to that of this process.
    """

    interpreter: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "local"

    options = (Option("python", "Interpreter that runs the agents, instead of preflight's own.", "/usr/bin/python3"),)

    def configured(self, settings: Mapping[str, str]) -> LocalExecutor:
        """Return a copy with these options."""
        return replace(self, interpreter=settings.get("python", self.interpreter))

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return a description; this machine is always usable."""
        return f"this machine can represent up to {MAX_LOCAL} nodes; links between them are not measured"

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return as many nodes as the job has, all on this machine.

        Raises:
            UsageError: the job has more nodes than one machine may represent.
        """
        if request.named:
            nodes = tuple(replace(node, address="localhost") for node in request.named)
            return GatheredNodes(nodes, "this machine")
        count = request.count or 1
        if count > MAX_LOCAL:
            raise UsageError(
                f"the job has {count} nodes, but --on local supports at most {MAX_LOCAL} on this machine; "
                f"name fewer with --hosts local[1-{MAX_LOCAL}]"
            )
        nodes = tuple(Node(f"local{index}", index, "localhost") for index in range(count))
        played = "one node" if count == 1 else f"{count} nodes"
        return GatheredNodes(nodes, f"this machine as {played}")

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent here. Raises ExecutorError if the interpreter cannot be run or does not answer."""
        nonce = make_nonce()
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

        def diagnose(code: int | None, error_text: str) -> ExecutorError:
            if code is None:
                return ExecutorError(
                    "timeout", f"{node.name}: `{self.interpreter}` did not start within {deadline_s:g} s", error_text
                )
            if code == _NOT_FOUND:
                return ExecutorError("missing", f"{node.name}: `{self.interpreter}` cannot be run", error_text)
            if code == bootstrap.TOO_OLD:
                return ExecutorError(
                    "missing", f"{node.name}: `{self.interpreter}` is older than Python 3.8", error_text
                )
            last_line = f": {error_text.splitlines()[-1]}" if error_text else ""
            return ExecutorError(
                "crashed", f"{node.name}: the agent ended with exit code {code}{last_line}", error_text
            )

        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel


EXECUTOR = LocalExecutor()
