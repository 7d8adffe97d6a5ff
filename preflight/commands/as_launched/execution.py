"""Writes the changed scripts to a folder, runs or submits them, and evaluates the reports of their ranks."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight._util import regular_file
from preflight._util.log import command_text
from preflight.agent import command
from preflight.agent.wire import ProbeUnavailable
from preflight.commands.as_launched.plan import ChangedCopy, Relaunch
from preflight.commands.as_launched.script_edits import Refusal
from preflight.executors.bundle import sources_of
from preflight.sources.formats.tree import MAX_BYTES

if TYPE_CHECKING:
    import psutil


_log = logging.getLogger(__name__)

#: Seconds between SIGTERM and SIGKILL, for ranks to report whom they wait for.
_TERM_GRACE_S = 8.0
_OUTPUT_EVERY_S = 0.2
#: Time that ranks need to detect and report that another rank has ended.
_REPORT_GRACE_S = 12.0
#: Seconds between two queries of a job's state, and the deadline of each query.
_POLL_EVERY_S = 1.0
_TOOL_DEADLINE_S = 30.0
_FINISHED_STATES = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"),
)
_QUEUED_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
GO, NO_GO, INCOMPLETE = 0, 1, 3
#: A branch of a `case`: its word, and its pattern.
_CASE = re.compile(r"case (.*) in (.*)\)")
#: The report of one rank.
_MAX_REPORT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ScriptExit:
    """The end of a script: its `status` from the shell or the scheduler, or the reason why preflight stopped it."""

    status: str
    failed: bool
    stop_reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run: the exit code, and a line for the user."""

    exit_code: int
    line: str


class _ToolFailed(Refusal):
    """The failure of a Slurm tool; `error` is what the tool printed."""

    def __init__(self, message: str, *, error: str) -> None:
        super().__init__(message)
        self.error = error


class _Termination:
    """Turns SIGTERM into an exception that also ends child processes, delayed until these are known."""

    def __init__(self) -> None:
        self._signal_received = 0
        self._armed = False

    def __enter__(self) -> _Termination:
        self._before = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def arm(self) -> None:
        """Raise on SIGTERM from now on, or immediately if it has already arrived."""
        self._armed = True
        if self._signal_received:
            raise SystemExit(128 + self._signal_received)

    def _handle(self, number: int, frame: object) -> None:
        self._signal_received = number
        if self._armed:
            raise SystemExit(128 + number)


def run(script: Path, interpreter: Sequence[str], *, deadline_s: float) -> ScriptExit:
    """Run the script here with this process's standard output; end all of its processes at the deadline."""
    with _Termination() as termination:
        code = _wait([*(interpreter or ("bash",)), str(script)], deadline_s, termination)
    if code is None:
        return ScriptExit("still running", True, f"it did not finish within {deadline_s:g} s")
    return ScriptExit(f"exit code {code}" if code >= 0 else f"signal {-code}", code != 0)


def _wait(words: Sequence[str], deadline_s: float, termination: _Termination) -> int | None:
    """Return the exit code of a command line; None at the deadline. All processes that it started are ended."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("run %s", command_text(words))
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
    """End the child and all processes that it started: first with SIGTERM, so that ranks report their waits, then
    SIGKILL.
    """
    if child.poll() is not None:
        return
    import psutil

    try:
        root = psutil.Process(child.pid)
        everyone = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for item in everyone:
        _signal(item, signal.SIGTERM)
    psutil.wait_procs(everyone[1:], timeout=_TERM_GRACE_S)
    with contextlib.suppress(psutil.NoSuchProcess):
        everyone += root.children(recursive=True)
    for item in everyone:
        _signal(item, signal.SIGKILL)
    child.wait(timeout=_TERM_GRACE_S)


def _signal(target: psutil.Process, number: int) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        target.send_signal(number)


def submit(script: Path, *, deadline_s: float, queue_deadline_s: float, report: Callable[[str], None]) -> ScriptExit:
    """Submit with sbatch and follow the output until it ends; an interruption cancels the job. Raises Refusal."""
    with _Termination() as termination:
        job = _run_slurm_tool(["sbatch", "--parsable", str(script)]).strip().partition(";")[0]
        if not job.isdecimal():
            raise Refusal(f"sbatch printed {job!r} instead of a job id")
        try:
            termination.arm()
            report(f"submitted as job {job}")
            ended = _follow(job, deadline_s, queue_deadline_s, report)
        except BaseException:
            _cancel(job)
            raise
    if ended.stop_reason:
        _cancel(job)
    return ended


def _follow(job: str, deadline_s: float, queue_deadline_s: float, report: Callable[[str], None]) -> ScriptExit:
    output = _Output()
    submitted = time.monotonic()
    began: float | None = None
    last_state = ""
    while True:
        fields = _job_fields(job)
        state = fields.get("JobState", "").partition(" ")[0] or "COMPLETED"
        output.show(fields.get("StdOut", ""))
        if state != last_state:
            last_state = state
            report(f"job {job} is {state.lower()}" + (f" on {fields['NodeList']}" if state == "RUNNING" else ""))
        now = time.monotonic()
        if state in _FINISHED_STATES:
            time.sleep(_OUTPUT_EVERY_S)
            output.show(fields.get("StdOut", ""))
            return ScriptExit(f"{state.lower()}, exit code {fields.get('ExitCode', '?')}", state != "COMPLETED")
        if state in _QUEUED_STATES and began is None:
            if now - submitted > queue_deadline_s:
                reason = fields.get("Reason", "")
                why = f"it did not start within {queue_deadline_s:g} s ({reason}), and was cancelled"
                return ScriptExit("queued", False, why)
        else:
            began = began if began is not None else now
            if now - began > deadline_s:
                return ScriptExit(state.lower(), True, f"it did not finish within {deadline_s:g} s, and was cancelled")
        time.sleep(_POLL_EVERY_S)


class _Output:
    """A file on a shared file system whose growth is copied to standard output."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, path: str) -> None:
        if not path or path == "/dev/null":
            return
        try:
            with regular_file.open_regular(path) as stream:
                stream.seek(self._shown)
                data = stream.read()
        except OSError:
            return
        self._shown += len(data)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _job_fields(job: str) -> dict[str, str]:
    """Return what Slurm reports about a job; empty once it has forgotten the job."""
    try:
        text = _run_slurm_tool(["scontrol", "show", "job", job, "--oneliner"])
    except _ToolFailed as failed:
        if "Invalid job id" in failed.error:
            return {}
        raise
    return dict(part.split("=", 1) for part in text.split() if "=" in part)


def _cancel(job: str) -> None:
    try:
        _run_slurm_tool(["scancel", job])
    except Refusal as refusal:
        sys.stderr.write(f"preflight: job {job} could not be cancelled: {refusal}\n")


def _run_slurm_tool(words: Sequence[str]) -> str:
    try:
        ran = command.run(words, deadline_s=_TOOL_DEADLINE_S)
    except ProbeUnavailable as problem:
        raise Refusal(problem.reason) from None
    if ran.exit_code != 0:
        lines = ran.error.strip().splitlines() or ran.output.strip().splitlines() or [f"status {ran.exit_code}"]
        raise _ToolFailed(f"{words[0]}: {lines[-1]}", error=ran.error or ran.output)
    return ran.output


def exclude_each_other(one: str, other: str) -> bool:
    """Return whether at most one of two branches of a script runs, judging by the conditions of their launches."""
    mine, theirs = one.split("; "), other.split("; ")
    for part in mine:
        opposite = part.removeprefix("not ") if part.startswith("not if ") else f"not {part}"
        if part.startswith(("if ", "not if ")) and opposite in theirs:
            return True
        if part.endswith((" &&", " ||")) and part[:-2] + ("||" if part.endswith("&&") else "&&") in theirs:
            return True
        word = _CASE.fullmatch(part)
        cases = [found for each in theirs if each != part and (found := _CASE.fullmatch(each)) is not None]
        if word is not None and any(found[1] == word[1] for found in cases):
            return True
    return False


def await_reports(ended: ScriptExit, reports: Path) -> None:
    """Wait, after a script failed, for ranks whose launcher ended before they know which peers are missing."""
    ends = time.monotonic() + _REPORT_GRACE_S
    while ended.failed and time.monotonic() < ends:
        started = sum(1 for _ in reports.glob("events-*.jsonl"))
        lines = _read_reports(reports)
        if len(lines) >= started or any(not item.get("go") for item in lines):
            return
        time.sleep(_OUTPUT_EVERY_S)


def _read_reports(reports: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for path in sorted(reports.rglob("*.json")):
        try:
            lines.append(json.loads(regular_file.read(path, _MAX_REPORT_BYTES)))
        except (OSError, ValueError):
            continue
    return lines


def judge(ended: ScriptExit, reports: Path, launches: Mapping[int, str]) -> Verdict:
    """Return the verdict on launches with these branches; of mutually exclusive branches, one is enough."""
    lines = _read_reports(reports)
    how = ended.stop_reason or f"the script ended ({ended.status})"
    reasons = dict.fromkeys(reason for item in lines if not item.get("go") for reason in item.get("why", ()))
    if reasons:
        return Verdict(NO_GO, f"NO-GO: {'; '.join(list(reasons)[:3])}")
    seen = {number for number in launches if any(item.get("launch") == number for item in lines)}
    others = [
        number
        for number in launches
        if number not in seen and any(exclude_each_other(launches[number], launches[other]) for other in seen)
    ]
    silent = [number for number in launches if number not in seen and number not in others]
    summary = f"{len(lines)} ranks in {len(seen)} of {len(launches)} launches reported"
    if not silent and not ended.stop_reason:
        suffix = f"; after that {how}" if ended.failed else ""
        if others:
            numbers = ", ".join(map(str, others))
            suffix = f"; launch {numbers} is in another branch, which was not taken and so not tested{suffix}"
        return Verdict(GO, f"GO: {summary} without errors{suffix}")
    if ended.failed:
        return Verdict(NO_GO, f"NO-GO: {how}; {summary}")
    named = f"; no report from launch {', '.join(map(str, silent))}" if silent else ""
    return Verdict(INCOMPLETE, f"incomplete: {how}; {summary}{named}")


_BOM = b"\xef\xbb\xbf"


def encode_copy(root: Path, copy: ChangedCopy) -> bytes:
    """Return the bytes of the file with its parts replaced. Raises Refusal if the old file is not UTF-8."""
    try:
        raw = regular_file.read(root / copy.path, MAX_BYTES)
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(f"{copy.path} is not UTF-8 at byte {error.start}; save it as UTF-8 first") from None
    except OSError as error:
        raise Refusal(f"{copy.path} cannot be read: {error.strerror}") from None
    return (_BOM if raw.startswith(_BOM) else b"") + copy.text.encode("utf-8")


def write(root: Path, relaunch: Relaunch, trainers: Mapping[str, bytes], folder: Path) -> tuple[Path, ...]:
    """Write the script, other copies and `trainers` (by name) to `folder`; return the paths. Raises Refusal."""
    wanted: list[tuple[Path, bytes, int]] = []
    for copy in relaunch.copies:
        old = root / copy.path
        target = folder / copy.name
        if target.exists() and target.samefile(old):
            raise Refusal(f"{target} is the job's own file; choose another --to folder")
        wanted.append((target, encode_copy(root, copy), stat.S_IMODE(old.stat().st_mode) | stat.S_IWUSR))
    wanted += [(folder / name, data, 0o755) for name, data in sorted(trainers.items())]
    drafts: list[tuple[Path, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target, data, mode in wanted:
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name[:64]}.")
            drafts.append((Path(name), target))
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(name).chmod(mode)
        for draft, target in drafts:
            draft.replace(target)
    except OSError as error:
        for draft, _ in drafts:
            draft.unlink(missing_ok=True)
        raise Refusal(f"{folder} cannot be written to: {error.strerror}") from None
    return tuple(target for target, _, _ in wanted)


#: Modules that run in the job's own interpreter, and our modules that they import.
PACKAGES = ("preflight.agent", "reference_trainer")
_FIRST_LINE = b"#!/usr/bin/env python3\n"
_MAIN = "reference_trainer.__main__"
#: A fixed time, so that the same sources give the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def trainer_file(settings: Mapping[str, object]) -> bytes:
    """Return the content of the trainer file; `settings` are its defaults for variables that are not set."""
    modules, packages = sources_of(PACKAGES)
    files = {}
    for name, source in modules.items():
        path = name.replace(".", "/")
        files[f"{path}/__init__.py" if name in packages else f"{path}.py"] = source
    files["__main__.py"] = modules[_MAIN]
    files["reference_trainer/settings.json"] = json.dumps(dict(settings), sort_keys=True)
    buffer = io.BytesIO()
    buffer.write(_FIRST_LINE)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for path, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _DATE), text.encode())
    return buffer.getvalue()
