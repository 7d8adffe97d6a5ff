"""A run's budget: code that exceeds it is abandoned and named, in any thread."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight import api
from preflight._util.budget import Budget, BudgetExceeded, Limits, spend, truncate
from preflight.engine.evaluate import outcomes_of
from preflight.model.configuration import SMOKE
from preflight.model.findings import Severity, Status, VerdictKind
from preflight.model.job import WHOLE_JOB, Job, Note, NoteKind, Scope
from preflight.model.recording import Recording
from preflight.plugins.authoring import Rule, Verdict, rule
from preflight.plugins.registry import sources
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.discovery.assemble import assemble
from preflight.sources.discovery.readings import read_source
from preflight.sources.formats.tree import DirectoryTree, MemoryTree

FEW = Limits(seconds_each=0.3, seconds_fair=0.1, seconds_pool=0.5, judging_seconds_pool=0.5)


def _for_ever() -> None:
    while True:
        pass


def _backtracks() -> None:
    # Only a signal can interrupt this: no other thread runs while a pattern is matched.
    re.match(r"(a+)+$", "a" * 64 + "b")


def _swallows() -> None:
    while True:
        try:
            _for_ever()
        except Exception:
            continue


@pytest.mark.parametrize("work", [_for_ever, _backtracks, _swallows])
def test_code_that_counts_no_steps_is_ended_by_time(work: Callable[[], None]) -> None:
    with Budget(FEW).watched() as budget, pytest.raises(BudgetExceeded, match="of CPU time"):
        budget.attempt(work)


def test_signals_do_not_arrive_before_the_last_one_is_handled() -> None:
    with Budget().watched() as budget:
        assert budget.attempt(lambda: signal.getitimer(signal.ITIMER_VIRTUAL))[1] == 0


def test_the_timer_continues_after_a_lost_signal() -> None:
    def loses_the_signal() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    with Budget(FEW).watched() as budget:
        budget.attempt(loses_the_signal)
        with pytest.raises(BudgetExceeded, match="of CPU time"):
            budget.attempt(_for_ever)


def test_a_signal_that_arrives_at_the_end_of_a_run_leaves_no_timer() -> None:
    with Budget().watched():
        handler = signal.getsignal(signal.SIGVTALRM)
    assert callable(handler)
    handler(signal.SIGVTALRM, None)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_sections_of_another_thread_are_limited() -> None:
    raised: list[str] = []

    def run() -> None:
        with Budget(FEW).watched() as budget:
            for work in (_for_ever, _swallows):
                try:
                    budget.attempt(work)
                except BudgetExceeded as exceeded:
                    raised.append(exceeded.excess)
            raised.append(budget.attempt(lambda: "goes on"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(150)
    assert [("CPU time" in said) for said in raised] == [True, True, False]


PROFILED_AFTERWARDS = """
import sys, threading
from preflight._util.budget import Budget, BudgetExceeded, Limits

def run():
    with Budget(Limits(seconds_each=0.2, seconds_fair=0.1)).watched() as budget:
        try:
            budget.attempt(lambda: [None for _ in iter(int, 1)])
        except BudgetExceeded:
            print("exceeded")

thread = threading.Thread(target=run)
thread.start()
thread.join()
sys.setprofile(lambda *event: None)
(lambda: None)()
sys.setprofile(None)
print("profiled")
"""


def test_an_interrupt_of_another_thread_leaves_nothing_behind() -> None:
    # In a process of its own: what is left behind keeps it from ending.
    done = subprocess.run([sys.executable, "-c", PROFILED_AFTERWARDS], capture_output=True, text=True, timeout=150)
    assert done.stdout.split() == ["exceeded", "profiled"], done.stderr


@pytest.mark.usefixtures("no_gc_callbacks")
def test_memory_is_bounded() -> None:
    limits = Limits(memory_bytes=32 << 20)

    def grow() -> None:
        held: list[list[int]] = []
        while True:
            held.append([0] * 10_000)

    with Budget(limits).watched() as budget, pytest.raises(BudgetExceeded, match="more memory than the 32 MiB") as met:
        budget.attempt(grow)
    assert met.value.of_memory


def test_a_run_without_time_left_opens_no_section() -> None:
    budget = Budget(Limits(seconds_run=0.2))
    ran: list[int] = []
    with budget.watched():
        # Between two sections no code is interrupted.
        until = time.process_time() + 0.5
        while time.process_time() < until:
            sum(range(100_000))
        assert budget.is_spent
        with pytest.raises(BudgetExceeded, match="more CPU time than is left for this run"):
            budget.attempt(lambda: ran.append(1))
        budget.refill()
        budget.attempt(lambda: ran.append(2))
    assert ran == [2]


def test_memory_held_between_sections_stops_the_run_until_it_is_freed() -> None:
    held: list[bytes] = []
    with Budget(Limits(memory_bytes=32 << 20)).watched() as budget:
        held.append(b"x" * (64 << 20))
        budget.charge_ticks(0)
        with pytest.raises(BudgetExceeded, match="more memory than the 32 MiB"):
            budget.attempt(lambda: None)
        held.clear()
        budget.attempt(lambda: None)


def test_a_rule_that_a_spent_run_skips_has_one_outcome_for_all_jobs() -> None:
    @rule("ABC002", "never-reached", severity=Severity.ERROR, profile="gate", evidence=("https://example.org",))
    def never_reached(job: Job) -> Iterator[Verdict]:
        """A rule."""
        yield from ()

    recording = Recording(
        jobs=tuple(Job(f"job{number}") for number in range(9)), created="2026-01-01T00:00:00+00:00", tool_version="0"
    )
    with Budget(Limits(judging_memory_bytes=0)).watched() as budget:
        budget.refill()
        held = b"x" * (64 << 20)
        budget.charge_ticks(0)
        (found,) = outcomes_of(recording, [never_reached], [])
    assert held and (found.id, found.status, found.required) == ("ABC002", Status.UNKNOWN, True)
    assert "not applied to job0, job1, job2, job3, job4 and 4 more" in found.reason


def test_steps_come_from_the_fair_share_first_and_then_from_the_pool() -> None:
    budget = Budget(Limits(steps_each=100, steps_fair=10, steps_pool=50))
    budget.attempt(lambda: spend(40))
    assert budget.steps_pool == 20
    with pytest.raises(BudgetExceeded, match="more than the remaining 30 steps"):
        budget.attempt(lambda: spend(31))
    assert budget.steps_pool == 0
    budget.attempt(lambda: spend(10))
    with pytest.raises(BudgetExceeded, match="more than the remaining 10 steps"):
        budget.attempt(lambda: spend(11))
    # A large file has a larger share.
    budget.attempt(lambda: spend(100), size_bytes=1000)


def test_deep_nesting_exceeds_the_budget() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(BudgetExceeded, match="deeper nesting"):
        Budget().attempt(deeper)


class _Reader:
    name = "reader"
    roles = ()

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def recognises(self, file: SourceFile) -> bool:
        return file.path.endswith(".sh")

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        self.work()
        return Reading()


def _reading(work: Callable[[], object], budget: Budget) -> tuple[Note, ...]:
    tree = MemoryTree({"a.sh": "x"})
    file = tree.read("a.sh")
    assert isinstance(file, SourceFile)
    with budget.watched():
        return read_source(_Reader(work), file, tree).notes


def test_a_reader_over_budget_leaves_a_required_note_naming_the_file() -> None:
    (note,) = _reading(_for_ever, Budget(FEW))
    assert note.required and note.kind is NoteKind.TOO_LARGE and note.message.startswith("reading a.sh was stopped")


def test_skipped_content_is_a_required_note() -> None:
    (note,) = _reading(lambda: truncate(range(10), 3, "lines"), Budget())
    assert note.required and note.message == "a.sh: only the first 3 of 10 lines were read; the rest was not checked"


def test_a_source_that_is_slow_or_crashes_before_reading_is_named(tmp_path: Path) -> None:
    class Crashing(_Reader):
        def recognises(self, file: SourceFile) -> bool:
            raise ValueError("cannot look")

    (tmp_path / "a.sh").write_text("x")
    (job,) = assemble(tmp_path, [tmp_path], sources=[Crashing(lambda: None)])
    assert [(note.required, "crashed on a.sh before reading it" in note.message) for note in job.notes] == [
        (True, True)
    ]


@rule("ABC001", "for-ever", severity=Severity.ERROR, profile="gate", evidence=("https://example.org",))
def _rule_for_ever(job: Job) -> Iterator[Verdict]:
    """A rule that does not end."""
    while True:
        pass
    yield


def test_a_rule_over_budget_is_unknown_under_its_id() -> None:
    found: Rule = _rule_for_ever
    recording = Recording(jobs=(Job("a"), Job("b")), created="2026-01-01T00:00:00+00:00", tool_version="0")
    with Budget(FEW).watched():
        outcomes = outcomes_of(recording, [found], [])
    assert [(o.id, o.status, o.required, o.subject) for o in outcomes] == [
        ("ABC001", Status.UNKNOWN, True, "a"),
        ("ABC001", Status.UNKNOWN, True, "b"),
    ]
    assert "ABC001 for-ever was stopped on a, because it needs more than" in outcomes[0].reason
    assert SMOKE == "smoke"


def test_texts_beyond_the_memory_limit_are_read_again(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name * 1000)
    tree = DirectoryTree(tmp_path, max_cached_bytes=1500)
    for name in "abcab":
        file = tree.read(name)
        assert isinstance(file, SourceFile) and file.text == name * 1000
    tree.read("b")
    (tmp_path / "a").write_text("changed")
    changed = tree.read("a")
    assert isinstance(changed, Note) and "changed while it was being read" in changed.message


BASH = "#!/bin/bash\n#SBATCH --nodes=2\n"
LAUNCH = "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-endpoint=h:1 t.py\n"
FAULTY = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n" + LAUNCH


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("comments.sh", (BASH + "# a comment\n" * 40_000 + FAULTY).encode()),
        ("steps.sh", (BASH + "for a in 1 2 3 4 5 6 7 8; do x=$a; y=$x; z=$y; done\n" * 3000 + LAUNCH).encode()),
        ("nul.sh", (BASH + "\0\n" + FAULTY).encode()),
        ("huge.sh", (BASH + "#" * (11 << 20) + "\n" + FAULTY).encode()),
        ("wide.sh", (BASH + FAULTY).encode("utf-16")),
        ("statements.py", b"import torch.distributed as dist\ndist.init_process_group('nccl')\n" + b"v = 1\n" * 90_000),
        ("doubling.yaml", None),
    ],
)
@pytest.mark.parametrize("folder", [True, False])
def test_a_partly_read_file_is_never_a_go(name: str, content: bytes | None, folder: bool, tmp_path: Path) -> None:
    if content is None:
        from tests.hostile.shapes import YAML

        content = next(shape for shape in YAML if shape.id == "pod-variables").text(24).encode()
    (tmp_path / name).write_bytes(content)
    report = api.lint([tmp_path if folder else tmp_path / name], root=tmp_path)
    assert (report.verdict, report.exit_code) == (VerdictKind.INCOMPLETE, 3)
    assert any(outcome.required and outcome.subject == name for outcome in report.coverage.unknown_outcomes)
    from preflight.reporters.base import Style
    from preflight.reporters.text import REPORTER

    for style in (Style(verbosity=-1), Style(), Style(concise=True)):
        assert name in REPORTER.render(report, style).decode()


def test_sources_end_on_inputs_that_once_took_forever() -> None:
    train = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
        "for batch in loader:\n    loss = model(batch)\n    loss.backward()\n"
        '    log["x"] = meters["a"].avg\n    losses.update(meters["a"].avg)\n'
        "    if losses.val > 10:\n        break\n"
    )
    tree = MemoryTree({"train.py": train})
    file = tree.read("train.py")
    assert isinstance(file, SourceFile)
    python = next(source for source in sources() if source.name == "python")
    budget = Budget(FEW)
    with budget.watched():
        reading = read_source(python, file, tree, role="script")
    assert not reading.notes and reading.claims
    assert budget.last[0] < 2000


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from preflight.sources.discovery import walk

    (tmp_path / "closed").mkdir()
    real = walk.os.scandir

    def scandir(path: Path) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(walk.os, "scandir", scandir)
    report = api.lint([tmp_path], root=tmp_path)
    assert report.verdict is VerdictKind.INCOMPLETE
    assert any("the folder closed cannot be read" in note.message for job in report.jobs for note in job.notes)


def test_a_program_over_budget_is_a_required_note(tmp_path: Path) -> None:
    long = "def long():\n" + "    x = 1\n" * 1000 + "    dist.barrier()\n" + "long()\n" * 20
    (tmp_path / "train.py").write_text(f"import torch.distributed as dist\ndist.init_process_group('gloo')\n{long}")
    (tmp_path / "run.sh").write_text("torchrun --nnodes=1 --nproc_per_node=2 train.py\n")
    with Budget(Limits(steps_each=10_000)).watched():
        (job,) = assemble(tmp_path, [tmp_path / "run.sh"], sources=sources())
    notes = [note for note in job.notes if note.required]
    assert [(note.kind, note.span.path) for note in notes] == [(NoteKind.TOO_LARGE, "run.sh")]
    assert notes[0].message.startswith("following train.py was stopped, because it takes more than")
