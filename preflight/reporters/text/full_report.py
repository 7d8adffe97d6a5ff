"""Layout of a full report for a person: findings worst first, then coverage and verdict, in lines for a terminal."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from preflight._util.sanitize import clean, fold_nodes, neutralize_commands
from preflight._util.sequences import grouped
from preflight.engine.report import ExitCode, Report, commands_without_failing, hosts_of
from preflight.engine.suppress import BASELINE, FILE_IGNORES, SINCE
from preflight.model.configuration import NODES
from preflight.model.findings import Evidence, Finding, Location, Status, VerdictKind
from preflight.model.recording import Origin
from preflight.reporters.base import SEVERITIES, VERDICTS, Style, word
from preflight.reporters.text.groups import (
    avoided_cost,
    avoided_cost_sources,
    by_area,
    by_reason,
    compared_with,
    count,
    counted,
    differs_only_in_node,
    fixable,
    fold_evidence,
    group_alike,
    launched_by_documents,
    numbered,
    undecided,
    unknown_sizes,
    unread_inputs,
    unused_comment_reasons,
    why_incomplete,
    why_not_judged,
)

#: How colours are encoded.
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Sheet:
    """A page under construction."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._sink = io.StringIO()
        self._console = Console(
            file=self._sink,
            width=style.width,
            force_terminal=style.color,
            no_color=not style.color,
            color_system="standard" if style.color else None,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
            legacy_windows=False,
        )

    def text(self) -> str:
        """Return all lines so far, without trailing spaces."""
        lines = (line.rstrip() for line in self._sink.getvalue().split("\n"))
        return "\n".join(lines).strip("\n") + "\n"

    def line(self, text: Text | str = "", style: str = "") -> None:
        """Add one line without wrapping it."""
        shown = Text(text, style=style) if isinstance(text, str) else text
        # Remove control characters and commands, whatever a file, a node or a recording put into the line.
        harmless = neutralize_commands(clean(shown.plain))
        if harmless != shown.plain:
            shown = Text(harmless)
        self._console.print(shown, no_wrap=True, overflow="ignore", crop=False)

    def note(self, text: str) -> None:
        """Add a note: useful information that is not a finding."""
        self.wrapped(f"note: {text}", indent=0, hanging=2)

    def cut(self, text: Text | str) -> None:
        """Add one line, cut at the page width with an ellipsis."""
        whole = Text(text) if isinstance(text, str) else text
        if clean(whole.plain) != whole.plain:
            whole = Text(clean(whole.plain))
        whole.truncate(self.style.width, overflow="ellipsis")
        self.line(whole)

    def wrapped(
        self,
        text: str,
        *,
        indent: int = 2,
        hanging: int = 0,
        label: str = "",
        style: str = "",
        max_lines: int | None = None,
    ) -> None:
        """Add wrapped text with a `hanging` indent and up to `max_lines` lines, ending with an ellipsis if cut."""
        cleaned = clean(text, keep_newlines=True)
        width = max(20, self.style.width - indent - hanging - len(label))
        pieces = [
            piece.plain.rstrip()
            for paragraph in cleaned.split("\n")
            for piece in Text(paragraph).wrap(self._console, width)
        ]
        if max_lines is not None and len(pieces) > max_lines:
            last = Text(f"{pieces[max_lines - 1]} …")
            last.truncate(width, overflow="ellipsis")
            pieces = [*pieces[: max_lines - 1], last.plain]
        for number, piece in enumerate(pieces):
            line = Text(" " * (indent if number == 0 else indent + hanging))
            line.append(label if number == 0 else " " * len(label), style=style)
            line.append(piece, style="none" if label else style)
            self.line(line)


def rows(lines: Sequence[str], width: int) -> int:
    """Return the number of screen rows of these lines; a line that is too long takes several."""
    return sum(max(1, -(-cell_len(_ESCAPES.sub("", line)) // width)) for line in lines)


#: With --quiet: number of listed reasons for an incomplete verdict.
_MAX_REASONS = 5


def page(report: Report, style: Style) -> str:
    """Return the report as text, with ANSI colours if `style` requests them."""
    sheet = Sheet(style)
    Page(sheet, report).print()
    return sheet.text()


class Page:
    """The parts of a report, each printed by its own method, so that the summary can use some of them."""

    def __init__(self, sheet: Sheet, report: Report) -> None:
        self._sheet = sheet
        self._report = report

    def print(self) -> None:
        self._head()
        self.injected_fault()
        if self._sheet.style.statistics:
            self._statistics()
        else:
            self._findings()
        if self._sheet.style.verbosity >= 0:
            print_coverage(self._sheet, self._report)
            self._grounds()
            self.hosts()
        else:
            self.why_incomplete()
        self.avoided()
        self.fixable()
        self.verdict()

    def _findings(self) -> None:
        listed = self._report.findings
        by_file = grouped((item.locations[0].path if item.locations else "", item) for item in listed)
        for path, findings in by_file.items():
            if path and len(by_file) > 1 and len(self._report.jobs) > 1:
                self._sheet.line(Text.assemble((clean(path), "bold underline"), f"  {counted(findings)}"))
                self._sheet.line()
            for group in group_alike(findings) if self._sheet.style.verbosity <= 0 else [[f] for f in findings]:
                self.finding(group[0], group[1:])

    def _statistics(self) -> None:
        """Print the number of findings of each rule, worst and most frequent first."""
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
                line.append(f"  ({fixable(safe[id], unsafe[id])})")
            self._sheet.line(line)
        if numbers:
            self._sheet.line()

    def _head(self) -> None:
        report = self._report
        if not report.nodes and not report.run.origin:
            return
        self.answered()
        if report.run.origin is not None:
            self._origin(report.run.origin)
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
        """Print how many nodes answered, and which did not."""
        report = self._report
        answered = tuple(record.node.name for record in report.nodes if not record.problem)
        silent = tuple(record.node.name for record in report.nodes if record.problem)
        if report.nodes:
            line = Text(f"{len(answered)} of {len(report.nodes)} nodes responded over {report.run.executor}: ")
            line.append(fold_nodes(answered) or "none")
            if silent:
                line.append(f"; silent: {fold_nodes(silent)}", style="bold red")
            self._sheet.line(line)

    def injected_fault(self) -> None:
        """Print that a fault was injected, so that nobody mistakes the result for a verdict about the nodes."""
        fault = self._report.run.smoke_options.injected_fault
        if fault is None:
            return
        text = (
            f"FAULT INJECTED ({fault.option_text}): the options of this run requested it. The report shows how and "
            "how soon the fault was found; it is not a verdict on the nodes."
        )
        self._sheet.wrapped(clean(text), indent=0, hanging=2, style="bold magenta")
        for outcome in self._report.outcomes:
            if outcome.status is Status.PASS and outcome.subject.startswith("injected fault: "):
                self._sheet.wrapped(clean(outcome.subject), indent=0, hanging=2)
        self._sheet.line()

    def _origin(self, origin: Origin) -> None:
        """Print the source of the list of nodes, and the reason for the choice of executor."""
        if origin.problem:
            self._sheet.wrapped(f"no nodes: {clean(origin.problem)}", indent=0, hanging=2)
        because = f"; {self._report.run.executor} because {clean(origin.because)}" if origin.because else ""
        self._sheet.wrapped(f"nodes from {clean(origin.words)}{because}", indent=0, hanging=2)
        for note in origin.notes:
            self._sheet.wrapped(clean(note), indent=2)

    def finding(self, finding: Finding, others: Sequence[Finding] = ()) -> None:
        """Print one finding with its locations, evidence and remedy, followed by a short form of similar findings."""
        head = Text()
        head.append(finding.severity.value, style=SEVERITIES[finding.severity])
        head.append(f"[{finding.id}] {finding.name}", style="bold")
        if finding.nodes:
            head.append(f"  on {fold_nodes(finding.nodes)}")
        self._sheet.line(head)
        self._sheet.wrapped(finding.message)
        for location in finding.locations:
            self._location(location, finding.message)
        for evidence in fold_evidence(finding.evidence):
            self._evidence(evidence, is_quoted=evidence.observed in finding.message)
        if finding.remedy:
            self._sheet.wrapped(finding.remedy, label="fix: ", style="green")
        self.commands(self._sheet, finding)
        if finding.fix is not None:
            how = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
            self._sheet.wrapped(f"{how} can {finding.fix.description}", indent=7)
        self._others(finding, others)
        self._sheet.line()

    def _others(self, finding: Finding, others: Sequence[Finding]) -> None:
        """Print the nodes with the same finding, and each message whose numbers differ."""
        same = [other.nodes[0] for other in others if differs_only_in_node(finding, other)]
        if same:
            self._sheet.wrapped(f"the same on {count(len(same), 'more node')}: {fold_nodes(same)}", style="bold")
        for other in others:
            if other.nodes[0] not in same:
                self._sheet.wrapped(other.message, hanging=4)

    @staticmethod
    def commands(sheet: Sheet, finding: Finding) -> None:
        """Print the commands to paste, one per line. The nodes that run a command precede it."""
        where = ""
        for command in finding.commands:
            is_quoted = f"  run on {fold_nodes(command.nodes)}:" if command.nodes else "  run:"
            if is_quoted != where:
                sheet.line(Text(is_quoted, style="green"))
            where = is_quoted
            # Not wrapped, so that it can be copied.
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

    def _evidence(self, evidence: Evidence, *, is_quoted: bool) -> None:
        where = f" on {evidence.node}" if evidence.node else ""
        expected = f"; expected {evidence.expected}" if evidence.expected else ""
        # Evidence that the message already quotes is not repeated, unless it has an expected value.
        if not is_quoted or len(evidence.observed) <= self._sheet.style.width // 2:
            self._sheet.wrapped(f"seen{where}: {clean(evidence.observed)}{clean(expected)}")
        if evidence.command:
            # Not wrapped, so that it can be copied.
            self._sheet.line(Text(f"    try: {clean(evidence.command)}"))

    def _grounds(self) -> None:
        """Print notes on the basis of the verdict if it is weaker than a reader would assume."""
        jobs = self._report.jobs
        if self._report.inputs and not self._report.findings and not any(job.launches for job in jobs):
            self._sheet.note(
                "these files contain no known launch command, so there was little to check; add the script that "
                "starts the ranks (torchrun, srun, mpirun, deepspeed, accelerate ...)"
            )
        faulty = {place.path for finding in self._report.findings for place in finding.locations}
        for job in jobs:
            if job.probable and any(file.path in faulty for file in job.files):
                self._sheet.note(
                    f"{job.name} were assumed to be one job, so contradictions between them are warnings; pass the "
                    "files together to check them as one job"
                )

    def hosts(self) -> None:
        """If only some nodes are fit, print which to exclude, and how."""
        hosts = hosts_of(self._report)
        if not hosts.failing or not (hosts.passing or hosts.unknown):
            return
        lists = (("not fit", hosts.failing), ("unknown", hosts.unknown), ("fit", hosts.passing))
        parts = [f"{words}: {fold_nodes(names)}" for words, names in lists if names]
        self._sheet.wrapped("; ".join(parts), label="nodes ", indent=0, hanging=2)
        for start in commands_without_failing(self._report, hosts):
            # Not wrapped, so that it can be copied.
            self._sheet.line(Text(f"  without them: {clean(start)}"))

    def avoided(self, *, sources: bool = True) -> None:
        """Print the cost that this verdict avoided; if `sources` is true, also the source of each number."""
        found = self._report.avoided_cost
        if found is None:
            return
        where = f" in {found.job}" if len(self._report.jobs) > 1 else ""
        self._sheet.wrapped(f"avoided{where}: {avoided_cost(found)}", indent=0, hanging=2, style="green")
        for line in avoided_cost_sources(found) if sources else ():
            self._sheet.wrapped(line)

    def why_incomplete(self) -> None:
        reasons = why_incomplete(self._report)
        for reason in reasons[:_MAX_REASONS]:
            self._sheet.cut(Text(f"not judged: {clean(reason)}"))
        if len(reasons) > _MAX_REASONS:
            self._sheet.line(f"and {len(reasons) - _MAX_REASONS} more were not checked (listed without -q)")

    def fixable(self) -> None:
        """Print how many findings can be fixed automatically."""
        report = self._report
        fixes = [finding.fix for finding in report.findings if finding.fix is not None]
        if fixes:
            safe = sum(fix.safe for fix in fixes)
            self._sheet.wrapped(f"{fixable(safe, len(fixes) - safe)} (preview with --diff)", indent=0, hanging=2)

    def verdict(self) -> None:
        report = self._report
        parts = [counted(report.findings)] if report.findings else []
        required = sum(outcome.required for outcome in report.coverage.unknown_outcomes)
        if required:
            parts.append(undecided(required))
        line = Text(word(report.verdict), style=VERDICTS[report.verdict])
        fault = report.run.smoke_options.injected_fault
        if fault is not None:
            line = Text("FAULT INJECTED ", style="bold magenta") + line
        line.append(f"  {', '.join(parts) or 'nothing found'}", style="none")
        line.append(f"; {_subject_text(report)}", style="none")
        line.append(launched_by_documents(report), style="none")
        line.append(unknown_sizes(report), style="none")
        line.append(compared_with(report), style="none")
        if report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            line.append("; interrupted", style="bold yellow")
        if report.exit_code == ExitCode.BUG:
            line = Text(
                "INCOMPLETE  a bug in preflight ended the run; see standard error for details", style="bold red"
            )
        elif report.verdict is VerdictKind.NOT_JUDGED:
            line = Text(word(report.verdict), style=VERDICTS[report.verdict])
            line.append(f"  {why_not_judged(report)}", style="none")
        self._sheet.line(line)


def _subject_text(report: Report) -> str:
    """Return the subject of the verdict: the files of jobs, or nodes without a job."""
    if report.run.verb == NODES:
        return count(len(report.nodes), "node")
    return f"{count(len(report.inputs), 'file')} in {count(len(report.jobs), 'job')}"


def _window(location: Location, width: int) -> tuple[str, int, int]:
    """Return the part of the line that fits into `width` cells (not characters), and the caret's cell and length."""
    width = max(width, 20)
    shown = [clean(character) for character in location.snippet]
    cells = [cell_len(piece) for piece in shown]
    start = min(location.column - 1, len(shown))
    end = min(location.end_column - 1, len(shown)) if location.end_line == location.line else len(shown)
    end = max(end, start)
    # Leading spaces waste room: keep two of them.
    blank = len(location.snippet) - len(location.snippet.lstrip())
    left = max(0, min(blank, start) - 2)
    room = width - 2
    if sum(cells[left:]) > width:
        # Keep a little of the text before the mark, then as much of the mark and the text after it as fits.
        while left < start - 8 and sum(cells[left:end]) > room:
            left += 1
        # The eight characters before it may be escapes of ten cells each.
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


#: Largest number of undecided checks that are listed; the others are counted.
_MAX_LISTED = 12
#: Largest number of folders with left-out files that are named.
_MAX_FOLDERS = 3
#: Suppressions that apply to many findings at once.
_IN_BULK = (BASELINE, SINCE, FILE_IGNORES)
#: What to print for a stage that does not apply to the job.
_NOT_APPLICABLE = {"link": "no links to check", "smoke": "no smoke run"}
#: Titles of the stages in which something passed, in the order of the run.
PASSED = {"lint": "in the files", "node": "on the nodes", "link": "between nodes", "smoke": "in the smoke run"}


def print_coverage(sheet: Sheet, report: Report) -> None:
    """Print everything between the findings and the verdict."""
    _print_suppressed(sheet, report)
    _print_undecided(sheet, report)
    if sheet.style.verbosity > 1:
        _other_outcomes(sheet, report)
    _print_passed(sheet, report)
    _left_out_files(sheet, report)


def _left_out_files(sheet: Sheet, report: Report) -> None:
    by_reason = grouped((item.reason, item) for item in report.coverage.left_out)
    for reason, same in by_reason.items():
        files = sum(item.files for item in same)
        least = "at least " if any(item.more for item in same) else ""
        shown = same if sheet.style.verbosity > 0 else same[:_MAX_FOLDERS]
        folders = ", ".join("." if item.path == "." else f"{item.path}/" for item in shown)
        rest = f" and {count(len(same) - len(shown), 'other folder')}" if len(same) > len(shown) else ""
        sheet.wrapped(f"skipped: {least}{count(files, 'file')} in {folders}{rest} ({reason})", indent=0, hanging=2)


def _print_suppressed(sheet: Sheet, report: Report) -> None:
    # Individual suppressions are listed; bulk ones are counted.
    everything = sheet.style.verbosity > 0
    single = [finding for finding in report.suppressed if finding.suppressed_by not in _IN_BULK]
    listed = report.suppressed if everything else single[:_MAX_LISTED]
    for finding in listed:
        where = "".join(f" at {place.path}:{place.line}" for place in finding.locations[:1])
        on = f" on {fold_nodes(finding.nodes)}" if finding.nodes else ""
        sheet.wrapped(f"suppressed {finding.id}{where}{on}: {finding.suppression}", indent=0, hanging=2)
    bulk = Counter(f.suppression for f in report.suppressed if f.suppressed_by in _IN_BULK and not everything)
    if not everything and len(single) > _MAX_LISTED:
        bulk["more suppressed by comments or waivers"] = len(single) - _MAX_LISTED
    for why, number in bulk.items():
        sheet.wrapped(f"{count(number, 'finding')} {why} (-v lists them)", indent=0, hanging=2)
    for note in report.coverage.suppression_notes:
        place = f"{note.location.path}:{note.location.line}: " if note.location else ""
        sheet.note(f"{place}{note.message}")
    for idle, why in unused_comment_reasons(report):
        sheet.note(f"{idle.path}:{idle.span.line} suppresses {why}")
    for broken in report.coverage.broken:
        sheet.note(f"{broken.where} of {broken.plugin} cannot be used: {broken.why}")


def _print_undecided(sheet: Sheet, report: Report) -> None:
    for note in unread_inputs(report)[:_MAX_LISTED]:
        sheet.wrapped(f"not judged: {clean(note.message)}", indent=0, hanging=2)
    unknown_outcomes = report.coverage.unknown_outcomes
    if not unknown_outcomes:
        return
    required = [outcome for outcome in unknown_outcomes if outcome.required]
    # If nothing was judged, the reason for that is the only content.
    short = unknown_outcomes if report.exit_code == ExitCode.NOT_JUDGED else required
    listed = unknown_outcomes if sheet.style.verbosity > 0 else short[:_MAX_LISTED]
    if listed:
        sheet.line("could not be decided:", style="bold")
        for same in by_reason(listed):
            names = ", ".join(dict.fromkeys(f"{o.id} {o.name}" for o in same))
            subjects = tuple(dict.fromkeys(o.subject for o in same))
            sheet.wrapped(f"{names} ({fold_nodes(subjects)}): {same[0].reason}", hanging=2)
            for location in dict.fromkeys(place for o in same for place in o.locations[:1]):
                sheet.line(f"  --> {location.path}:{location.line}:{location.column}", style="blue")
    rest = len(unknown_outcomes) - len(listed)
    if rest:
        more = "more " if listed else ""
        them = "it" if rest == 1 else "them"
        sheet.wrapped(
            f"{rest} {more}optional {'check' if rest == 1 else 'checks'} could not be decided (-v lists {them})",
            indent=0,
        )
    sheet.line()


def _print_passed(sheet: Sheet, report: Report) -> None:
    for stage, title in PASSED.items():
        here = [o for o in report.outcomes if o.stage == stage and o.status is Status.PASS]
        if not here:
            continue
        if sheet.style.verbosity > 0:
            sheet.line(f"passed {title}:", style="bold")
            for area, same in by_area(here):
                sheet.wrapped(f"{area}: {', '.join(numbered(same))}", hanging=2)
        else:
            rules = count(len({outcome.id for outcome in here}), "rule" if stage == "lint" else "check")
            about = ", ".join(area for area, _ in by_area(here))
            sheet.wrapped(f"passed {title}: {rules} on {about}", indent=0, hanging=2)
        if stage in ("link", "smoke"):
            for subject in dict.fromkeys(outcome.subject for outcome in here):
                sheet.wrapped(subject)
    _skipped_stages(sheet, report)


def _skipped_stages(sheet: Sheet, report: Report) -> None:
    """Print the stages that do not apply to the job, because readers expect them."""
    if not any(outcome.status is Status.PASS for outcome in report.outcomes):
        return
    for stage, what in _NOT_APPLICABLE.items():
        here = [outcome for outcome in report.outcomes if outcome.stage == stage]
        if here and all(outcome.status is Status.NOT_APPLICABLE for outcome in here):
            reasons = "; ".join(dict.fromkeys(outcome.reason for outcome in here if outcome.reason))
            sheet.wrapped(f"{what}: {reasons}", indent=0, hanging=2)


def _other_outcomes(sheet: Sheet, report: Report) -> None:
    """Print every outcome that is not a finding; outcomes of one rule with one reason share a line."""
    same = grouped(
        ((outcome.id, outcome.name, outcome.status.value, outcome.reason), outcome.subject)
        for outcome in report.outcomes
        if outcome.status in (Status.PASS, Status.NOT_APPLICABLE)
    )
    for (id, name, status, reason), subjects in same.items():
        about = fold_nodes(tuple(dict.fromkeys(subjects)))
        sheet.wrapped(f"{status} {id} {name} ({about})" + (f": {reason}" if reason else ""), indent=0, hanging=2)
    if same:
        sheet.line()
