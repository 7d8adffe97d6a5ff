"""How a report is laid out for a person: worst first, each finding with its places; the rest below."""

from __future__ import annotations

from collections import Counter

from rich.cells import cell_len
from rich.text import Text

from preflight.hosts import hosts_of, ways_without
from preflight.outcome import Evidence, Finding, Location, Status
from preflight.recording import Origin
from preflight.report import ExitCode, Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean, fold_nodes
from preflight.reporters.coverage import print_coverage
from preflight.reporters.grouping import count, counted, folded_evidence, mendable, saved_whence, saved_words
from preflight.reporters.palette import SEVERITIES, VERDICTS
from preflight.reporters.sheet import Sheet


def page(report: Report, style: Style) -> str:
    """The report as text, with ANSI colours when `style` asks for them."""
    sheet = Sheet(style)
    Page(sheet, report).print()
    return sheet.text()


class Page:
    """The parts of a report, each written on request, so that a shorter page can be made of some of them."""

    def __init__(self, sheet: Sheet, report: Report) -> None:
        self._sheet = sheet
        self._report = report

    def print(self) -> None:
        """All of them."""
        self._head()
        self.drill()
        if self._sheet.style.statistics:
            self._statistics()
        else:
            self._findings()
        if self._sheet.style.verbosity >= 0:
            print_coverage(self._sheet, self._report)
            self._grounds()
            self.hosts()
        self.saved()
        self.mendable()
        self.verdict()

    def _findings(self) -> None:
        """Worst first; of a repository with several faulty files, file by file."""
        by_file: dict[str, list[Finding]] = {}
        for finding in self._report.findings:
            by_file.setdefault(finding.locations[0].path if finding.locations else "", []).append(finding)
        for path, findings in by_file.items():
            if path and len(by_file) > 1 and len(self._report.jobs) > 1:
                self._sheet.line(Text.assemble((clean(path), "bold underline"), f"  {counted(findings)}"))
                self._sheet.line()
            for finding in findings:
                self.finding(finding)

    def _statistics(self) -> None:
        """How often each rule found something, the most frequent of the worst first."""
        found = self._report.findings
        numbers = Counter((finding.severity, finding.id, finding.name) for finding in found)
        safe = Counter(finding.id for finding in found if finding.fix is not None and finding.fix.safe)
        unsafe = Counter(finding.id for finding in found if finding.fix is not None and not finding.fix.safe)
        width = len(str(max(numbers.values(), default=0)))
        for (severity, id, name), number in sorted(
            numbers.items(), key=lambda item: (-item[0][0].rank, -item[1], item[0][1])
        ):
            line = Text(f"{number:>{width}}  ")
            line.append(f"{severity.value:<7}", style=SEVERITIES[severity])
            line.append(f"  {id} {name}")
            if safe[id] or unsafe[id]:
                line.append(f"  ({mendable(safe[id], unsafe[id])})")
            self._sheet.line(line)
        if numbers:
            self._sheet.line()

    def _head(self) -> None:
        report = self._report
        if not report.nodes and not report.run.origin:
            return
        self.answered()
        if report.run.origin is not None:
            self._whence(report.run.origin)
        parts = [
            f"{stage.name} skipped ({clean(stage.skipped)})"
            if stage.skipped
            else f"{stage.name} {stage.finished_s - stage.started_s:.1f} s"
            for stage in report.run.stages
        ]
        if parts:
            self._sheet.wrapped("stages: " + ", ".join(parts), indent=0, hanging=2)
        if report.run.context:
            self._sheet.wrapped(f"ranks: {clean(report.run.context)}", indent=0, hanging=2)
        self._sheet.line()

    def answered(self) -> None:
        """How many nodes answered, and which did not."""
        report = self._report
        answered = tuple(record.node.name for record in report.nodes if not record.problem)
        silent = tuple(record.node.name for record in report.nodes if record.problem)
        if report.nodes:
            line = Text(f"{len(answered)} of {len(report.nodes)} nodes answered over {report.run.executor}: ")
            line.append(fold_nodes(answered) or "none")
            if silent:
                line.append(f"; silent: {fold_nodes(silent)}", style="bold red")
            self._sheet.line(line)

    def drill(self) -> None:
        """That a fault was played: nobody shall take this for a verdict about the nodes."""
        drill = self._report.run.wish.drill
        if drill is None:
            return
        text = (
            f"DRILL {drill.spelled}: a fault was played in this run because it was asked for. It tells how the fault "
            "looks and how fast it is named, and is no verdict about the nodes."
        )
        self._sheet.wrapped(clean(text), indent=0, hanging=2, style="bold magenta")
        for outcome in self._report.outcomes:
            if outcome.status is Status.PASS and outcome.subject.startswith("drill: "):
                self._sheet.wrapped(clean(outcome.subject), indent=0, hanging=2)
        self._sheet.line()

    def _whence(self, origin: Origin) -> None:
        """Who said which nodes there are, and why they were reached on this way."""
        if origin.problem:
            self._sheet.wrapped(f"no nodes: {clean(origin.problem)}", indent=0, hanging=2)
        because = f"; {self._report.run.executor} because {clean(origin.because)}" if origin.because else ""
        self._sheet.wrapped(f"nodes from {clean(origin.words)}{because}", indent=0, hanging=2)
        for note in origin.notes:
            self._sheet.wrapped(clean(note), indent=2)

    def finding(self, finding: Finding) -> None:
        """One finding with its places, what was seen, and what to do."""
        head = Text()
        head.append(finding.severity.value, style=SEVERITIES[finding.severity])
        head.append(f"[{finding.id}] {finding.name}", style="bold")
        if finding.nodes:
            head.append(f"  on {fold_nodes(finding.nodes)}")
        self._sheet.line(head)
        self._sheet.wrapped(finding.message)
        for location in finding.locations:
            self._location(location, finding.message)
        for evidence in folded_evidence(finding.evidence):
            self._evidence(evidence, said=evidence.observed in finding.message)
        if finding.remedy:
            self._sheet.wrapped(finding.remedy, label="fix: ", style="green")
        self.commands(self._sheet, finding)
        if finding.fix is not None:
            how = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
            self._sheet.wrapped(f"{how} can {finding.fix.description}", indent=7)
        self._sheet.line()

    @staticmethod
    def commands(sheet: Sheet, finding: Finding) -> None:
        """What to paste, each on a line of its own, behind where to run it."""
        where = ""
        for command in finding.commands:
            said = f"  run on {fold_nodes(command.nodes)}:" if command.nodes else "  run:"
            if said != where:
                sheet.line(Text(said, style="green"))
            where = said
            # Not wrapped: it is there to be copied.
            sheet.line(f"    {command.line}")

    def _location(self, location: Location, message: str) -> None:
        where = Text("  --> ", style="blue")
        where.append(f"{clean(location.path)}:{location.line}:{location.column}", style="none")
        note = clean(location.note) if location.note and location.note != message else ""
        fits = where.cell_len + 2 + cell_len(note) <= self._sheet.style.width
        if note and fits:
            where.append(f"  {note}", style="italic")
        self._sheet.line(where)
        if note and not fits:
            self._sheet.wrapped(note, indent=6, style="italic")
        if location.snippet:
            number = str(location.line)
            cut, caret, width = _window(location, self._sheet.style.width - len(number) - 6)
            line = Text(f"  {number} | ", style="blue")
            line.append(cut, style="none")
            self._sheet.line(line)
            mark = Text(f"  {' ' * len(number)} | ", style="blue")
            mark.append(" " * caret + "^" * width, style="bold red")
            self._sheet.line(mark)

    def _evidence(self, evidence: Evidence, *, said: bool) -> None:
        where = f" on {evidence.node}" if evidence.node else ""
        expected = f"; expected {evidence.expected}" if evidence.expected else ""
        # What the message already quotes is not repeated, unless there is an expectation to hold against it.
        if not said or len(evidence.observed) <= self._sheet.style.width // 2:
            self._sheet.wrapped(f"seen{where}: {clean(evidence.observed)}{clean(expected)}")
        if evidence.command:
            # Not wrapped: it is there to be copied.
            self._sheet.line(Text(f"    try: {clean(evidence.command)}"))

    def _grounds(self) -> None:
        """What the verdict rests on, where that is less than a reader would take for granted."""
        jobs = self._report.jobs
        if self._report.inputs and not self._report.findings and not any(job.launches for job in jobs):
            self._sheet.note(
                "no launch was recognised in these files, so there was little to judge; name the script that starts "
                "the ranks (torchrun, srun, mpirun, deepspeed, accelerate ...) with them"
            )
        faulty = {place.path for finding in self._report.findings for place in finding.locations}
        for job in jobs:
            if job.probable and any(file.path in faulty for file in job.files):
                self._sheet.note(
                    f"{job.name} were taken for one job by guess, so what is wrong between them counts as a warning; "
                    "name the files together to have them judged as one job"
                )

    def hosts(self) -> None:
        """Which nodes to do without, and how, where some are fit and others are not."""
        hosts = hosts_of(self._report)
        if not hosts.failing or not (hosts.passing or hosts.untold):
            return
        lists = (("not fit", hosts.failing), ("cannot be told", hosts.untold), ("fit", hosts.passing))
        said = [f"{words}: {fold_nodes(names)}" for words, names in lists if names]
        self._sheet.wrapped("; ".join(said), label="nodes ", indent=0, hanging=2)
        for way in ways_without(self._report, hosts):
            # Not wrapped: it is there to be copied.
            self._sheet.line(Text(f"  without them: {clean(way)}"))

    def saved(self, *, whence: bool = True) -> None:
        """What it would have cost to find out by trying; with `whence`, where each number of that comes from."""
        found = self._report.saved
        if found is None:
            return
        whose = f" in {found.job}" if len(self._report.jobs) > 1 else ""
        self._sheet.wrapped(f"saved{whose}: {saved_words(found)}", indent=0, hanging=2, style="green")
        for line in saved_whence(found) if whence else ():
            self._sheet.wrapped(line)

    def mendable(self) -> None:
        """How many findings can be mended by an option."""
        report = self._report
        fixes = [finding.fix for finding in report.findings if finding.fix is not None]
        if fixes:
            safe = sum(fix.safe for fix in fixes)
            self._sheet.wrapped(
                f"{mendable(safe, len(fixes) - safe)} (with --diff for --fix it is only shown)", indent=0, hanging=2
            )

    def verdict(self) -> None:
        """The one word, and what it rests on."""
        report = self._report
        said = [counted(report.findings)] if report.findings else []
        required = sum(outcome.required for outcome in report.coverage.not_told)
        if required:
            said.append(f"{required} that had to be told and could not")
        line = Text(report.verdict.value.upper(), style=VERDICTS[report.verdict])
        drill = report.run.wish.drill
        if drill is not None:
            line = Text("DRILL ", style="bold magenta") + line
        line.append(f"  {', '.join(said) or 'nothing found'}", style="none")
        line.append(f"; {count(len(report.inputs), 'file')} in {count(len(report.jobs), 'job')}", style="none")
        if report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            line.append("; interrupted", style="bold yellow")
        if report.exit_code == ExitCode.BUG:
            line = Text(
                "INCOMPLETE  a bug in preflight ended the run; standard error has the details", style="bold red"
            )
        elif report.exit_code == ExitCode.NOTHING_TO_DO:
            line = Text(
                "NOTHING TO DO  no launch script or configuration was recognised in the paths given",
                style="bold yellow",
            )
        self._sheet.line(line)


def _window(location: Location, width: int) -> tuple[str, int, int]:
    """The part of the line that fits into `width` cells, the cell where the caret starts in it, and its length.

    Counted in cells, not characters: a wide character takes two, a combining one none, an escape four.
    """
    width = max(width, 20)
    shown = [clean(character) for character in location.snippet]
    cells = [cell_len(piece) for piece in shown]
    start = min(location.column - 1, len(shown))
    end = min(location.end_column - 1, len(shown)) if location.end_line == location.line else len(shown)
    end = max(end, start)
    # Leading blanks only cost room: keep two of them.
    blank = len(location.snippet) - len(location.snippet.lstrip())
    left = max(0, min(blank, start) - 2)
    room = width - 2
    if sum(cells[left:]) > width:
        # Keep a little of what stands before, then as much of what is marked and follows as there is room for.
        while left < start - 8 and sum(cells[left:end]) > room:
            left += 1
        # Eight characters before it may be escapes of ten cells each.
        while left < start and sum(cells[left : start + 1]) > room:
            left += 1
    right, used = left, 0
    while right < len(shown) and used + cells[right] <= room:
        used += cells[right]
        right += 1
    cut_before = "…" if left > blank else ""
    cut_after = "…" if right < len(shown) else ""
    caret = len(cut_before) + sum(cells[left : min(start, right)])
    marked = max(1, sum(cells[start : min(end, right)]))
    return cut_before + "".join(shown[left:right]) + cut_after, caret, marked
