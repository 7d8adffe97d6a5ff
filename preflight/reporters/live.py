"""What a person sees while a check runs: on a terminal one line that changes, elsewhere a calm line a stage."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from preflight.progress import Progress, Step
from preflight.reporters.clean import clean, fold_nodes

_TITLES = {
    "gather": "finding the nodes",
    "open": "reaching the nodes",
    "node": "looking at the nodes",
    "link": "looking between the nodes",
    "smoke": "training a few steps",
}
#: A terminal is not redrawn more often than this.
_REDRAW_S = 0.1
#: A log hears of the smoke run's progress at most this often.
_LOGGED_S = 5.0


@contextmanager
def live_progress(stream: TextIO) -> Iterator[Progress]:
    """A watcher that writes to `stream` until the block ends; notes stay, the moving line does not."""
    # A dumb terminal cannot redraw a line; it would show nothing until the end.
    watcher = _Line(stream) if stream.isatty() and os.environ.get("TERM") != "dumb" else _Log(stream)
    try:
        yield watcher
    finally:
        watcher.close()


class _Log:
    """For a file or a pipe: one line when a stage begins, every note, and now and then how far the ranks are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._phases: dict[str, str] = {}
        self._logged = 0.0

    def __call__(self, step: Step) -> None:
        if step.stage != self._stage:
            self._stage = step.stage
            self._write(_TITLES.get(step.stage, step.stage))
            self._logged = time.monotonic()
        if step.stage == "smoke":
            _note_phase(self._phases, step.note)
            if self._phases and time.monotonic() - self._logged >= _LOGGED_S:
                self._logged = time.monotonic()
                self._write(f"  {_by_phase(self._phases)}")
        elif step.note:
            self._write(f"  {clean(step.note)}")

    def close(self) -> None:
        """Nothing is left to tidy."""

    def _write(self, line: str) -> None:
        try:
            self._stream.write(f"preflight: {line}\n")
            self._stream.flush()
        except OSError:
            # Whoever watched is gone; the run goes on for whoever reads the report.
            pass


class _Line:
    """For a terminal: the stage, how far, and who is waited for, redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.status import Status

        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._status = Status("", console=self._console, spinner="dots", refresh_per_second=8)
        self._status.start()
        self._began: dict[str, float] = {}
        self._phases: dict[str, str] = {}
        self._drawn = 0.0

    def __call__(self, step: Step) -> None:
        from rich.text import Text

        now = time.monotonic()
        self._began.setdefault(step.stage, now)
        if step.stage == "smoke":
            _note_phase(self._phases, step.note)
        elif step.note:
            self._console.print(Text(f"  {clean(step.note)}", style="yellow"))
        if now - self._drawn >= _REDRAW_S or step.done == step.total:
            self._drawn = now
            self._status.update(Text(self._sentence(step, now - self._began[step.stage])))

    def close(self) -> None:
        """Take the moving line away."""
        self._status.stop()

    def _sentence(self, step: Step, elapsed_s: float) -> str:
        said = f"{_TITLES.get(step.stage, step.stage)}"
        if step.total and step.stage != "smoke":
            said += f" {step.done}/{step.total}"
        said += f" · {elapsed_s:.0f} s"
        if step.deadline_s is not None and step.deadline_s > 0:
            said += f" of at most {elapsed_s + step.deadline_s:.0f}"
        if step.stage == "smoke" and self._phases:
            said += f" · {_by_phase(self._phases)}"
        elif step.waiting_for:
            said += f" · waiting for {fold_nodes(step.waiting_for[:16])}"
        return said


def _note_phase(phases: dict[str, str], note: str) -> None:
    """Remember the phase that `node: phase` tells of; any other note is none."""
    node, colon, phase = note.partition(": ")
    if colon:
        phases[node] = phase


def _by_phase(phases: dict[str, str]) -> str:
    """`node[1-3] exact, node4 group`: who is where."""
    nodes_in: dict[str, list[str]] = {}
    for node, phase in phases.items():
        nodes_in.setdefault(phase, []).append(node)
    return ", ".join(f"{fold_nodes(tuple(nodes))} {clean(phase)}" for phase, nodes in nodes_in.items())
