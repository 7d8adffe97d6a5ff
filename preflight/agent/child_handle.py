"""The agent's view of one running child, and of the process in a job context that forks for each request.

A process costs more than reading a few files below /proc, so one child answers cheap requests of one kind in sequence;
those without an answer are sent again, each to its own child. Entering a context may take seconds, so it is entered
once; the process there (`preflight.agent.context_entry`) is an agent itself.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import time
from contextlib import suppress

from preflight.agent import bootstrap, child, process
from preflight.agent.wire import (
    ANSWER_BYTES,
    AgentRequest,
    Beat,
    Cancel,
    Context,
    Done,
    Event,
    Failed,
    FrameReader,
    Ready,
    Signal,
    encode,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn, Sequence, TypeVar

    R = TypeVar("R", bound="ChildProcess")


#: Number of bytes of a child's standard error that are kept as evidence.
ERROR_BYTES = 8192
_NOISE_BYTES = 1 << 20
#: Runs the interpreter of the console script `$1` with the other arguments. pip writes the interpreter into the first
#: line or, if that would be too long or contain a blank, after `exec` in the second.
_PYTHON_OF_SCRIPT = r"""
p=$(command -v "$1") || { echo "$1 is not on the PATH that a login without a terminal gets: $PATH" >&2; exit 127; }
IFS= read -r l < "$p"
case $l in
  "#!"*python*) l=${l#??}; shift; exec $l "$@";;
  "#!"*) l=$(sed -n "2s/^.*exec. *\"\{0,1\}\([^\"]*python[0-9.]*\).*/\1/p" "$p");;
  *) l=;;
esac
[ -n "$l" ] || { echo "$p names no Python interpreter in its first lines" >&2; exit 126; }
shift
exec "$l" "$@"
"""
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class ChildProcess:
    """A child and its pipes. `out` carries frames, `err` text, `feed` bytes to a context child."""

    def __init__(self, request: AgentRequest, pid: int, now_s: float) -> None:
        self.request = request
        self.pid = pid
        self.deadline_at_s = now_s + request.deadline_s - request.spent_s
        self.out = -1
        self.err = -1
        self.feed = -1
        self.status = -1
        self.reader = FrameReader(ANSWER_BYTES)
        self.answered = False
        #: The time at which its processes are killed; set once the child has finished.
        self.kill_at_s: float | None = None
        self.timed_out = False
        self.nonce = b""
        self._noise = bytearray()
        self.unsent_input = bytearray()
        self.exec_problem = ""
        #: The pid that the child itself sees; in a container it may be meaningless here.
        self.inner_pid = pid
        self.dump_at_s: float | None = None
        self.dump_offset = 0
        self._states: dict[int, str] = {}
        self._looks: dict[int, str] = {}
        self._error = bytearray()
        #: The number of bytes that it has written to standard error.
        self.error_total = 0

    def bootstrap_message(self, bundle: bytes) -> bytes:
        """Return the input for the loader of a context child."""
        arguments = {"id": self.request.id, "target": self.request.target, "params": self.request.params}
        return bootstrap.bootstrap_message(bundle, "preflight.agent.child:main", arguments)

    @property
    def has_started(self) -> bool:
        """Return whether the child's own Python has sent a message (always true for a fork)."""
        return not self.nonce

    def deadlines(self) -> list[float]:
        """Return the times at which the child needs attention."""
        times = [at for at in (self.kill_at_s, self.dump_at_s) if at is not None]
        return times if self.answered or self.timed_out else [*times, self.deadline_at_s]

    def request_stacks(self) -> bool:
        """Request the child's stacks by a signal. Returns False if it is not visible from here and needs a message."""
        if self.request.context is not None and self.inner_pid not in [self.pid, *process.descendants(self.pid)]:
            return False
        with suppress(OSError):
            os.kill(self.inner_pid, child.STACKS_SIGNAL)
        return True

    def on_error_output(self, data: bytes) -> None:
        """Keep the end of its standard error."""
        self.error_total += len(data)
        self._error += data
        del self._error[:-ERROR_BYTES]

    def error_text(self, since: int = 0) -> str:
        """Return the kept end of standard error, starting at byte `since` of the whole."""
        kept_from = self.error_total - len(self._error)
        return self._error[max(0, since - kept_from) :].decode("utf-8", "replace")

    def last_error_line(self) -> str:
        """Return the last non-empty line of standard error, or the reason that a dying Python prints."""
        lines = [line.strip() for line in self.error_text().splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith("Fatal Python error:")]
        return (fatal or lines)[-1][-300:] if lines else ""

    def skip_noise(self, data: bytes) -> tuple[bytes, bool]:
        """Return the data after the nonce, and whether the nonce just arrived; wrappers may print before it."""
        if self.has_started:
            return data, False
        self._noise += data
        place = self._noise.find(self.nonce)
        if place < 0:
            del self._noise[:-_NOISE_BYTES]
            return b"", False
        rest = bytes(self._noise[place + len(self.nonce) :])
        self._noise, self.nonce = bytearray(), b""
        return rest, True

    def seen_pid(self) -> int:
        """Return the pid of the child's own Python as seen here; the wrapper's if it runs in a container."""
        below = self.inner_pid == self.pid or self.inner_pid in process.descendants(self.pid)
        return self.inner_pid if below else self.pid

    def waiting_for(self) -> str:
        """Return what a child was doing when it missed its deadline, as far as this is visible from outside."""
        if self.request.context is not None and not self.has_started:
            return "the job context to start (`{}`)".format(" ".join(command_of(self.request.context)))
        stat = process.stat_of(self.seen_pid())
        stuck = ""
        if stat is not None and stat.state in ("D", "T", "t"):
            stuck = ", whose process is %s" % ("stopped" if stat.state != "D" else "stuck in the kernel (state D)")
        place = innermost_frame(self.error_text(self.dump_offset)) if self.timed_out else ""
        return self.request.target + (" at " + place if place else "") + stuck

    def state_changes(self) -> list[dict[str, Any]]:
        """Return changes of the child's processes since the last poll: stopped, running, or stuck in two polls."""
        changes: list[dict[str, Any]] = []
        looks: dict[int, str] = {}
        for pid in [self.pid, *process.descendants(self.pid)]:
            stat = process.stat_of(pid)
            if stat is None:
                continue
            looks[pid] = stat.state
            known = self._states.get(pid, "R")
            state = {"t": "T", "T": "T", "D": "D", "Z": known, "X": known}.get(stat.state, "R")
            # Every disk read is briefly in state D.
            if state == known or (state == "D" and self._looks.get(pid) != "D"):
                continue
            self._states[pid] = state
            seen = {"T": "stopped", "D": "uninterruptible", "R": "running"}[state]
            changes.append({"state": state, "seen": seen, "pid": pid, "command": stat.command})
        self._looks = looks
        return changes

    def exit_failure(self, code: int) -> Failed:
        """Return why a child that ended with `code` sent no result."""
        request = self.request
        if self.timed_out:
            reason = f"no result within {request.deadline_s:.3g} s, waiting for {self.waiting_for()}"
            return Failed(request.id, "timeout", reason)
        if self.exec_problem:
            return Failed(request.id, "context", f"the job context cannot be entered: {self.exec_problem}")
        if not self.has_started and request.context is not None:
            command = " ".join(command_of(request.context))
            if code == bootstrap.TOO_OLD:
                reason = f"`{command}` is older than Python 3.8"
            else:
                last_line = self.last_error_line()
                why = f": {last_line}" if last_line else ""
                reason = f"`{command}` {process.describe_exit(code)} before its Python started{why}"
            noise = self._noise[-ERROR_BYTES:].decode("utf-8", "replace")
            return Failed(request.id, "context", reason, self.error_text() or noise, code)
        reason = f"{request.target} {process.describe_exit(code)} without a result"
        return Failed(request.id, "crashed", reason, "", code)


def innermost_frame(stacks: str) -> str:
    """Return where the main thread, the last in faulthandler's dump, is; preferably in our own innermost frame."""
    places: list[str] = []
    for line in stacks.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            places = []
        match = _FRAME.match(line)
        if match:
            places.append("{}:{} in {}".format(match.group(1).replace(bootstrap.ORIGIN + "/", ""), *match.groups()[1:]))
    ours = [place for place in places if place.startswith(("preflight", "reference_trainer"))]
    answers = "preflight/agent/"
    chosen = [place for place in ours if not place.startswith(answers)] or places
    return chosen[0] if chosen else ""


def command_of(context: Context) -> list[str]:
    """Format the command of a job context as a person would write it."""
    return [*context.wrapper, context.script or context.interpreter]


def fork(
    request: AgentRequest,
    nonce: str,
    bundle: bytes,
    now_s: float,
    *,
    kind: type[R],
    requests: Sequence[AgentRequest] | None = None,
) -> R:
    """Start the child of a request: a fork (perhaps for several), or an interpreter in its context. Raises OSError."""
    context = request.context
    requests = requests or [request]
    if context is None:
        for item in requests:
            bootstrap.prepare(item.target.partition(":")[0])
        # Existing objects are not garbage: no child scans them, which would copy every page of them.
        gc.freeze()
    pipes = [os.pipe() for _ in range(2 if context is None else 4)]
    (out_r, out_w), (err_r, err_w) = pipes[:2]
    agent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        for pair in pipes:
            os.close(pair[0])
            os.close(pair[1])
        raise
    if pid == 0:
        _run_in_child(request, requests, nonce, agent, pipes)
    os.close(out_w)
    os.close(err_w)
    running = kind(request, pid, now_s)
    running.out, running.err = out_r, err_r
    if context is not None:
        (in_r, in_w), (status_r, status_w) = pipes[2:]
        os.close(in_r)
        os.close(status_w)
        running.feed, running.status = in_w, status_r
        running.nonce = ("\n" + nonce + "\n").encode()
        running.unsent_input += running.bootstrap_message(bundle)
    for fd in (running.out, running.err, running.feed, running.status):
        if fd >= 0:
            os.set_blocking(fd, False)
    return running


def _run_in_child(
    request: AgentRequest, requests: Sequence[AgentRequest], nonce: str, agent: int, pipes: list[tuple[int, int]]
) -> NoReturn:
    """Runs in the new process: close all descriptors except the pipes, then run or exec."""
    code = 1
    try:
        os.setsid()
        process.die_with_parent()
        if os.getppid() != agent:
            os._exit(1)
        process.adopt_orphans()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ends = [end for pair in pipes for end in pair]
        null = os.open(os.devnull, os.O_RDWR)
        out_w, err_w = ends[1], ends[3]
        os.dup2(null if request.context is None else ends[4], 0)
        os.dup2(err_w if request.context is None else out_w, 1)
        os.dup2(err_w, 2)
        kept = [out_w] if request.context is None else [ends[7]]
        _close_others(kept)
        if request.context is None:
            code, problem = child.run_forked(requests, out_w)
            if problem is not None:
                os.write(2, problem.encode())
        else:
            _exec_in_context(request.context, nonce, ends[7])
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    finally:
        process.exit_now(code)


def _close_others(kept_fds: list[int]) -> None:
    try:
        open_fds = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # a container without /proc
        open_fds = list(range(3, 4096))
    for fd in open_fds:
        if fd > 2 and fd not in kept_fds:
            with suppress(OSError):
                os.close(fd)


def _exec_in_context(context: Context, nonce: str, status: int) -> None:
    """Exec the job's interpreter; an error is written to `status`, which exec closes."""
    for number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        signal.signal(number, signal.SIG_DFL)
    claimed = f" ({context.provenance})" if context.provenance else ""
    try:
        if context.directory is not None:
            os.chdir(context.directory)
    except OSError as error:
        reason = f"its working directory {context.directory}{claimed} cannot be entered: {error.strerror}"
        os.write(status, reason.encode("utf-8", "replace"))
        os._exit(1)
    environment = {**os.environ, **context.environment}
    start = bootstrap.arguments(context.interpreter, nonce, [])
    if context.script:
        start = ["sh", "-c", _PYTHON_OF_SCRIPT, "sh", context.script, *start[1:]]
    command = [*context.wrapper, *start]
    if context.prelude:
        command = ["bash", "-c", "\n".join([*context.prelude, 'exec "$@"']), "bash", *command]
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        reason = f"`{command[0]}`{claimed} cannot be run: {error.strerror}"
        os.write(status, reason.encode("utf-8", "replace"))
        os._exit(1)


#: Seconds that a child with several requests may take for its next answer.
PROGRESS_TIMEOUT_S = 1.0


class BatchProcess(ChildProcess):
    """A child that answers several requests. Its answers are collected and sent together when it has finished."""

    def __init__(self, request: AgentRequest, pid: int, now_s: float) -> None:
        super().__init__(request, pid, now_s)
        self.requests: dict[int, AgentRequest] = {}
        self.answers: list[Any] = []
        self._began_s = now_s

    def is_starved(self, now_s: float) -> bool:
        """Return whether the child is late only for lack of CPU time, which extends its deadline up to a limit."""
        stat = process.stat_of(self.pid)
        ends_s = self._began_s + min(request.deadline_s for request in self.requests.values())
        if stat is None or stat.state != "R" or now_s > ends_s:
            return False
        self.deadline_at_s = now_s + PROGRESS_TIMEOUT_S / 2
        return True


class BatchPool:
    """All batch processes; `start_batch` starts one, `start_single` an ordinary child, `send` sends to the head."""

    def __init__(
        self,
        start_batch: Callable[[list[AgentRequest]], BatchProcess],
        start_single: Callable[[AgentRequest], None],
        send: Callable[[list[Any]], None],
    ) -> None:
        self._start_batch = start_batch
        self._start_single = start_single
        self._send = send
        self._gathered: dict[str, list[AgentRequest]] = {}
        self._children: list[BatchProcess] = []

    def gather(self, request: AgentRequest) -> None:
        """Collect a request that may share a child with others of its kind; `start` runs them."""
        self._gathered.setdefault(request.together, []).append(request)

    def start(self) -> None:
        """Run all collected requests. Raises nothing: if no process can be started, `start_single` reports it."""
        gathered, self._gathered = self._gathered, {}
        for requests in gathered.values():
            if len(requests) > 1:
                with suppress(OSError):
                    child = self._start_batch(requests)
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
        """Cancel a request and answer it. Returns False if no batch contains the request."""
        for batch in self._children:
            if batch.requests.pop(request_id, None) is not None:
                self._send([Failed(request_id, "cancelled", "it was cancelled")])
                if not batch.requests:
                    self._finish(batch)
                    batch.kill_at_s = 0.0
                return True
        return False

    def _finish(self, child: BatchProcess) -> None:
        child.answered = True
        self._children.remove(child)
        self._send(child.answers)


#: Extra time before the outer agent answers: the inner agent knows what it waited for.
BACKSTOP_S = 2.0
#: Time until a failed context is entered again, because each attempt may take seconds.
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
        """Return the time at which the outer agent answers, if the context process has not."""
        allowed = self.request.start_s + self.request.deadline_s
        return self._received_s + allowed + (BACKSTOP_S if self.is_sent else 0.0)

    def to_sent_request(self, now_s: float) -> AgentRequest:
        """Return the request as sent into the context: entering took some of its time."""
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
        self.requests: dict[int, ContextRequest] = {}

    def bootstrap_message(self, bundle: bytes) -> bytes:
        return bootstrap.bootstrap_message(bundle, "preflight.agent.context_entry:main", {})

    def describe_wait(self, item: ContextRequest) -> str:
        """Return the description of what an unanswered request was waiting for."""
        command = " ".join(command_of(self.request.context)) if self.request.context is not None else ""
        if not self.has_started:
            return f"the job context to start (`{command}`)"
        stat = process.stat_of(self.seen_pid())
        state = {"D": ", which is stuck in the kernel (state D)", "T": ", which is stopped", "t": ", which is stopped"}
        how = state.get(stat.state, "") if stat is not None else ""
        return f"{item.request.target}, under the process in the job context (`{command}`){how}"

    def failure(self, item: ContextRequest, code: int) -> Failed:
        """Return why a request has no answer after its context process ended with `code`."""
        if not self.has_started:
            why = self.exit_failure(code)
            return Failed(item.request.id, why.kind, why.reason, why.detail, why.exit_code)
        reason = f"{item.request.target}: the process in the job context that runs it {process.describe_exit(code)}"
        return Failed(item.request.id, "crashed", reason, self.error_text(), code)


class ContextPool:
    """All context processes; `enter` starts one, `send` sends to the head, `feed` writes to a context process."""

    def __init__(
        self,
        enter: Callable[[AgentRequest], ContextProcess],
        send: Callable[[Any], None],
        feed: Callable[[ChildProcess], None],
    ) -> None:
        self._start_context = enter
        self._send = send
        self._flush = feed
        self._processes: dict[str, ContextProcess] = {}
        #: Why a context could not be entered, and until when it is not tried again.
        self._failures: dict[str, tuple[float, Failed]] = {}

    def submit(self, request: AgentRequest, now_s: float) -> None:
        """Run a request in its context. Raises OSError if the node has run out of processes or descriptors."""
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
        if context.has_started:
            self._send_request(context, item, now_s)
            self._flush(context)

    def on_started(self, context: ContextProcess, now_s: float) -> None:
        """Send the waiting requests to a context whose Python has started; the caller writes them."""
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
        """Kill the child of a request, if there is one."""
        context = self._context_of(request_id)
        if context is not None:
            item = context.requests.pop(request_id)
            self._send(Failed(request_id, "cancelled", "it was cancelled"))
            if item.is_sent:
                self._send_to(context, Cancel(request_id))

    def dump(self, request_id: int) -> None:
        context = self._context_of(request_id)
        if context is not None and context.requests[request_id].is_sent:
            self._send_to(context, Signal(request_id))

    def send_heartbeats(self) -> None:
        for context in self._processes.values():
            if context.has_started:
                self._send_to(context, Beat(time.time()))

    def deadlines(self) -> list[float]:
        """Return the times at which `enforce_deadlines` will have something to do."""
        return [item.due_s for context in self._processes.values() for item in context.requests.values()]

    def enforce_deadlines(self, now_s: float) -> None:
        """Answer requests that were not answered from inside, and end a context process that is stuck."""
        for key, context in list(self._processes.items()):
            late = [item for item in context.requests.values() if now_s >= item.due_s]
            for item in late:
                del context.requests[item.request.id]
                allowed = item.request.start_s + item.request.deadline_s
                reason = f"no result within {allowed:.3g} s, waiting for {context.describe_wait(item)}"
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
            if not context.has_started:
                self._failures[key] = (now_s + RETRY_S, context.exit_failure(code))

    def _context_of(self, request_id: int) -> ContextProcess | None:
        for context in self._processes.values():
            if request_id in context.requests:
                return context
        return None

    def _send_request(self, context: ContextProcess, item: ContextRequest, now_s: float) -> None:
        context.unsent_input += encode(item.to_sent_request(now_s))

    def _send_to(self, context: ContextProcess, message: Any) -> None:
        context.unsent_input += encode(message)
        self._flush(context)
