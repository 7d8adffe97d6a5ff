"""The live view of a run on a terminal: its stages and their progress, redrawn in place and removed at the end.

Notes and finished stages stay visible. No line is wider than a small terminal, so that no line wraps if the terminal
becomes narrower, and all lines can be erased.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from preflight._util.sanitize import clean
from preflight._util.terminal import encoding_of
from preflight.model.progress import Step
from preflight.reporters.live.display import Stage, Watch

#: Redraws per second: readable, and slow enough for a slow connection.
_REFRESHES_PER_S = 4
#: Largest width of a line.
_MAX_WIDTH = 78
#: From this width on titles are aligned.
_LINED_UP = 60
_TITLE_WIDTH = 26
#: Number of lines shown about phases of ranks.
_MAX_PHASES = 6
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_SPINNER = "|/-\\"


class _Console(Console):
    """A console that lets a run continue if the terminal is gone; Rich's own console would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class LiveTable:
    """Shows the stages of one run. Steps may come from any thread."""

    def __init__(self, stream: TextIO, *, color: bool, clock: Callable[[], float], threads: bool = True) -> None:
        self._console = _Console(
            file=stream,
            force_terminal=True,
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        self._plain = encoding_of(stream) != "utf-8"
        self._clock = clock
        self._threads = threads
        self._lock = threading.RLock()
        self._watch = Watch()
        self._live: Live | None = None
        self._drawn = 0.0

    def __call__(self, step: Step) -> None:
        try:
            with self._lock:
                over = self._watch.update(step, self._clock())
                kept = [self._finished(stage) for stage in over]
                if step.note:
                    kept.append(Text(f"  {clean(step.note)}", style="yellow"))
            live = self._started()
            for line in kept:
                live.console.print(line, soft_wrap=True)
            if kept:
                # A stage that was just reported as finished must not be shown as running.
                live.refresh()
            elif not self._threads and self._clock() - self._drawn >= 1 / _REFRESHES_PER_S:
                self._drawn = self._clock()
                live.refresh()
        except (OSError, ValueError):
            # The terminal is gone; the run continues for the report.
            pass

    def close(self) -> None:
        try:
            if self._live is not None:
                self._live.stop()
        except (OSError, ValueError, IndexError):
            # The terminal is gone, perhaps before anything was started.
            pass

    def _started(self) -> Live:
        if self._live is None:
            self._live = Live(
                get_renderable=self.view,
                console=self._console,
                refresh_per_second=_REFRESHES_PER_S,
                auto_refresh=self._threads,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start(refresh=True)
        return self._live

    def view(self) -> Text:
        """Build the view: the running stage, what it waits for, and the stages to come."""
        with self._lock:
            now, width = self._clock(), max(20, min(self._console.width - 1, _MAX_WIDTH))
            lines: list[Text] = []
            going_on = self._watch.now
            for stage in self._watch.stages.values():
                if stage.is_over:
                    continue
                if stage is going_on:
                    lines.extend(self._running_row(stage, now))
                elif going_on is None and not lines:
                    # Between two stages the requests of the next one are planned.
                    lines.append(Text.assemble((f"{self._sign(now)} ", "bold cyan"), f"{stage.title}  getting ready"))
                else:
                    lines.append(Text(f"{'.' if self._plain else '·'} {stage.title}", style="dim"))
        for line in lines:
            line.truncate(width, overflow="crop" if self._plain else "ellipsis")
        return Text("\n").join(lines)

    def _running_row(self, stage: Stage, now: float) -> list[Text]:
        lines = [Text.assemble((f"{self._sign(now)} ", "bold cyan"), self._row(stage, now))]
        phases = stage.by_phase()
        lines.extend(Text(f"    {line}", style="cyan") for line in phases[:_MAX_PHASES])
        if len(phases) > _MAX_PHASES:
            lines.append(Text(f"    and {len(phases) - _MAX_PHASES} more groups of ranks", style="cyan"))
        awaited = stage.awaited()
        if awaited and not phases:
            lines.append(Text(f"    waiting for {awaited}", style="cyan"))
        return lines

    def _sign(self, now: float) -> str:
        signs = _PLAIN_SPINNER if self._plain else _SPINNER
        return signs[int(now * _REFRESHES_PER_S) % len(signs)]

    def _finished(self, stage: Stage) -> Text:
        if stage.skipped:
            return Text.assemble(("- ", "yellow"), f"{stage.title}: {clean(stage.end_reason())}")
        return Text.assemble(("+ " if self._plain else "✓ ", "green"), self._row(stage, self._clock()))

    def _row(self, stage: Stage, now: float) -> str:
        title = f"{stage.title:<{_TITLE_WIDTH}}" if self._console.width >= _LINED_UP else stage.title
        return "  ".join(filter(None, (title, stage.progress_text(), stage.time(now))))
