"""The reference trainer as a program of its own, started by a job's own launcher in the place of the user's script.

There is no agent and no head: rank and meeting place come from the launcher's variables, each rank says in one line
what came of it, rank 0 sums up for all, and the exit code is 0 only where every rank is through and all is right.
"""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, TextIO

from preflight.node.wire import ProbeUnavailable
from reference_trainer import collective, launched, phases, training
from reference_trainer.watch import Watch

#: What is written beside the program in its file, under this name; a variable goes above it.
SETTINGS = "settings.json"
VARIABLES = {
    "report_dir": "PREFLIGHT_REPORT_DIR",
    "timeout_s": "PREFLIGHT_TIMEOUT_S",
    "deadline_s": "PREFLIGHT_DEADLINE_S",
    "steps": "PREFLIGHT_STEPS",
    "backend": "PREFLIGHT_BACKEND",
    "events": "PREFLIGHT_EVENTS",
    "drill": "PREFLIGHT_DRILL",
}
DEFAULTS: Dict[str, Any] = {"timeout_s": 60.0, "deadline_s": 600.0, "steps": 10, "backend": "auto"}
_NUMBERS = ("timeout_s", "deadline_s", "steps")


def settings(environment: Mapping[str, str]) -> Dict[str, Any]:
    """How to run: by the variables, else by what was written into the file, else by default.

    Raises ValueError for a number that is none.
    """
    found = dict(DEFAULTS)
    try:
        found.update(json.loads(pkgutil.get_data("reference_trainer", SETTINGS) or b"{}"))
    except OSError:
        pass
    for name, variable in VARIABLES.items():
        if environment.get(variable):
            found[name] = environment[variable]
    if isinstance(found.get("drill"), str):
        found["drill"] = json.loads(found["drill"])
    for name in _NUMBERS:
        try:
            found[name] = int(found[name]) if name == "steps" else float(found[name])
        except ValueError:
            raise ValueError("%s=%r is no number" % (VARIABLES[name], found[name])) from None
    return found


def main(arguments: Optional[List[str]] = None) -> int:
    """Take part as the rank that the launcher made of this process. The arguments are another program's: ignored."""
    # Every wait is announced and bounded here; torch's own lines about each slice of one say nothing more.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        how = settings(os.environ)
        place = launched.place(os.environ)
    except (launched.NotLaunched, ValueError) as problem:
        _say("NO-GO: %s: %s" % (socket.gethostname(), problem))
        return 1
    return Run(place, how).run()


class Run:
    """One rank's run: the trainer's own phases under a watch, and the report of what came of them."""

    def __init__(self, place: launched.Place, how: Dict[str, Any]) -> None:
        self._place, self._how = place, how
        self._began = time.monotonic()
        self._events = _event_stream(how, place)
        self._report: Optional[collective.RankReport] = None
        timeout_s = float(how["timeout_s"])
        self._watch = Watch(
            place,
            deadline_s=float(how["deadline_s"]),
            stall_s=timeout_s / 2,
            say=_say,
            report=lambda go, why: self._write(go, why, []),
        )
        self._lock = threading.Lock()

    def run(self) -> int:
        """The exit code: 0 where all ranks are through and everything is right. Ends the process itself otherwise."""
        place, how, watch = self._place, self._how, self._watch
        expected = int(how.get("expected_ranks") or 0)
        if place.world_size < expected:
            said = (expected, place.launcher, place.world_size)
            short = "the job's files start %d ranks, and %s says that there are %d" % said
            me = "rank %d on %s" % (place.rank, socket.gethostname())
            _say("%s: NO-GO: %s" % (me, short))
            self._write(False, ["%s: %s" % (me, short)], [])
            return 1
        watch.start()
        params = {
            **place.params(),
            "steps": int(how["steps"]),
            "timeout_s": float(how["timeout_s"]),
            "backend": str(how["backend"]),
            "on_store": watch.on_store,
            "drill": how.get("drill", {}),
        }
        try:
            report = self._report = collective.rank(params, self._emit)
        except ProbeUnavailable as problem:
            consequence = problem.kind == "blocked"
            watch.failed(problem.reason, consequence=consequence)
            return 1
        except Exception as error:
            text = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0])
            watch.failed(text, consequence=False)
            return 1
        faults = faults_of(report)
        took = time.monotonic() - self._began
        go, why, everyone = watch.finished({"host": report.host, "faults": faults, "took_s": took})
        self._write(go, why, everyone)
        me = "rank %d on %s" % (place.rank, report.host)
        what = "%s on %s, %d exact operations, %d steps" % (
            report.backend,
            report.device,
            report.operations,
            report.steps,
        )
        _say("%s: %s (%s, %.1f s)" % (me, "; ".join(faults) if faults else "all right", what, took))
        if place.rank == 0:
            self._sum_up(go, why, everyone, report, took)
        return 0 if go else 1

    def _sum_up(
        self, go: bool, why: List[str], everyone: List[Dict[str, Any]], report: collective.RankReport, took: float
    ) -> None:
        hosts = len({each["host"] for each in everyone})
        ranks = "%d rank%s on %d host%s" % (
            report.world_size,
            "s" if report.world_size != 1 else "",
            hosts,
            "s" if hosts != 1 else "",
        )
        if go:
            said = "%s met by %s, summed exactly over %s and trained %d steps alike" % (
                ranks,
                self._place.launcher,
                report.backend,
                report.steps,
            )
            _say("GO: %s (%s, %.1f s)" % (said, report.framework, took))
        else:
            _say("NO-GO: %s: %s" % (ranks, "; ".join(why[:5])))

    def _emit(self, event: Dict[str, Any]) -> None:
        self._watch.hear(event)
        self._watch.moved(event)
        if self._events is not None and event.get("event") != phases.BEAT:
            line = {"rank": self._place.rank, "at_s": round(time.monotonic() - self._began, 3), **event}
            self._events.write(json.dumps(line, sort_keys=True, default=str) + "\n")
            self._events.flush()

    def _write(self, go: bool, why: List[str], everyone: List[Dict[str, Any]]) -> None:
        """The rank's report as a file, where one is asked for. A folder that cannot be written to is no fault."""
        folder = self._how.get("report_dir")
        if not folder:
            return
        report = asdict(self._report) if self._report is not None else None
        document = {"rank": self._place.rank, "host": socket.gethostname(), "go": go, "why": why, "report": report}
        document["place"] = asdict(self._place)
        document["launch"] = self._how.get("launch", 1)
        document["hosts"] = sorted({str(each["host"]) for each in everyone})
        below = Path(str(folder)) / (self._watch.token() or "unmet")
        name = (
            "rank-%05d" % self._place.rank
            if below.name != "unmet"
            else "rank-%05d-%d"
            % (
                self._place.rank,
                os.getpid(),
            )
        )
        try:
            below.mkdir(parents=True, exist_ok=True)
            _write_whole(below / (name + ".json"), document)
        except OSError as error:
            _say("rank %d: no report in %s: %s" % (self._place.rank, below, error.strerror))


def faults_of(report: collective.RankReport) -> List[str]:
    """What is wrong with one rank's results, in sentences; the same limits as the head's checks have."""
    found = [
        "%s is wrong in %d of %d elements: %s" % (each.operation, each.wrong, each.elements, each.explanation)
        for each in report.mismatches[:5]
    ]
    if len(set(report.digests)) > 1:
        odd = [rank for rank, digest in enumerate(report.digests) if digest != report.digests[report.rank]]
        found.append("ranks %s hold other weights than this one" % odd)
    if report.unmoved:
        found.append("%s did not change in %d steps" % (", ".join(report.unmoved), report.steps))
    losses = report.losses
    if len(losses) >= training.MOST_COMPARED_STEPS and not losses[-1] < losses[0] * training.LOSS_FALLS_TO:
        found.append("the loss went from %.4g to %.4g in %d steps" % (losses[0], losses[-1], report.steps))
    apart = report.difference_to_one_process
    if apart is not None and not apart <= training.TOLERANCE:
        found.append("the weights differ by %.3g from those of one process" % apart)
    if report.teardown:
        found.append(report.teardown)
    return found


def _event_stream(how: Dict[str, Any], place: launched.Place) -> Optional[TextIO]:
    """Where the rank's events go as JSON lines: standard error, a file beside the report, or nowhere."""
    if how.get("events") == "stderr":
        return sys.stderr
    if not how.get("report_dir"):
        return None
    try:
        folder = Path(str(how["report_dir"]))
        folder.mkdir(parents=True, exist_ok=True)
        return open(str(folder / ("events-%05d-%d.jsonl" % (place.rank, os.getpid()))), "w", encoding="utf-8")
    except OSError:
        return None


def _write_whole(path: Path, document: Dict[str, Any]) -> None:
    draft = path.with_name(".%s.%d" % (path.name, os.getpid()))
    draft.write_text(json.dumps(document, sort_keys=True, indent=1), encoding="utf-8")
    draft.replace(path)


def _say(text: str) -> None:
    """One line for people, written at once, so that the lines of ranks do not mix."""
    sys.stdout.flush()
    os.write(1, ("preflight smoke: %s\n" % " ".join(text.split())).encode("utf-8", "replace"))
