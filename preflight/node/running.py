"""The agent's view of one running child: how it is started, what it has said, what it is waiting for."""

from __future__ import annotations

import gc
import os
import re
import signal
from contextlib import suppress

from preflight.node import bootstrap, child, process
from preflight.node.wire import Ask, Context, Failed, FrameReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Type, TypeVar

    R = TypeVar("R", bound="Running")

#: How much of a child's standard error is kept as evidence.
ERROR_BYTES = 8192
_NOISE_BYTES = 1 << 20
#: Runs the interpreter of the console script `$1` with the other arguments. pip writes the interpreter into the first
#: line, or, where that would be too long or hold a blank, behind `exec` in the second.
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


class Running:
    """A child and its pipes. `out` carries frames, `err` text, `feed` bytes to a context child."""

    def __init__(self, ask: Ask, pid: int, now_s: float) -> None:
        self.ask = ask
        self.pid = pid
        self.deadline_at_s = now_s + ask.deadline_s - ask.spent_s
        self.out = -1
        self.err = -1
        self.feed = -1
        self.status = -1
        self.reader = FrameReader()
        self.answered = False
        #: Set once it is over for this child: when its processes are killed.
        self.kill_at_s: Optional[float] = None
        self.timed_out = False
        self.nonce = b""
        self._noise = bytearray()
        self.to_feed = bytearray()
        self.exec_problem = ""
        #: The pid that the child itself sees; in a container it may be nobody here.
        self.inner_pid = pid
        self.dump_at_s: Optional[float] = None
        self.dump_from = 0
        self._states: Dict[int, str] = {}
        self._looks: Dict[int, str] = {}
        self._error = bytearray()
        self._error_total = 0

    def first_words(self, bundle: bytes) -> bytes:
        """What the loader of a context child is sent."""
        arguments = {"id": self.ask.id, "target": self.ask.target, "params": self.ask.params}
        return bootstrap.first_words(bundle, "preflight.node.child:main", arguments)

    @property
    def started(self) -> bool:
        """Whether the child's own Python has spoken (a forked one has from the start)."""
        return not self.nonce

    def moments(self) -> List[float]:
        """When something is to be done about it."""
        times = [at for at in (self.kill_at_s, self.dump_at_s) if at is not None]
        return times if self.answered or self.timed_out else [*times, self.deadline_at_s]

    def shows_stacks(self) -> bool:
        """Ask for its stacks by a signal; False where it is not seen from here and has to be told."""
        if self.ask.context is not None and self.inner_pid not in [self.pid, *process.descendants(self.pid)]:
            return False
        with suppress(OSError):
            os.kill(self.inner_pid, child.STACKS_SIGNAL)
        return True

    def heard_error(self, data: bytes) -> None:
        """Keep the end of what it wrote to standard error."""
        self._error_total += len(data)
        self._error += data
        del self._error[:-ERROR_BYTES]

    @property
    def error_total(self) -> int:
        """How many bytes it has written to standard error so far."""
        return self._error_total

    def error_text(self, since: int = 0) -> str:
        """The kept end of standard error, from byte `since` of the whole on."""
        kept_from = self._error_total - len(self._error)
        return self._error[max(0, since - kept_from) :].decode("utf-8", "replace")

    def last_error_line(self) -> str:
        """The last line it wrote to standard error that is not empty."""
        lines = [line.strip() for line in self.error_text().splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""

    def past_noise(self, data: bytes) -> Tuple[bytes, bool]:
        """What follows the nonce, and whether it came just now; wrappers and set-up lines may print before it."""
        if self.started:
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
        """The pid of the child's own Python as this process sees it; a wrapper's where that is in a container."""
        below = self.inner_pid == self.pid or self.inner_pid in process.descendants(self.pid)
        return self.inner_pid if below else self.pid

    def waiting_for(self) -> str:
        """What a child that missed its deadline was at, as far as can be told from outside."""
        if self.ask.context is not None and not self.started:
            return "the job context to start (`%s`)" % " ".join(command_of(self.ask.context))
        stat = process.stat_of(self.seen_pid())
        stuck = ""
        if stat is not None and stat.state in ("D", "T", "t"):
            stuck = ", whose process is %s" % ("stopped" if stat.state != "D" else "stuck in the kernel (state D)")
        place = innermost(self.error_text(self.dump_from)) if self.timed_out else ""
        return self.ask.target + (" at " + place if place else "") + stuck

    def state_changes(self) -> List[Dict[str, Any]]:
        """Which of its processes were stopped, continued, or found stuck in the kernel twice, since the last look."""
        changes: List[Dict[str, Any]] = []
        looks: Dict[int, str] = {}
        for pid in [self.pid, *process.descendants(self.pid)]:
            stat = process.stat_of(pid)
            if stat is None:
                continue
            looks[pid] = stat.state
            known = self._states.get(pid, "R")
            state = {"t": "T", "T": "T", "D": "D", "Z": known, "X": known}.get(stat.state, "R")
            # Every read from a disk is a moment of D.
            if state == known or (state == "D" and self._looks.get(pid) != "D"):
                continue
            self._states[pid] = state
            seen = {"T": "stopped", "D": "uninterruptible", "R": "running"}[state]
            changes.append({"state": state, "seen": seen, "pid": pid, "command": stat.command})
        self._looks = looks
        return changes

    def post_mortem(self, code: int) -> Failed:
        """Why there is no answer, of a child that ended with `code`."""
        ask = self.ask
        if self.timed_out:
            reason = "no answer within %.3g s, waiting for %s" % (ask.deadline_s, self.waiting_for())
            return Failed(ask.id, "timeout", reason)
        if self.exec_problem:
            return Failed(ask.id, "context", "the job context cannot be entered: %s" % self.exec_problem)
        if not self.started and ask.context is not None:
            command = " ".join(command_of(ask.context))
            if code == bootstrap.TOO_OLD:
                reason = "`%s` is older than Python 3.8" % command
            else:
                said = self.last_error_line()
                reason = "`%s` %s before its Python started%s" % (
                    command,
                    process.ending(code),
                    ": " + said if said else "",
                )
            noise = self._noise[-ERROR_BYTES:].decode("utf-8", "replace")
            return Failed(ask.id, "context", reason, self.error_text() or noise, code)
        return Failed(ask.id, "crashed", "%s %s without an answer" % (ask.target, process.ending(code)), "", code)


def innermost(stacks: str) -> str:
    """Where the main thread stands in a dump of faulthandler's, which prints that thread last.

    The innermost frame of our own is preferred, because `socket.py` says less than the probe that called it.
    """
    places: List[str] = []
    for line in stacks.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            places = []
        match = _FRAME.match(line)
        if match:
            places.append("%s:%s in %s" % (match.group(1).replace(bootstrap.ORIGIN + "/", ""), *match.groups()[1:]))
    ours = [place for place in places if place.startswith(("preflight", "reference_trainer"))]
    answers = "preflight/node/"
    chosen = [place for place in ours if not place.startswith(answers)] or places
    return chosen[0] if chosen else ""


def command_of(context: Context) -> List[str]:
    """The command of a job context as a person would write it."""
    return [*context.wrapper, context.script or context.interpreter]


def fork(
    ask: Ask, nonce: str, bundle: bytes, now_s: float, *, kind: Type[R], asks: Optional[Sequence[Ask]] = None
) -> R:
    """Start the child of a request: a fork of this process, or a fresh interpreter in its context.

    `kind` is how it is seen here. A fork may answer several requests, `asks`, one after another. Raises OSError when
    the node is out of processes or descriptors.
    """
    context = ask.context
    asks = asks or [ask]
    if context is None:
        for one in asks:
            bootstrap.prepare(one.target.partition(":")[0])
        # What is there by now is no garbage: no child looks through it, which would copy every page of it.
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
        _become(ask, asks, nonce, agent, pipes)
    os.close(out_w)
    os.close(err_w)
    running = kind(ask, pid, now_s)
    running.out, running.err = out_r, err_r
    if context is not None:
        (in_r, in_w), (status_r, status_w) = pipes[2:]
        os.close(in_r)
        os.close(status_w)
        running.feed, running.status = in_w, status_r
        running.nonce = ("\n" + nonce + "\n").encode()
        running.to_feed += running.first_words(bundle)
    for fd in (running.out, running.err, running.feed, running.status):
        if fd >= 0:
            os.set_blocking(fd, False)
    return running


def _become(ask: Ask, asks: Sequence[Ask], nonce: str, agent: int, pipes: List[Tuple[int, int]]) -> NoReturn:
    """In the new process: cut every tie to the agent but the pipes, then run or exec."""
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
        os.dup2(null if ask.context is None else ends[4], 0)
        os.dup2(err_w if ask.context is None else out_w, 1)
        os.dup2(err_w, 2)
        kept = [out_w] if ask.context is None else [ends[7]]
        _close_others(kept)
        if ask.context is None:
            code, problem = child.run_forked(asks, out_w)
            if problem is not None:
                os.write(2, problem.encode())
        else:
            _enter(ask.context, nonce, ends[7])
    except BaseException as error:
        os.write(2, ("%s: %s\n" % (type(error).__name__, error)).encode("utf-8", "replace"))
    finally:
        process.leave(code)


def _close_others(kept: List[int]) -> None:
    try:
        open_fds = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # a container without /proc
        open_fds = list(range(3, 4096))
    for fd in open_fds:
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass


def _enter(context: Context, nonce: str, status: int) -> None:
    """Exec the interpreter of the job; what hinders that is written to `status`, which exec closes."""
    for number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        signal.signal(number, signal.SIG_DFL)
    claimed = " (%s)" % context.provenance if context.provenance else ""
    try:
        if context.directory is not None:
            os.chdir(context.directory)
    except OSError as error:
        told = "its working directory %s%s cannot be entered: %s" % (
            context.directory,
            claimed,
            error.strerror,
        )
        os.write(status, told.encode("utf-8", "replace"))
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
        told = "`%s`%s cannot be run: %s" % (command[0], claimed, error.strerror)
        os.write(status, told.encode("utf-8", "replace"))
        os._exit(1)
