"""Runs or submits a changed script, follows what it prints, and tells the verdict of its ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from preflight.lazy.dataclasses import dataclass
from preflight.node import command, process
from preflight.node.wire import ProbeUnavailable
from preflight.relaunch.edits import Refusal

#: Ranks say whom they wait for when they are told to end; then they are ended.
_LAST_WORDS_S = 8.0
_LOOK_S = 0.2
#: How often Slurm is asked for a job, and how long it may take to answer.
_ASK_EVERY_S = 1.0
_TOOL_DEADLINE_S = 30.0
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL")
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
GO, NO_GO, INCOMPLETE = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Ended:
    """How a script ended: `status` as the shell or the scheduler has it, or `why` it was ended by us."""

    status: str
    failed: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comes of a run: the exit code, and a line for people."""

    exit_code: int
    line: str


class _Termination:
    """SIGTERM as an interrupt: what was started meanwhile is ended, too. It is held back until that can be named."""

    def __init__(self) -> None:
        self._asked = 0
        self._armed = False

    def __enter__(self) -> _Termination:
        self._before = signal.signal(signal.SIGTERM, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def arm(self) -> None:
        """From now on it is raised; also where it came before."""
        self._armed = True
        if self._asked:
            raise SystemExit(128 + self._asked)

    def _take(self, number: int, frame: object) -> None:
        self._asked = number
        if self._armed:
            raise SystemExit(128 + number)


def run(script: Path, interpreter: Sequence[str], *, deadline_s: float) -> Ended:
    """Run the script here, in this directory, with its output on ours. At the deadline all it started is ended."""
    with _Termination() as termination:
        code = _wait([*(interpreter or ("bash",)), str(script)], deadline_s, termination)
    if code is None:
        return Ended("still running", True, f"it did not end within {deadline_s:g} s")
    return Ended(f"exit code {code}" if code >= 0 else f"signal {-code}", code != 0)


def _wait(words: Sequence[str], deadline_s: float, termination: _Termination) -> int | None:
    """How these words end, with all that they started; None where that takes too long."""
    try:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        raise Refusal(f"{words[0]} cannot be started: {error.strerror}") from None
    try:
        termination.arm()
        return child.wait(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    everyone = [child.pid, *process.descendants(child.pid)]
    for pid in everyone:
        _signal(pid, signal.SIGTERM)
    until = time.monotonic() + _LAST_WORDS_S
    while time.monotonic() < until and any(_lives(pid) for pid in everyone[1:]):
        time.sleep(_LOOK_S)
        child.poll()
    process.kill_all([pid for pid in {*everyone, *process.descendants(child.pid)} if _lives(pid)])
    child.wait(timeout=_LAST_WORDS_S)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _lives(pid: int) -> bool:
    found = process.stat_of(pid)
    return found is not None and found.state not in ("Z", "X")


def submit(script: Path, *, deadline_s: float, queue_deadline_s: float, say: Callable[[str], None]) -> Ended:
    """Submit the script by sbatch and follow its output until it is over. Whatever ends this ends the job.

    Raises:
        Refusal: sbatch is not there, or does not take it; with its own words.
    """
    with _Termination() as termination:
        job = _tool(["sbatch", "--parsable", str(script)]).strip().partition(";")[0]
        if not job.isdigit():
            raise Refusal(f"sbatch answered {job!r} and no job id")
        try:
            termination.arm()
            say(f"submitted as job {job}")
            ended = _follow(job, deadline_s, queue_deadline_s, say)
        except BaseException:
            _cancel(job)
            raise
    if ended.why:
        _cancel(job)
    return ended


def _follow(job: str, deadline_s: float, queue_deadline_s: float, say: Callable[[str], None]) -> Ended:
    output = _Output()
    submitted = time.monotonic()
    began: float | None = None
    told = ""
    while True:
        fields = _job(job)
        state = fields.get("JobState", "").partition(" ")[0] or "COMPLETED"
        output.show(fields.get("StdOut", ""))
        if state != told:
            told = state
            say(f"job {job} is {state.lower()}" + (f" on {fields['NodeList']}" if state == "RUNNING" else ""))
        now = time.monotonic()
        if state in _OVER:
            time.sleep(_LOOK_S)
            output.show(fields.get("StdOut", ""))
            return Ended(f"{state.lower()}, exit code {fields.get('ExitCode', '?')}", state != "COMPLETED")
        if state in _WAITS and began is None:
            if now - submitted > queue_deadline_s:
                reason = fields.get("Reason", "")
                why = f"it did not start within {queue_deadline_s:g} s ({reason}); it was cancelled"
                return Ended("queued", False, why)
        else:
            began = began if began is not None else now
            if now - began > deadline_s:
                return Ended(state.lower(), True, f"it did not end within {deadline_s:g} s; it was cancelled")
        time.sleep(_ASK_EVERY_S)


class _Output:
    """A file that grows on a shared file system, passed on as it grows."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, path: str) -> None:
        if not path or path == "/dev/null":
            return
        try:
            with open(path, "rb") as stream:  # noqa: PTH123
                stream.seek(self._shown)
                data = stream.read()
        except OSError:
            return
        self._shown += len(data)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _job(job: str) -> dict[str, str]:
    """What Slurm says of a job; nothing once it has forgotten it."""
    try:
        text = _tool(["scontrol", "show", "job", job, "--oneliner"])
    except Refusal as refusal:
        if "Invalid job id" in refusal.message:
            return {}
        raise
    return dict(part.split("=", 1) for part in text.split() if "=" in part)


def _cancel(job: str) -> None:
    try:
        _tool(["scancel", job])
    except Refusal as refusal:
        sys.stderr.write(f"preflight: job {job} could not be cancelled: {refusal}\n")


def _tool(words: Sequence[str]) -> str:
    try:
        ran = command.run(words, deadline_s=_TOOL_DEADLINE_S)
    except ProbeUnavailable as problem:
        raise Refusal(problem.reason) from None
    if ran.exit_code != 0:
        said = ran.error.strip().splitlines() or ran.output.strip().splitlines() or [f"status {ran.exit_code}"]
        raise Refusal(f"{words[0]}: {said[-1]}")
    return ran.output


def judge(ended: Ended, reports: Path, launches: Sequence[int]) -> Verdict:
    """The verdict over these launches, by what their ranks wrote and how the script ended."""
    said: list[dict[str, Any]] = []
    for path in sorted(reports.rglob("*.json")):
        try:
            said.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    how = ended.why or f"the script ended ({ended.status})"
    reasons = dict.fromkeys(reason for each in said if not each.get("go") for reason in each.get("why", ()))
    if reasons:
        return Verdict(NO_GO, f"NO-GO: {'; '.join(list(reasons)[:3])}")
    silent = [number for number in launches if not any(each.get("launch") == number for each in said)]
    heard = f"{len(said)} ranks of {len(launches) - len(silent)} of {len(launches)} launches reported"
    if not silent and not ended.why:
        behind = f"; behind it {how}" if ended.failed else ""
        return Verdict(GO, f"GO: {heard}, and all is right{behind}")
    if ended.failed:
        return Verdict(NO_GO, f"NO-GO: {how}; {heard}")
    named = f"; nothing was heard of launch {', '.join(map(str, silent))}" if silent else ""
    return Verdict(INCOMPLETE, f"incomplete: {how}; {heard}{named}")
