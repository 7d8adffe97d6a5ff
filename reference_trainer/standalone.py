"""The reference trainer as a separate program, started by a job's own launcher instead of the user's script.

There is no agent and no head: rank and rendezvous come from the launcher's variables, each rank prints its result in
one line, rank 0 summarises all, and the exit code is 0 only if every rank has finished and all results are correct.
"""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Mapping, TextIO

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.collective import rank as collective
from reference_trainer.collective import steps
from reference_trainer.collective.rank import RankReport
from reference_trainer.common import framework, launcher_environment
from reference_trainer.common.watchdog import RankWatchdog

#: Settings stored beside the program in its file, under this name; a variable overrides them.
SETTINGS = "settings.json"
VARIABLES = {
    "report_dir": "PREFLIGHT_REPORT_DIR",
    "timeout_s": "PREFLIGHT_TIMEOUT_S",
    "deadline_s": "PREFLIGHT_DEADLINE_S",
    "steps": "PREFLIGHT_STEPS",
    "backend": "PREFLIGHT_BACKEND",
    "events": "PREFLIGHT_EVENTS",
    "injected_fault": "PREFLIGHT_INJECTED_FAULT",
}
DEFAULTS: dict[str, Any] = {"timeout_s": 60.0, "deadline_s": 600.0, "steps": 10, "backend": "auto"}
_NUMBERS = ("timeout_s", "deadline_s", "steps")


def settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings: from the variables, else the file, else the defaults. Raises ValueError."""
    values = dict(DEFAULTS)
    try:
        values.update(json.loads(pkgutil.get_data("reference_trainer", SETTINGS) or b"{}"))
    except OSError:
        pass
    for name, variable in VARIABLES.items():
        if environment.get(variable):
            values[name] = environment[variable]
    if isinstance(values.get("injected_fault"), str):
        values["injected_fault"] = json.loads(values["injected_fault"])
    for name in _NUMBERS:
        try:
            values[name] = int(values[name]) if name == "steps" else float(values[name])
        except ValueError:
            raise ValueError(f"{VARIABLES[name]}={values[name]!r} is not a number") from None
    return values


def main(arguments: list[str] | None = None) -> int:
    """Take part as the rank that the launcher assigned; the replaced program's arguments are ignored."""
    # Every wait is announced and bounded here; torch's own lines about each slice of one add nothing.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        options = settings(os.environ)
        if options.get("spawn") and not os.environ.get(launcher_environment.MARK):
            return launcher_environment.run(options["spawn"], sys.argv, float(options["deadline_s"]))
        place = launcher_environment.launched_rank(os.environ)
    except (launcher_environment.NotLaunched, launcher_environment.NoRanks, ValueError) as problem:
        _print(f"NO-GO: {socket.gethostname()}: {problem}")
        return 1
    return Run(place, options).run()


class Run:
    """One rank's run: the trainer's own phases under a watchdog, and the report of their results."""

    def __init__(self, place: launcher_environment.LaunchedRank, options: dict[str, Any]) -> None:
        self._place, self._options = place, options
        self._began = time.monotonic()
        self._events = _event_stream(options, place)
        self._report: RankReport | None = None
        timeout_s = float(options["timeout_s"])
        self._watch = RankWatchdog(
            place,
            deadline_s=float(options["deadline_s"]),
            stall_s=timeout_s / 2,
            print_line=_print,
            report=lambda go, why: self._write(go, why, []),
        )
        self._lock = threading.Lock()

    def run(self) -> int:
        """Return 0 if all ranks finished with correct results, else another code; or end the process itself."""
        place, options, watch = self._place, self._options, self._watch
        expected = int(options.get("expected_ranks") or 0)
        if place.world_size < expected:
            group_key = (expected, place.launcher, place.world_size)
            short = "the job's files start %d ranks, but %s reports a world size of %d" % group_key
            me = f"rank {place.rank} on {socket.gethostname()}"
            _print(f"{me}: NO-GO: {short}")
            self._write(False, [f"{me}: {short}"], [])
            return 1
        watch.start()
        params = {
            **place.params(),
            "steps": int(options["steps"]),
            "timeout_s": float(options["timeout_s"]),
            "backend": str(options["backend"]),
            "on_store": watch.on_store,
            "on_lines": watch.on_lines,
            "injected_fault": options.get("injected_fault", {}),
            **_framework(place.launcher),
        }
        try:
            report = self._report = collective.rank(params, self._emit)
        except ProbeUnavailable as problem:
            consequence = problem.kind == "blocked"
            watch.failed(problem.reason, consequence=consequence)
            return 1
        except Exception as error:
            watch.failed(framework.describe(error), consequence=False)
            return 1
        faults = faults_of(report)
        took = time.monotonic() - self._began
        go, why, everyone = watch.finished({"host": report.host, "faults": faults, "took_s": took})
        self._write(go, why, everyone)
        me = f"rank {place.rank} on {report.host}"
        what = f"{report.backend} on {report.device}, {report.operations} exact operations, {report.steps} steps"
        _print("{}: {} ({}, {:.1f} s)".format(me, "; ".join(faults) if faults else "all right", what, took))
        if place.rank == 0:
            self._print_summary(go, why, everyone, report, took)
        return 0 if go else 1

    def _print_summary(
        self, go: bool, reasons: list[str], everyone: list[dict[str, Any]], report: RankReport, took: float
    ) -> None:
        hosts = len({each["host"] for each in everyone})
        ranks = "%d rank%s" % (report.world_size, "s" if report.world_size != 1 else "")
        if len(everyone) == report.world_size:
            ranks += " on %d host%s" % (hosts, "s" if hosts != 1 else "")
        if go:
            note = f"{took:.1f} s{'; ' + report.backend_note if report.backend_note else ''}"
            done = f"summed exactly over {report.backend} and trained {report.steps} identical steps"
            _print(f"GO: {ranks} connected through {self._place.launcher}, {done} ({report.framework}, {note})")
        else:
            _print("NO-GO: {}: {}".format(ranks, "; ".join(reasons[:5])))

    def _emit(self, event: dict[str, Any]) -> None:
        self._watch.on_event(event)
        self._watch.on_heartbeat(event)
        if self._events is not None and event.get("event") != rank_events.BEAT:
            line = {"rank": self._place.rank, "at_s": round(time.monotonic() - self._began, 3), **event}
            self._events.write(json.dumps(line, sort_keys=True, default=str) + "\n")
            self._events.flush()

    def _write(self, go: bool, reasons: list[str], everyone: list[dict[str, Any]]) -> None:
        """Write the rank's report to a file, if one was requested. A folder that is not writable is not an error."""
        folder = self._options.get("report_dir")
        if not folder:
            return
        report = asdict(self._report) if self._report is not None else None
        document = {"rank": self._place.rank, "host": socket.gethostname(), "go": go, "why": reasons, "report": report}
        document["place"] = asdict(self._place)
        document["launch"] = self._options.get("launch", 1)
        document["hosts"] = sorted({str(each["host"]) for each in everyone})
        below = Path(str(folder)) / (self._watch.token() or "unmet")
        name = f"rank-{self._place.rank:05}" if below.name != "unmet" else f"rank-{self._place.rank:05}-{os.getpid()}"
        try:
            below.mkdir(parents=True, exist_ok=True)
            _write_atomically(below / (name + ".json"), document)
        except OSError as error:
            _print(f"rank {self._place.rank}: the report cannot be written to {below}: {error.strerror}")


def faults_of(report: RankReport) -> list[str]:
    """Return the faults in one rank's results, as sentences, by the same limits as the checks of the head."""
    faults = [
        "%s is wrong in %d of %d elements: %s" % (each.operation, each.wrong, each.elements, each.explanation)
        for each in report.mismatches[:5]
    ]
    if len(set(report.digests)) > 1:
        odd = [rank for rank, digest in enumerate(report.digests) if digest != report.digests[report.rank]]
        faults.append(f"ranks {odd} have different weights from this one")
    if report.unmoved:
        faults.append(f"{', '.join(report.unmoved)} did not change in {report.steps} steps")
    losses = report.losses
    if len(losses) >= steps.MAX_COMPARED_STEPS and not losses[-1] < losses[0] * steps.MAX_LOSS_RATIO:
        faults.append("the loss went from %.4g to %.4g in %d steps" % (losses[0], losses[-1], report.steps))
    difference = report.difference_to_one_process
    if difference is not None and not difference <= steps.TOLERANCE:
        faults.append(f"the weights differ by {difference:.3g} from those of one process")
    if report.teardown:
        faults.append(report.teardown)
    return faults


def _framework(launcher: str) -> dict[str, str]:
    """Return the framework: paddle under Paddle's launcher if the interpreter has it, else torch."""
    import importlib.util

    return {"framework": "paddle"} if launcher == "paddle" and importlib.util.find_spec("paddle") is not None else {}


def _event_stream(options: dict[str, Any], place: launcher_environment.LaunchedRank) -> TextIO | None:
    """Return the destination of events as JSON lines: standard error, a file beside the report, or nowhere."""
    if options.get("events") == "stderr":
        return sys.stderr
    if not options.get("report_dir"):
        return None
    try:
        folder = Path(str(options["report_dir"]))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (f"events-{place.rank:05}-{os.getpid()}.jsonl")
        # A new file: an existing one, or a link, is not written to.
        return open(str(path), "x", encoding="utf-8")
    except OSError:
        return None


def _write_atomically(path: Path, document: dict[str, Any]) -> None:
    descriptor, draft = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(document, stream, sort_keys=True, indent=1)
    os.chmod(draft, 0o644)
    os.replace(draft, str(path))


def _print(text: str) -> None:
    """Print a line for people in a single write, not mixed with other ranks'; a gone launcher is ignored."""
    try:
        sys.stdout.flush()
        os.write(1, ("preflight smoke: {}\n".format(" ".join(text.split()))).encode("utf-8", "replace"))
    except OSError:
        pass
