"""Cheap requests of one kind, answered in sequence by one child instead of a fork for each.

A process costs more than reading a few files below /proc. A request that is slow or dies in such a child only delays
the others: those without an answer are sent again, each in a separate child and with its full deadline.
"""

from __future__ import annotations

from preflight.agent import process
from preflight.agent.child_handle import ChildProcess
from preflight.agent.wire import AgentRequest, Done, Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

#: Seconds that a child with several requests may take for its next answer.
PROGRESS_TIMEOUT_S = 1.0


class BatchProcess(ChildProcess):
    """A child that answers several requests. Its answers are collected, and sent together once it is finished."""

    def __init__(self, request: AgentRequest, pid: int, now_s: float) -> None:
        super().__init__(request, pid, now_s)
        self.requests: Dict[int, AgentRequest] = {}
        self.answers: List[Any] = []
        self._began_s = now_s

    def is_starved(self, now_s: float) -> bool:
        """Whether it is late only because it gets no CPU time, in which case its deadline is extended up to a limit."""
        stat = process.stat_of(self.pid)
        ends_s = self._began_s + min(request.deadline_s for request in self.requests.values())
        if stat is None or stat.state != "R" or now_s > ends_s:
            return False
        self.deadline_at_s = now_s + PROGRESS_TIMEOUT_S / 2
        return True


class BatchPool:
    """All batch processes of an agent.

    `start_batch` starts one for several requests, `start_single` an ordinary child for one; `send` sends to the head.
    """

    def __init__(
        self,
        start_batch: Callable[[List[AgentRequest]], BatchProcess],
        start_single: Callable[[AgentRequest], None],
        send: Callable[[List[Any]], None],
    ) -> None:
        self._start_batch = start_batch
        self._start_single = start_single
        self._send = send
        self._gathered: Dict[str, List[AgentRequest]] = {}
        self._children: List[BatchProcess] = []

    def gather(self, request: AgentRequest) -> None:
        """Collect a request that may share a child with others of its kind; `start` runs them."""
        self._gathered.setdefault(request.together, []).append(request)

    def start(self) -> None:
        """Run all collected requests. Raises nothing: if no process can be started, `start_single` reports it."""
        gathered, self._gathered = self._gathered, {}
        for requests in gathered.values():
            if len(requests) > 1:
                try:
                    child = self._start_batch(requests)
                except OSError:
                    pass
                else:
                    child.requests = {request.id: request for request in requests}
                    self._children.append(child)
                    continue
            for request in requests:
                self._start_single(request)

    def on_message(self, child: BatchProcess, message: Any, now_s: float) -> None:
        """Store an answer, and send all answers after the last."""
        if not isinstance(message, (Done, Failed)) or child.requests.pop(message.id, None) is None:
            return
        child.answers.append(message)
        child.deadline_at_s = now_s + PROGRESS_TIMEOUT_S
        if not child.requests:
            self._finish(child)

    def on_lost(self, child: BatchProcess) -> None:
        """Repeat the requests that the child did not answer before it died or ran out of time."""
        if child.answered:
            return
        remaining = list(child.requests.values())
        child.requests = {}
        self._finish(child)
        for request in remaining:
            self._start_single(request)

    def cancel(self, request_id: int) -> bool:
        """Cancel a request and answer it; False if no batch contains it."""
        for child in self._children:
            if child.requests.pop(request_id, None) is not None:
                self._send([Failed(request_id, "cancelled", "it was cancelled")])
                if not child.requests:
                    self._finish(child)
                    child.kill_at_s = 0.0
                return True
        return False

    def _finish(self, child: BatchProcess) -> None:
        child.answered = True
        self._children.remove(child)
        self._send(child.answers)
