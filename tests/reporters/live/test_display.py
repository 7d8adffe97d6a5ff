"""The progress display: plain lines in a file, and on a terminal a small table that leaves only notes and results."""

from __future__ import annotations

import io
import os
import re
import threading

import pytest

from preflight.model.progress import Step
from preflight.reporters.live.display import LOG_EVERY_S, Stage, Watch, live_progress
from preflight.reporters.live.table import LiveTable

STEPS = (
    Step("open", 1, 2, ("b",), 14.0, planned=("open", "node", "smoke"), nodes=2),
    Step("open", 2, 2, (), 13.0, "b: no route to host\x1b[2J"),
    Step("open", ended=True),
    Step("node", 0, 4, ("a",), 10.0),
    Step("node", 4, 4),
    Step("node", ended=True),
    Step("smoke", deadline_s=60.0),
    Step("smoke", party="rank 0", node="a", phase="imported"),
    Step("smoke", party="rank 1", node="b", phase="started\x1b[2J"),
)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class ClosedStream(io.StringIO):
    """A stream whose reader has closed it."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        raise BrokenPipeError


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def terminal_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns that can redraw."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.delenv("NO_COLOR", raising=False)


def watch(stream: io.StringIO, *, steps: tuple[Step, ...] = STEPS, clock: Clock | None = None, **how: object) -> str:
    """The output while the steps are processed, half a second each."""
    ticking = clock or Clock()
    with live_progress(stream, clock=ticking, **how) as progress:  # type: ignore[arg-type]
        for step in steps:
            progress(step)
            ticking.now += 0.5
    return stream.getvalue()


def plain(written: str) -> str:
    """What was written, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)


# --- no terminal ---


def test_a_file_gets_one_line_per_stage_and_every_note() -> None:
    assert watch(io.StringIO()).splitlines() == [
        "preflight: reaching the nodes (at most 14 s)",
        "preflight:   b: no route to host\\x1b[2J",
        "preflight: checking the nodes (at most 10 s)",
        "preflight: training a few steps (at most 60 s)",
    ]


def test_a_file_gets_the_first_notes_of_a_thousand_silent_nodes() -> None:
    stream = io.StringIO()
    with live_progress(stream, clock=Clock()) as progress:
        for number in range(1000):
            progress(Step("open", number, 1000, note=f"n{number}: no route to host", nodes=1000))
    lines = stream.getvalue().splitlines()
    assert len(lines) < 15 and "preflight:   n9: no route to host" in lines
    assert lines[-1] == "preflight:   there are more notes; the report contains all of them"


def test_a_log_gets_periodic_progress() -> None:
    clock, stream = Clock(), io.StringIO()
    with live_progress(stream, clock=clock) as progress:
        progress(Step("node", 0, 9, ("a", "b"), 30.0, nodes=3))
        clock.now += LOG_EVERY_S
        progress(Step("node", 5, 9, ("b",), 25.0, nodes=3))
        progress(Step("node", 6, 9, ("b",), 25.0, nodes=3))
    assert stream.getvalue().splitlines()[1:] == ["preflight:   2 of 3 nodes, 5 s of at most 30; waiting for b"]


def test_a_log_gets_the_phases_of_ranks() -> None:
    clock, stream = Clock(), io.StringIO()
    with live_progress(stream, clock=clock) as progress:
        progress(Step("smoke", party="rank 0", node="a", phase="imported"))
        clock.now += LOG_EVERY_S
        progress(Step("smoke", party="rank 1", node="b"))
    assert stream.getvalue().splitlines()[-2:] == [
        "preflight:   rank 1 on b: starting",
        "preflight:   rank 0 on a: joining the other ranks at the master's store",
    ]


def test_a_log_names_skipped_stages() -> None:
    said = watch(io.StringIO(), steps=(Step("smoke", ended=True, skipped="WLD001 would stop it"),))
    assert said == "preflight: training a few steps: skipped, WLD001 would stop it\n"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert watch(Terminal()).startswith("preflight: reaching the nodes (at most 14 s)\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_closed_stream_does_not_end_the_run(terminal: bool) -> None:
    assert watch(ClosedStream(terminal=terminal)) == ""


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_prints_nothing(stream: io.StringIO) -> None:
    assert watch(stream, quiet=True) == ""


# --- patience ---


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_quick_run_prints_nothing(kind: type[io.StringIO]) -> None:
    assert watch(kind(), steps=(Step("files", 1, 9), Step("judge", 0, 60)), after_s=1.1, threads=False) == ""


def test_a_longer_run_starts_with_the_current_state() -> None:
    steps = tuple(Step("files", number, 9) for number in range(1, 6))
    assert watch(io.StringIO(), steps=steps, after_s=1.1, threads=False) == "preflight: reading files\n"
    shown = plain(watch(Terminal(), steps=steps, after_s=1.1, threads=False))
    assert "reading files" in shown
    assert "3 of 9" in shown
    assert "1 of 9" not in shown


def test_a_thread_shows_progress_without_further_steps() -> None:
    written = threading.Event()

    class Log(io.StringIO):
        def write(self, text: str) -> int:
            written.set()
            return super().write(text)

    stream = Log()
    with live_progress(stream, after_s=0.01) as progress:
        progress(Step("recording"))
        assert written.wait(10)
    assert stream.getvalue() == "preflight: reading the recording\n"


def test_without_threads_no_thread_is_started() -> None:
    before = set(threading.enumerate())
    with live_progress(Terminal(), after_s=0.001, threads=False, clock=Clock()) as progress:
        progress(Step("files", 1, 9))
        assert set(threading.enumerate()) <= before


# --- a terminal ---


def test_a_terminal_keeps_notes_and_finished_stages_and_nothing_else() -> None:
    written = watch(Terminal())
    assert "\x1b[2J" not in written
    assert "b: no route to host\\x1b[2J" in written
    assert "✓ reaching the nodes" in plain(written)
    # The cursor is restored, and the redrawn lines are erased.
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    assert written.endswith("\x1b[2K")


def view(*steps: Step, width: int = 80, monkeypatch: pytest.MonkeyPatch | None = None) -> list[str]:
    """The redrawn part after these steps."""
    if monkeypatch is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    clock = Clock()
    table = LiveTable(Terminal(), color=False, clock=clock, threads=False)
    for step in steps:
        table(step)
        clock.now += 1.0
    lines = table.view().plain.split("\n")
    table.close()
    return lines


def test_the_table_shows_the_running_and_the_coming_stages() -> None:
    lines = view(
        Step("open", planned=("open", "node", "link", "smoke")),
        Step("open", ended=True),
        Step("node", 3, 80, ("node3", "node4"), 10.0, nodes=4),
    )
    assert lines[0][1:] == " checking the nodes          2 of 4 nodes  1 s of at most 10"
    assert lines[1:] == ["    waiting for node[3-4]", "· checking the links", "· training a few steps"]


def test_between_stages_the_next_one_is_being_prepared() -> None:
    lines = view(Step("node", planned=("node", "link", "smoke")), Step("node", ended=True))
    assert [line[1:] for line in lines] == [" checking the links  getting ready", " training a few steps"]


def test_the_smoke_run_shows_phases_with_their_ranks() -> None:
    steps = [Step("smoke", deadline_s=60.0)]
    steps += [Step("smoke", party=f"rank {n}", node=f"node{n}", phase="imported" if n else "started") for n in range(4)]
    assert view(*steps)[1:] == [
        "    rank 0 on node0: importing torch",
        "    ranks 1-3 on node[1-3]: joining the other ranks at the master's store",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_nor_than_a_small_one(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    names = tuple(f"a-rather-long-name-of-a-node-{chr(97 + n)}" for n in range(12))
    lines = view(Step("open", 0, 12, names, 8.0, nodes=12), width=width, monkeypatch=monkeypatch)
    assert max(map(len, lines)) <= min(width - 1, 78)


def test_colours_follow_the_request() -> None:
    assert "\x1b[1;32m" in watch(Terminal(), color=True) or "\x1b[32m" in watch(Terminal(), color=True)
    assert not re.search(r"\x1b\[[0-9;]*m", watch(Terminal(), color=False))


def test_characters_that_a_terminal_lacks_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Latin(Terminal):
        encoding = "latin-1"

    assert watch(Latin(), color=False).isascii()


def test_the_live_view_leaves_nothing_on_a_real_terminal() -> None:
    ours, theirs = os.openpty()
    try:
        with os.fdopen(theirs, "w") as stream, live_progress(stream, color=False, clock=Clock()) as progress:
            for step in STEPS:
                progress(step)
            stream.flush()
        written = b""
        while b"training" not in written or not written.endswith(b"\x1b[2K"):
            written += os.read(ours, 65536)
    finally:
        os.close(ours)
    rows = screen(written.decode())
    assert rows == [
        "  b: no route to host\\x1b[2J",
        "✓ reaching the nodes          2 of 2 nodes  0.0 s",
        "✓ checking the nodes          0.0 s",
    ]


def screen(written: str) -> list[str]:
    """The rows of a screen after this output, for the few cursor movements of the view."""
    rows: list[str] = [""]
    row = column = 0
    for match in re.finditer(r"\x1b\[(\?25[hl]|\d*[AKm]|[0-9;]*m)|\r|\n|[^\x1b\r\n]", written):
        token = match.group()
        if token == "\n":
            row += 1
            rows.extend([""] * (row + 1 - len(rows)))
        elif token == "\r":
            column = 0
        elif token.endswith("A") and token.startswith("\x1b"):
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[2K":
            rows[row] = ""
        elif not token.startswith("\x1b"):
            rows[row] = rows[row][:column].ljust(column) + token + rows[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in rows if line.strip()]


# The state of a run from its steps: stages with their times, awaited nodes, and phases of ranks.


def watch_after(*steps: tuple[float, Step]) -> tuple[Watch, list[Stage]]:
    """The watch after these steps, and the stages that they ended."""
    watch, over = Watch(), []
    for at_s, step in steps:
        over.extend(watch.update(step, at_s))
    return watch, over


def test_planned_stages_are_listed() -> None:
    watch, over = watch_after((0, Step("open", planned=("open", "node", "smoke"))))
    assert list(watch.stages) == ["open", "node", "smoke"]
    assert watch.now is watch.stages["open"]
    assert not over


def test_a_stage_counts_answers_and_names_awaited_nodes() -> None:
    watch, _ = watch_after((10.0, Step("node", 30, 80, ("node2", "node3"), 8.0, nodes=4)))
    stage = watch.stages["node"]
    assert (stage.progress_text(), stage.awaited(), stage.time(12.0)) == (
        "2 of 4 nodes",
        "node[2-3]",
        "2 s of at most 8",
    )


def test_many_awaited_nodes_are_counted() -> None:
    watch, _ = watch_after((0.0, Step("open", 0, 40, tuple(f"n{n:02}" for n in range(40)), nodes=40)))
    assert watch.stages["open"].awaited() == "n[00-15] and 24 more"


def test_a_stage_that_ends_keeps_its_time() -> None:
    watch, over = watch_after((1.0, Step("node", 0, 4)), (3.5, Step("node", ended=True)), (4.0, Step("node", 1, 4)))
    assert over == [watch.stages["node"]]
    assert watch.stages["node"].time(99.0) == "2.5 s"
    assert watch.now is None


def test_the_next_stage_ends_the_one_before() -> None:
    _, over = watch_after((0.0, Step("files", 1, 9)), (2.0, Step("judge", 0, 60)))
    assert [(stage.name, stage.time(9)) for stage in over] == [("files", "2.0 s")]


def test_a_stage_too_short_to_see_is_not_reported() -> None:
    _, over = watch_after((0.0, Step("gather")), (0.05, Step("open", 0, 2)))
    assert over == []


def test_a_skipped_stage_has_its_reason() -> None:
    planned = Step("open", planned=("open", "smoke"))
    watch, over = watch_after((0.0, planned), (0.05, Step("smoke", ended=True, skipped="WLD001")))
    assert [stage.end_reason() for stage in over] == ["skipped, WLD001"]
    assert watch.now is None


def test_ranks_are_grouped_by_phase_slowest_first() -> None:
    steps = [Step("smoke", party=f"rank {n}", node=f"node{n // 2 + 1}") for n in range(6)]
    steps += [Step("smoke", party=f"rank {n}", node=f"node{n // 2 + 1}", phase="exact") for n in (0, 1, 3, 4)]
    steps += [Step("smoke", party="rank 2", node="node2", phase="started")]
    watch, _ = watch_after(*((0.0, step) for step in steps))
    stage = watch.stages["smoke"]
    assert stage.progress_text() == "6 ranks"
    assert stage.by_phase() == [
        "rank 5 on node3: starting",
        "rank 2 on node2: importing torch",
        "ranks 0-1,3-4 on node[1-3]: timing collectives with a small and a large message",
    ]


def test_servers_and_workers_are_distinguished() -> None:
    steps = [
        Step("smoke", party="server 0", node="a", phase="imported"),
        Step("smoke", party="worker 0", node="b", phase="imported"),
        Step("smoke", party="worker 1", node="b", phase="imported"),
    ]
    watch, _ = watch_after(*((0.0, step) for step in steps))
    assert watch.stages["smoke"].progress_text() == "1 server and 2 workers"
    assert watch.stages["smoke"].by_phase() == ["server 0, workers 0-1 on a,b: connecting workers and servers"]


def test_a_finished_group_is_not_awaited() -> None:
    watch, _ = watch_after(
        (0.0, Step("smoke", party="rank 0", node="a", phase="done")),
        (0.0, Step("smoke", party="rank 1", node="b", phase="done")),
        (1.0, Step("smoke", party="rank 1")),
    )
    assert watch.stages["smoke"].by_phase() == ["rank 0 on a: nothing more"]
    assert watch.stages["smoke"].progress_text() == "2 ranks"


def test_an_interrupted_stage_has_a_reason() -> None:
    _, over = watch_after((0.0, Step("smoke")), (1.0, Step("smoke", ended=True, skipped="it was interrupted")))
    assert [stage.end_reason() for stage in over] == ["ended, it was interrupted"]
