"""Requests in the job context: one process stays there and forks for each of them.

Entering a context may take seconds: setup lines, a container, an interpreter on a network file system. So it is entered
only once. The process that stays there (`preflight.agent.context_entry`) is an agent itself, with a child, a deadline
and an exit reason for each request; this module is the outer agent's view of it.
"""

from __future__ import annotations

import time

from preflight.agent import bootstrap, process
from preflight.agent.child_handle import ChildProcess, command_of
from preflight.agent.wire import AgentRequest, Beat, Cancel, Done, Event, Failed, Ready, Signal, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

#: Extra time before the outer agent answers: the inner one knows what it waited for.
BACKSTOP_S = 2.0
#: Time before a failed context is tried again: each try may take seconds.
RETRY_S = 10.0
_FOREVER = float("inf")


class ContextRequest:
    """A request to be run in a job context. `is_sent` is set once the context process has received it."""

    def __init__(self, request: AgentRequest, now_s: float) -> None:
        self.request = request
        self.is_sent = False
        self._received_s = now_s

    @property
    def due_s(self) -> float:
        """The time at which the outer agent answers, if the context process has not."""
        allowed = self.request.start_s + self.request.deadline_s
        return self._received_s + allowed + (BACKSTOP_S if self.is_sent else 0.0)

    def to_sent_request(self, now_s: float) -> AgentRequest:
        """The request as sent into the context: entering took some of its time."""
        self.is_sent = True
        request = self.request
        spent = max(0.0, now_s - self._received_s - request.start_s)
        return AgentRequest(
            request.id, request.target, request.params, request.deadline_s, spent_s=spent, together=request.together
        )


class ContextProcess(ChildProcess):
    """The process in one context, and its requests."""

    def __init__(self, request: AgentRequest, pid: int, now_s: float) -> None:
        super().__init__(request, pid, now_s)
        # It has no request and no deadline of its own; only its requests are answered.
        self.answered = True
        self.requests: Dict[int, ContextRequest] = {}

    def bootstrap_message(self, bundle: bytes) -> bytes:
        """The input for its loader."""
        return bootstrap.bootstrap_message(bundle, "preflight.agent.context_entry:main", {})

    def describe_wait(self, item: ContextRequest) -> str:
        """What an unanswered request was waiting for."""
        command = " ".join(command_of(self.request.context)) if self.request.context is not None else ""
        if not self.started:
            return "the job context to start (`%s`)" % command
        stat = process.stat_of(self.seen_pid())
        state = {"D": ", which is stuck in the kernel (state D)", "T": ", which is stopped", "t": ", which is stopped"}
        return "%s below the process in the job context (`%s`)%s" % (
            item.request.target,
            command,
            state.get(stat.state, "") if stat is not None else "",
        )

    def failure(self, item: ContextRequest, code: int) -> Failed:
        """Why a request has no answer after its context process ended with `code`."""
        if not self.started:
            why = self.exit_failure(code)
            return Failed(item.request.id, why.kind, why.reason, why.detail, why.exit_code)
        reason = "%s: the process in the job context that runs it %s" % (
            item.request.target,
            process.describe_exit(code),
        )
        return Failed(item.request.id, "crashed", reason, self.error_text(), code)


class ContextPool:
    """All context processes of an agent by context.

    `enter` starts one, `send` sends to the head, `feed` writes to a context process.
    """

    def __init__(
        self,
        enter: Callable[[AgentRequest], ContextProcess],
        send: Callable[[Any], None],
        feed: Callable[[ChildProcess], None],
    ) -> None:
        self._start_context = enter
        self._send = send
        self._flush = feed
        self._processes: Dict[str, ContextProcess] = {}
        #: Why a context could not be entered, and until when it is not tried again.
        self._failures: Dict[str, Tuple[float, Failed]] = {}

    def submit(self, request: AgentRequest, now_s: float) -> None:
        """Run a request in its context. Raises OSError when the node is out of processes or descriptors."""
        assert request.context is not None
        key = repr(request.context)
        until, reason = self._failures.get(key, (0.0, None))
        if reason is not None and now_s < until:
            self._send(Failed(request.id, reason.kind, reason.reason, reason.detail, reason.exit_code))
            return
        context = self._processes.get(key)
        if context is None:
            context = self._start_context(AgentRequest(0, "the job context", {}, _FOREVER, request.context))
            self._processes[key] = context
        item = context.requests[request.id] = ContextRequest(request, now_s)
        if context.started:
            self._send_request(context, item, now_s)
            self._flush(context)

    def on_started(self, context: ContextProcess, now_s: float) -> None:
        """Its Python has started: send it the waiting requests; the caller writes them."""
        for item in context.requests.values():
            self._send_request(context, item, now_s)

    def on_message(self, context: ContextProcess, message: Any) -> None:
        """Relay a message from inside."""
        if isinstance(message, Ready):
            context.inner_pid = message.pid
        elif isinstance(message, (Done, Failed)):
            if context.requests.pop(message.id, None) is not None:
                self._send(message)
        elif isinstance(message, Event) and message.id in context.requests:
            self._send(message)

    def cancel(self, request_id: int) -> None:
        """Have the child of a request killed; no effect if there is none."""
        context = self._context_of(request_id)
        if context is not None:
            item = context.requests.pop(request_id)
            self._send(Failed(request_id, "cancelled", "it was cancelled"))
            if item.is_sent:
                self._send_to(context, Cancel(request_id))

    def dump(self, request_id: int) -> None:
        """Have the child of a request dump its stacks."""
        context = self._context_of(request_id)
        if context is not None and context.requests[request_id].is_sent:
            self._send_to(context, Signal(request_id))

    def send_heartbeats(self) -> None:
        """Send all context processes a heartbeat."""
        for context in self._processes.values():
            if context.started:
                self._send_to(context, Beat(time.time()))

    def deadlines(self) -> List[float]:
        """The times at which `enforce_deadlines` has something to do."""
        return [item.due_s for context in self._processes.values() for item in context.requests.values()]

    def enforce_deadlines(self, now_s: float) -> None:
        """Answer requests that were not answered from inside, and end a context process that is stuck."""
        for key, context in list(self._processes.items()):
            late = [item for item in context.requests.values() if now_s >= item.due_s]
            for item in late:
                del context.requests[item.request.id]
                allowed = item.request.start_s + item.request.deadline_s
                reason = "no answer within %.3g s, waiting for %s" % (allowed, context.describe_wait(item))
                self._send(Failed(item.request.id, "timeout", reason, context.error_text()))
            # A context that is only slow to start is kept for the next request.
            if any(item.is_sent for item in late):
                context.kill_at_s = 0.0
                del self._processes[key]

    def on_exit(self, context: ContextProcess, code: int, now_s: float) -> None:
        """Answer the requests of a context process that has ended."""
        for item in context.requests.values():
            self._send(context.failure(item, code))
        context.requests.clear()
        key = repr(context.request.context)
        if self._processes.get(key) is context:
            del self._processes[key]
            if not context.started:
                self._failures[key] = (now_s + RETRY_S, context.exit_failure(code))

    def _context_of(self, request_id: int) -> Optional[ContextProcess]:
        for context in self._processes.values():
            if request_id in context.requests:
                return context
        return None

    def _send_request(self, context: ContextProcess, item: ContextRequest, now_s: float) -> None:
        context.unsent_input += encode(item.to_sent_request(now_s))

    def _send_to(self, context: ContextProcess, message: Any) -> None:
        context.unsent_input += encode(message)
        self._flush(context)
