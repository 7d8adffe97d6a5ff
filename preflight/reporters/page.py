"""How a report is laid out for a person: worst first, each finding with its places, what passed in a line a group."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from preflight.outcome import Evidence, Finding, Location, Outcome, Severity, Status, VerdictKind
from preflight.report import ExitCode, Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean, fold_nodes
from preflight.suppress import BASELINE, FILE_IGNORES

_COLORS = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_VERDICTS = {
    VerdictKind.GO: "bold green",
    VerdictKind.NO_GO: "bold red",
    VerdictKind.INCOMPLETE: "bold yellow",
}
#: So many things that could not be told are listed one by one before the rest is counted.
_MOST_LISTED = 12
#: What suppresses many findings at once.
_IN_BULK = (BASELINE, FILE_IGNORES)
#: How a stage is called of which nothing applies to the job.
_WITHOUT = {"link": "nothing to look at between nodes", "smoke": "no smoke run"}
#: Where something passed, in the order of the run.
_PASSED = {"lint": "in the files", "node": "on the nodes", "link": "between nodes", "smoke": "in the smoke run"}


def page(report: Report, style: Style) -> str:
    """The report as text, with ANSI colours when `style` asks for them."""
    sink = io.StringIO()
    console = Console(
        file=sink,
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
    _Page(console, report, style).print()
    lines = (line.rstrip() for line in sink.getvalue().split("\n"))
    return "\n".join(lines).strip("\n") + "\n"


class _Page:
    def __init__(self, console: Console, report: Report, style: Style) -> None:
        self._console = console
        self._report = report
        self._style = style

    def print(self) -> None:
        self._head()
        for finding in self._report.findings:
            self._finding(finding)
        self._suppressed()
        self._not_told()
        self._passed()
        self._grounds()
        self._verdict()

    def _head(self) -> None:
        report = self._report
        if not report.nodes:
            return
        answered = tuple(record.node.name for record in report.nodes if not record.problem)
        silent = tuple(record.node.name for record in report.nodes if record.problem)
        line = Text(f"{len(answered)} of {len(report.nodes)} nodes answered over {report.run.executor}: ")
        line.append(fold_nodes(answered) or "none")
        if silent:
            line.append(f"; silent: {fold_nodes(silent)}", style="bold red")
        self._print(line)
        parts = [
            f"{stage.name} skipped ({clean(stage.skipped)})"
            if stage.skipped
            else f"{stage.name} {stage.finished_s - stage.started_s:.1f} s"
            for stage in report.run.stages
        ]
        if parts:
            self._indented("stages: " + ", ".join(parts), indent=0, hanging=2)
        if report.run.context:
            self._indented(f"ranks: {clean(report.run.context)}", indent=0, hanging=2)
        self._print(Text(""))

    def _finding(self, finding: Finding) -> None:
        head = Text()
        head.append(finding.severity.value, style=_COLORS[finding.severity])
        head.append(f"[{finding.id}] {finding.name}", style="bold")
        if finding.nodes:
            head.append(f"  on {fold_nodes(finding.nodes)}")
        self._print(head)
        self._indented(finding.message)
        for location in finding.locations:
            self._location(location, finding.message)
        for evidence in _shown(finding.evidence):
            self._evidence(evidence, said=evidence.observed in finding.message)
        if finding.remedy:
            self._indented(finding.remedy, label="fix: ", style="green")
        if finding.fix is not None:
            how = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
            self._indented(f"{how} can {finding.fix.description}", indent=7)
        self._print(Text(""))

    def _location(self, location: Location, message: str) -> None:
        where = Text("  --> ", style="blue")
        where.append(f"{clean(location.path)}:{location.line}:{location.column}", style="none")
        if location.note and location.note != message:
            where.append(f"  {clean(location.note)}", style="italic")
        self._print(where)
        if location.snippet:
            number = str(location.line)
            cut, caret, width = _window(location, self._style.width - len(number) - 6)
            line = Text(f"  {number} | ", style="blue")
            line.append(cut, style="none")
            self._print(line)
            mark = Text(f"  {' ' * len(number)} | ", style="blue")
            mark.append(" " * caret + "^" * width, style="bold red")
            self._print(mark)

    def _evidence(self, evidence: Evidence, *, said: bool) -> None:
        where = f" on {evidence.node}" if evidence.node else ""
        expected = f"; expected {evidence.expected}" if evidence.expected else ""
        # What the message already quotes is not repeated, unless there is an expectation to hold against it.
        if not said or len(evidence.observed) <= self._style.width // 2:
            self._indented(f"seen{where}: {clean(evidence.observed)}{clean(expected)}")
        if evidence.command:
            # Not wrapped: it is there to be copied.
            self._print(Text(f"    try: {clean(evidence.command)}"))

    def _suppressed(self) -> None:
        suppressed = self._report.suppressed
        # What was decided for one place or for a reason is listed; what was swept aside in bulk is counted.
        listed = [f for f in suppressed if self._style.verbosity > 0 or f.suppressed_by not in _IN_BULK]
        for finding in listed:
            where = "".join(f" at {place.path}:{place.line}" for place in finding.locations[:1])
            on = f" on {fold_nodes(finding.nodes)}" if finding.nodes else ""
            self._indented(f"suppressed {finding.id}{where}{on}: {finding.suppression}", indent=0, hanging=2)
        for why, count in Counter(f.suppression for f in suppressed if f not in listed).items():
            self._indented(f"{_count(count, 'finding')} {why} (-v lists them)", indent=0, hanging=2)
        for remark in self._report.coverage.remarks:
            where = f"{remark.location.path}:{remark.location.line}: " if remark.location else ""
            self._note(f"{where}{remark.message}")
        for idle in self._report.coverage.idle_suppressions:
            self._note(f"{idle.path}:{idle.line} suppresses {self._idle(idle.names)}")
        for broken in self._report.coverage.broken:
            self._note(f"{broken.where} of {broken.plugin} cannot be loaded: {broken.why}")

    def _idle(self, names: Sequence[str]) -> str:
        """Why a comment suppressed nothing, as far as can be told."""
        if not names:
            return "nothing, because it names no rule; write `# preflight: ignore[ID] reason`"
        judged = {word for outcome in self._report.outcomes for word in (outcome.id, outcome.name)}
        found = any(name.upper() in judged or name.lower() in judged for name in names)
        return ", ".join(names) + (", which found nothing" if found else ", which is no rule or check that was asked")

    def _not_told(self) -> None:
        not_told = self._report.coverage.not_told
        if not not_told:
            return
        required = [outcome for outcome in not_told if outcome.required]
        # Where there was nothing to do, why that is so is all there is to say.
        short = not_told if self._report.exit_code == ExitCode.NOTHING_TO_DO else required
        listed = not_told if self._style.verbosity > 0 else short[:_MOST_LISTED]
        if listed:
            self._print(Text("could not be told:", style="bold"))
            for same in _by_reason(listed):
                names = ", ".join(dict.fromkeys(f"{o.id} {o.name}" for o in same))
                subjects = tuple(dict.fromkeys(o.subject for o in same))
                self._indented(f"{names} ({fold_nodes(subjects)}): {same[0].reason}", hanging=2)
                for location in dict.fromkeys(place for o in same for place in o.locations[:1]):
                    self._print(Text(f"  --> {location.path}:{location.line}:{location.column}", style="blue"))
        rest = len(not_told) - len(listed)
        if rest:
            more = " more" if listed else ""
            them = "it" if rest == 1 else "them"
            self._indented(f"{rest}{more} could not be told and did not have to be (-v lists {them})", indent=0)
        self._print(Text(""))

    def _passed(self) -> None:
        passed = [outcome for outcome in self._report.outcomes if outcome.status is Status.PASS]
        if self._style.verbosity > 0:
            for outcome in self._report.outcomes:
                if outcome.status in (Status.PASS, Status.NOT_APPLICABLE):
                    self._outcome(outcome)
        if not passed:
            return
        for stage, title in _PASSED.items():
            here = [outcome for outcome in passed if outcome.stage == stage]
            if here:
                self._listed(f"passed {title}: ", _by_area(here))
                if stage in ("link", "smoke"):
                    for subject in dict.fromkeys(outcome.subject for outcome in here):
                        self._indented(subject, style="green")
        self._left_out()

    def _left_out(self) -> None:
        """A whole stage that does not apply to the job is said, because a reader would take it for granted."""
        for stage, what in _WITHOUT.items():
            here = [outcome for outcome in self._report.outcomes if outcome.stage == stage]
            if here and all(outcome.status is Status.NOT_APPLICABLE for outcome in here):
                reasons = "; ".join(dict.fromkeys(outcome.reason for outcome in here if outcome.reason))
                self._indented(f"{what}: {reasons}", indent=0, hanging=2)

    def _listed(self, label: str, parts: Sequence[str]) -> None:
        """`parts` behind each other, as many on a line as there is room for, none of them cut."""
        line = label
        for number, part in enumerate(parts, 1):
            piece = part + ("," if number < len(parts) else "")
            if line != label and len(line) + len(piece) > self._style.width:
                self._print(Text(line.rstrip(), style="green"))
                line = " " * len(label)
            line += piece + " "
        self._print(Text(line.rstrip(), style="green"))

    def _outcome(self, outcome: Outcome) -> None:
        reason = f": {outcome.reason}" if outcome.reason else ""
        self._indented(
            f"{outcome.status.value} {outcome.id} {outcome.name} ({outcome.subject}){reason}", indent=0, hanging=2
        )

    def _grounds(self) -> None:
        """What the verdict rests on, where that is less than a reader would take for granted."""
        jobs = self._report.jobs
        if self._report.inputs and not self._report.findings and not any(job.launches for job in jobs):
            self._note(
                "no launch was recognised in these files, so there was little to judge; torchrun, deepspeed, "
                "paddle.distributed.launch, srun and mpirun are read"
            )
        for job in jobs:
            names = [file.path for file in job.files]
            if job.probable and any(place.path in names for f in self._report.findings for place in f.locations):
                self._note(
                    f"{job.name} were taken for one job by guess, so what is wrong between them counts as a warning; "
                    "name the files together to have them judged as one job"
                )

    def _verdict(self) -> None:
        report = self._report
        counts = Counter(finding.severity for finding in report.findings)
        said = [
            f"{counts[s]} {s.value}{'s' if counts[s] != 1 else ''}"
            for s in Severity
            if counts[s] and s is not Severity.INFO
        ]
        if counts[Severity.INFO]:
            said.append(f"{counts[Severity.INFO]} info")
        required = sum(outcome.required for outcome in report.coverage.not_told)
        if required:
            said.append(f"{required} that had to be told and could not")
        line = Text(report.verdict.value.upper(), style=_VERDICTS[report.verdict])
        line.append(f"  {', '.join(said) or 'nothing found'}", style="none")
        line.append(f"; {_count(len(report.inputs), 'file')} in {_count(len(report.jobs), 'job')}", style="none")
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
        self._print(line)

    def _note(self, text: str) -> None:
        self._indented(f"note: {text}", indent=0, hanging=2)

    def _indented(self, text: str, *, indent: int = 2, hanging: int = 0, label: str = "", style: str = "") -> None:
        """`text` wrapped; `hanging` is how much further than its first line the others stand."""
        cleaned = clean(text, keep_newlines=True)
        width = max(20, self._style.width - indent - hanging - len(label))
        first = True
        for paragraph in cleaned.split("\n"):
            for piece in Text(paragraph).wrap(self._console, width):
                line = Text(" " * (indent if first else indent + hanging))
                line.append(label if first else " " * len(label), style=style)
                line.append(piece.plain.rstrip(), style="none" if label else style)
                self._print(line)
                first = False

    def _print(self, text: Text) -> None:
        # The last door: whatever a file, a node or a recording put into a line, no control character passes.
        if clean(text.plain) != text.plain:
            text = Text(clean(text.plain))
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False)


def _by_reason(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Outcomes that could not be told for one reason and of one thing, or by one rule, stand together."""
    by_rule: dict[tuple[object, ...], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: (not o.required, o.id, o.reason)):
        by_rule.setdefault((outcome.required, outcome.id, outcome.reason), []).append(outcome)
    found: dict[tuple[object, ...], list[Outcome]] = {}
    for same in by_rule.values():
        about = tuple(dict.fromkeys(outcome.subject for outcome in same))
        found.setdefault((same[0].required, same[0].reason, about), []).extend(same)
    return list(found.values())


def _by_area(outcomes: Sequence[Outcome]) -> list[str]:
    """`LNK 2`: how many rules or checks of each area, and of how many subjects where that is more."""
    found: list[str] = []
    for area in sorted({outcome.id[:3] for outcome in outcomes}):
        here = [outcome for outcome in outcomes if outcome.id[:3] == area]
        ids = len({outcome.id for outcome in here})
        found.append(f"{area} {ids}" + (f" ({len(here)} subjects)" if len(here) > ids else ""))
    return found


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _shown(evidence: Sequence[Evidence]) -> Sequence[Evidence]:
    """Evidence worth a line each; many nodes that saw the same are shown once."""
    seen: dict[tuple[str, str], list[Evidence]] = {}
    for item in evidence:
        seen.setdefault((item.observed, item.expected), []).append(item)
    folded: list[Evidence] = []
    for items in seen.values():
        first = items[0]
        nodes = tuple(dict.fromkeys(item.node for item in items if item.node))
        folded.append(
            Evidence(first.fact, first.observed, first.expected, first.command, fold_nodes(nodes), first.at_s)
        )
    return folded[:8]


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
    right, used = left, 0
    while right < len(shown) and used + cells[right] <= room:
        used += cells[right]
        right += 1
    cut_before = "…" if left > blank else ""
    cut_after = "…" if right < len(shown) else ""
    caret = len(cut_before) + sum(cells[left:start])
    marked = max(1, sum(cells[start : min(end, right)]))
    return cut_before + "".join(shown[left:right]) + cut_after, caret, marked
