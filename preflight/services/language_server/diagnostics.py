"""Findings as diagnostics of an editor, the page and actions of each, and the effect of a word of a file on its
ranks.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lsprotocol import types

from preflight import __version__
from preflight._util.cache import default_folder, is_outside
from preflight._util.sanitize import clean
from preflight.commands import rule_docs
from preflight.commands.fix import Files, plan
from preflight.commands.plan.compose import format_value, setting_of
from preflight.commands.plan.job_plan import LaunchPlan, RankRow, Setting
from preflight.commands.plan.plan_pages import size_of
from preflight.engine.report import Report
from preflight.model.findings import Edit, Finding, Location, Severity
from preflight.model.job import Claim, Job, Launch, Relation
from preflight.model.job.value import ENVIRONMENT_PREFIX, QUANTITIES, SETTING_PREFIX
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Rule
from preflight.plugins.installed import declared_by
from preflight.services.language_server.folder import Folder, JudgedJob, Text, Watch, uri_of

SOURCE = "preflight"
#: Largest number of diagnostics sent per file.
MAX_DIAGNOSTICS = 500
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}


@dataclass(frozen=True, slots=True)
class PlacedFinding:
    """A finding of `job` with a location, and its range in the editor."""

    job: str
    finding: Finding
    range: types.Range


class Places:
    """Ranges of locations in the texts of `folder` as they were judged; each file is read once."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._texts: dict[str, Text] = {}

    def text(self, path: str) -> Text:
        if path not in self._texts:
            self._texts[path] = self._folder.text(path)
        return self._texts[path]

    def range(self, location: Location) -> types.Range:
        return self.text(location.path).range(location.line, location.column, location.end_line, location.end_column)

    def location(self, location: Location) -> types.Location:
        return types.Location(uri_of(self._folder.root / location.path), self.range(location))


def placed_findings(folder: Folder, path: str, places: Places) -> list[PlacedFinding]:
    """Return the findings whose first location is in a file."""
    found: dict[tuple[str, str], PlacedFinding] = {}
    for judged in folder.jobs_with(path):
        for finding in judged.report.findings if judged.report is not None else ():
            if finding.locations and finding.locations[0].path == path:
                placed = PlacedFinding(judged.job.name, finding, places.range(finding.locations[0]))
                found.setdefault((finding.fingerprint, finding.message), placed)
    return list(found.values())


def diagnostics_of(folder: Folder, pages: RulePages) -> dict[str, list[types.Diagnostic]]:
    """Return the diagnostics of all files of open jobs by relative path; empty lists clear old ones."""
    places = Places(folder)
    by_document: dict[str, dict[str, types.Diagnostic]] = {}
    for judged in folder.jobs.values():
        report = judged.report
        if report is None:
            continue
        for path in judged.paths:
            by_document.setdefault(path, {})
        for path, diagnostic in _report_diagnostics(
            report, judged.job.files[0].path if judged.job.files else "", places, pages
        ):
            of_path = by_document.setdefault(path, {})
            if len(of_path) < MAX_DIAGNOSTICS:
                of_path.setdefault(repr(diagnostic), diagnostic)
    return {path: list(of_path.values()) for path, of_path in by_document.items()}


def _report_diagnostics(
    report: Report, first: str, places: Places, pages: RulePages
) -> Iterator[tuple[str, types.Diagnostic]]:
    for finding in report.findings:
        # A fault without a line is shown at the beginning of the job.
        location = finding.locations[0] if finding.locations else Location(first, 1, 1, 1, 1)
        if location.path:
            yield location.path, _diagnostic(finding, location, places, pages)
    seen: set[tuple[str, int, str]] = set()
    for outcome in report.coverage.unknown_outcomes:
        # Other unknown outcomes are listed by `preflight lint -v`; these make the verdict incomplete.
        for location in outcome.locations[:1] if outcome.required else ():
            key = (location.path, location.line, outcome.reason)
            if key not in seen:
                seen.add(key)
                yield (
                    location.path,
                    types.Diagnostic(
                        places.range(location),
                        f"not judged: {clean(outcome.reason, keep_newlines=True)}",
                        types.DiagnosticSeverity.Information,
                        source=SOURCE,
                    ),
                )
    for comment in report.coverage.unused_suppressions:
        span = comment.span
        problem = "suppresses nothing" if comment.names else "names no rule; write `# preflight: ignore[ID] reason`"
        yield (
            span.path,
            types.Diagnostic(
                places.range(Location.at(span)),
                f"this comment {problem}",
                types.DiagnosticSeverity.Hint,
                source=SOURCE,
                tags=[types.DiagnosticTag.Unnecessary],
            ),
        )


def _diagnostic(finding: Finding, location: Location, places: Places, pages: RulePages) -> types.Diagnostic:
    message = clean(finding.message, keep_newlines=True)
    if finding.remedy:
        message += f"\n{clean(finding.remedy, keep_newlines=True)}"
    page = pages.uri(finding.id)
    return types.Diagnostic(
        places.range(location),
        message,
        _SEVERITIES[finding.severity],
        finding.id,
        types.CodeDescription(page) if page else None,
        SOURCE,
        related_information=[
            types.DiagnosticRelatedInformation(places.location(other), clean(other.note or other.snippet.strip()))
            for other in finding.locations[1:]
        ]
        or None,
        data={"fingerprint": finding.fingerprint},
    )


class RulePages:
    """The pages of rules, written on demand to `folder` (default: the user's cache), never inside `roots`."""

    def __init__(self, roots: Sequence[Path], site_rules: tuple[Path, ...] = (), folder: Path | None = None) -> None:
        base = folder or default_folder()
        usable = base is not None and all(is_outside(base, root) for root in roots)
        self._folder = base / f"rules-{__version__}" if base is not None and usable else None
        self._site_rules = site_rules
        self._uris: dict[str, str] | None = None

    def uri(self, id: str) -> str:
        """Return the URI of the page of a rule; empty if it cannot be written."""
        if self._uris is None:
            self._uris = self._write()
        return self._uris.get(id, "")

    def _write(self) -> dict[str, str]:
        if self._folder is None:
            return {}
        items: list[Rule | Check] = list(registry.rules())
        if self._site_rules:
            from preflight.plugins.site.loader import load

            items += declared_by(load(self._site_rules))
        # Another version of a pack has other pages; servers of several editors must not undo each other's.
        state = hashlib.sha256(repr(sorted((item.meta.id, item.meta.doc) for item in items)).encode()).hexdigest()
        folder = self._folder.with_name(f"{self._folder.name}-{state[:12]}")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            rule_docs.write(folder, items)
        except OSError:
            return {}
        return {
            item.meta.id: f"{uri_of(folder / f'{item.meta.area}.md')}#{item.meta.id.lower()}-{item.meta.name}"
            for item in items
        }


FIX_ALL = "source.fixAll.preflight"
KINDS = (types.CodeActionKind.QuickFix.value, FIX_ALL)
#: Largest number of findings per range with actions; each suppression is tried by judging the job with it.
MAX_FINDINGS = 8
_REASON = "say why"
#: Files whose comments begin with `//`; JSON has none.
_SLASHES = frozenset((".json", ".jsonc", ".json5", ".hjson"))


class BufferFiles(Files):
    """The files of a folder as they were judged, with the unsaved texts of the editor; nothing is written."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.root)
        self._folder = folder

    def read(self, path: str) -> bytes:
        """Return the content of a judged file. Raises OSError, or ValueError if it is not regular or is outside."""
        content = self._folder.buffer(path)
        return super().read(path) if content is None else content


def actions(
    folder: Folder, path: str, range: types.Range, only: Sequence[str] | None, versions: Mapping[str, int], watch: Watch
) -> list[types.CodeAction]:
    """Return the actions for a range of a file; `versions` reject edits of outdated texts. Raises Superseded."""
    places = Places(folder)
    findings = placed_findings(folder, path, places)
    found: list[types.CodeAction] = []
    if _wants(only, types.CodeActionKind.QuickFix.value):
        for placed in [one for one in findings if _touches(one.range, range)][:MAX_FINDINGS]:
            found += _fixes(folder, placed, places, versions)
            found += _suppressions(folder, path, placed, places, versions, watch)
    if only is not None and _wants(only, FIX_ALL):
        found += _fix_all(folder, path, places, versions)
    return found


def _fixes(
    folder: Folder, placed: PlacedFinding, places: Places, versions: Mapping[str, int]
) -> Iterator[types.CodeAction]:
    finding = placed.finding
    report = folder.jobs[placed.job].report
    if finding.fix is None or report is None:
        return
    planned = plan(replace(report, findings=(finding,)), BufferFiles(folder), unsafe=True)
    if not planned.fixed:
        return
    what = clean(finding.fix.description)
    yield types.CodeAction(
        f"{what} ({finding.id})"
        if finding.fix.safe
        else f"{what} ({finding.id}, unsafe: may change what the job does)",
        types.CodeActionKind.QuickFix,
        [_diagnostic_of(placed)],
        is_preferred=finding.fix.safe,
        edit=_edit(folder, finding.fix.edits, places, versions),
    )


def _fix_all(folder: Folder, path: str, places: Places, versions: Mapping[str, int]) -> Iterator[types.CodeAction]:
    reports = [judged.report for judged in folder.jobs_with(path) if judged.report is not None]
    fixed = [finding for report in reports for finding in plan(report, BufferFiles(folder), unsafe=False).fixed]
    edits = list(dict.fromkeys(edit for finding in fixed if finding.fix for edit in finding.fix.edits))
    if edits and not _do_overlap(edits):
        yield types.CodeAction(
            "Apply all of preflight's safe fixes", FIX_ALL, edit=_edit(folder, edits, places, versions)
        )


def _do_overlap(edits: Sequence[Edit]) -> bool:
    ordered = sorted(edits, key=lambda edit: (edit.path, edit.line, edit.column))
    return any(
        (first.path, first.line) == (second.path, second.line)
        and first.column + max(1, len(first.expected)) > second.column
        for first, second in itertools.pairwise(ordered)
    )


def _suppressions(
    folder: Folder, path: str, placed: PlacedFinding, places: Places, versions: Mapping[str, int], watch: Watch
) -> Iterator[types.CodeAction]:
    """Yield a comment above the finding if judging the job with that comment suppresses this finding and no other."""
    finding = placed.finding
    text = places.text(path)
    line = finding.locations[0].line
    # A command that backslashes continue cannot contain a comment.
    while line > 1 and text.line(line - 1).endswith("\\"):
        line -= 1
    indent = re.match(r"\s*", text.line(line))
    comment_sign = "//" if os.path.splitext(path)[1].lower() in _SLASHES else "#"  # noqa: PTH122
    ending = "\r\n" if "\r\n" in text.text else "\n"
    comment = f"{indent[0] if indent else ''}{comment_sign} preflight: ignore[{finding.id}] {_REASON}{ending}"
    at = text.offset(line, 1)
    changed = text.text[:at] + comment + text.text[at:]
    judged = folder.judge_with(placed.job, path, changed.encode("utf-8", "replace"), watch)
    before = folder.jobs[placed.job].report
    if judged is None or before is None or not any(one.fingerprint == finding.fingerprint for one in judged.suppressed):
        return
    if {_identity(one) for one in judged.findings} - {_identity(one) for one in before.findings}:
        return
    start = text.position(at)
    edit = types.TextEdit(types.Range(start, start), comment)
    yield types.CodeAction(
        f"Suppress {finding.id} {finding.name} here with a comment",
        types.CodeActionKind.QuickFix,
        [_diagnostic_of(placed)],
        is_preferred=False,
        edit=_workspace_edit(folder, {path: [edit]}, versions),
    )


def _identity(finding: Finding) -> tuple[str, str]:
    return finding.id, finding.fingerprint


def _diagnostic_of(placed: PlacedFinding) -> types.Diagnostic:
    """Return the parts of a diagnostic that identify the diagnostic of an action."""
    return types.Diagnostic(
        placed.range, clean(placed.finding.message, keep_newlines=True), code=placed.finding.id, source="preflight"
    )


def _edit(folder: Folder, edits: Sequence[Edit], places: Places, versions: Mapping[str, int]) -> types.WorkspaceEdit:
    by_path: dict[str, list[types.TextEdit]] = {}
    for edit in edits:
        text = places.text(edit.path)
        start = text.offset(edit.line, edit.column)
        place = types.Range(text.position(start), text.position(start + len(edit.expected)))
        by_path.setdefault(edit.path, []).append(types.TextEdit(place, edit.replacement))
    return _workspace_edit(folder, by_path, versions)


def _workspace_edit(
    folder: Folder, by_path: Mapping[str, list[types.TextEdit]], versions: Mapping[str, int]
) -> types.WorkspaceEdit:
    return types.WorkspaceEdit(
        document_changes=[
            types.TextDocumentEdit(
                types.OptionalVersionedTextDocumentIdentifier(uri_of(Path(folder.root / path)), versions.get(path)),
                list(edits),
            )
            for path, edits in sorted(by_path.items())
        ]
    )


def _wants(only: Sequence[str] | None, kind: str) -> bool:
    return only is None or any(kind == wanted or kind.startswith(f"{wanted}.") for wanted in only)


def _touches(first: types.Range, second: types.Range) -> bool:
    return _at(first.start) <= _at(second.end) and _at(second.start) <= _at(first.end)


def _at(position: types.Position) -> tuple[int, int]:
    return position.line, position.character


#: Largest number of launches, rows of ranks and places in one hover.
MAX_LAUNCHES, MAX_ROWS, MAX_PLACES = 4, 8, 6
#: Quantities that readers state about the text of a program or a command, in addition to the quantity in the text.
_ASIDE = frozenset(
    (
        *("chosen_value", "deepspeed_key", "declared_options", "argument_default", "entry_point"),
        "program_followed",
        "program_outcome",
        "config_of_option",
        *("batch_directive", "batch_option"),
    )
)
#: Quantities that decide how many ranks there are and where.
_LAYOUT = frozenset(
    ("nodes", "processes_per_node", "world_size", "tasks", "tasks_per_node", "ps_servers", "ps_workers")
)
_MARKUP = re.compile(r"([\\`*\[\]<>#!|&_])")


def claims_at(job: Job, path: str, text: Text, line: int, column: int) -> list[Claim]:
    """Return the claims of the word at a place (counted from 1), narrowest first."""
    here = [claim for claim in job.claims if claim.span.path == path and claim.source != "derived"]
    claims = [claim for claim in here if _covers(claim, line, column)]
    if not any(map(_is_named, claims)):
        # The claim of `"train_batch_size": 100` is at the number; a person points at the name.
        written = text.line(line)
        after = [claim for claim in here if claim.span.line == line and claim.span.column > column]
        nearest = min((claim.span.column for claim in after if _is_named(claim)), default=0)
        between = written[column - 1 : max(nearest - 1, 0)]
        if (":" in between or "=" in between) and "," not in between:
            claims += [claim for claim in after if claim.span.column == nearest]
    # A framework's key is often also a quantity, which is more informative and can be set elsewhere.
    named = [claim for claim in claims if _is_named(claim)] or [one for one in claims if not _is_aside(one)]
    smallest = min(map(_size, named), default=None)
    return list({claim.quantity: claim for claim in named if _size(claim) == smallest}.values())


def _is_named(claim: Claim) -> bool:
    return not _is_aside(claim) and not claim.quantity.startswith(SETTING_PREFIX)


def _is_aside(claim: Claim) -> bool:
    return claim.quantity in _ASIDE or claim.quantity.startswith("step_")


def hover_text(
    jobs: Sequence[Job], plans: Sequence[Sequence[LaunchPlan]], path: str, text: Text, at: tuple[int, int]
) -> str:
    """Return Markdown about the word at line and column `at` (from 1); empty if it has no effect."""
    parts: list[str] = []
    for job, launches in zip(jobs, plans, strict=True):
        claims = claims_at(job, path, text, *at)
        for claim in claims[:MAX_PLACES]:
            parts += _claim_sections(job, launches, claim)
    return "\n\n".join(dict.fromkeys(parts))


def _claim_sections(job: Job, plans: Sequence[LaunchPlan], claim: Claim) -> Iterator[str]:
    launches = [launch for launch in job.launches if claim.scope.launch in ("", launch.id)]
    count = 0
    sections: list[str] = []
    for launch in launches:
        setting = setting_of(job, launch, claim.quantity)
        if setting is None:
            continue
        count += 1
        if count > MAX_LAUNCHES:
            continue
        plan = next((one for one in plans if one.id == launch.id), None)
        sections.append("\n".join(_launch_lines(job, launch, plan, claim, setting)))
    if count > MAX_LAUNCHES:
        sections.append(f"{count - MAX_LAUNCHES} more launches of this job also have this finding.")
    if sections:
        yield _heading(claim)
        yield from sections


def _heading(claim: Claim) -> str:
    name = claim.quantity.removeprefix(ENVIRONMENT_PREFIX).removeprefix(SETTING_PREFIX)
    known = QUANTITIES.get(claim.quantity)
    meaning = f": {known.meaning}" if known is not None else ""
    if claim.quantity.startswith(ENVIRONMENT_PREFIX):
        meaning = ": a variable of the ranks"
    return f"**{_plain(name)}**{_plain(meaning)}"


def _launch_lines(job: Job, launch: Launch, plan: LaunchPlan | None, claim: Claim, setting: Setting) -> Iterator[str]:
    program = f" {launch.program}" if launch.program else ""
    size = f", {size_of(plan)}" if plan is not None else ""
    yield f"{_code(launch.launcher + program)} ({_plain(launch.id)}){_plain(size)}"
    unit = f" {setting.unit}" if setting.unit and setting.known else ""
    value = f"{_code(setting.value)}{unit}" if setting.known else _plain(setting.value)
    rows = plan.ranks if plan is not None else ()
    yield f"- value: {value}, {_for_whom(rows, claim)}"
    decider = f"{_code(setting.spelling)} at {_plain(str(setting.place))}"
    here = _code(claim.spelling)
    listed_lines: set[tuple[str, int]] = {_line_of(claim)}
    if (*_at_of(setting), setting.spelling) == (*_line_of(claim), claim.spelling):
        yield f"- decided here by {decider}"
        for other in job.setting(claim.quantity, launch.scope) if claim.relation is Relation.REQUIRES else ():
            if other.value != claim.value:
                listed_lines.add(_line_of(other))
                theirs = _code(format_value(other.value))
                place = _plain(f"{other.span.path}:{other.span.line}")
                yield f"- differs from {_code(other.spelling)} at {place}, which sets {theirs}"
        if claim.origin is not None:
            yield "- assigned at " + _plain(f"{claim.origin.path}:{claim.origin.line}")
        if claim.condition:
            yield f"- only in the branch {_code(claim.condition)}"
    elif format_value(claim.value) == setting.value:
        yield f"- {here} here gives the same value as {decider}, which decides"
    elif claim.relation is Relation.REQUIRES:
        yield f"- {here} here expects another value; {decider} decides"
    elif any(
        one.relation is Relation.REQUIRES and (*_line_of(one), one.spelling) == (*_at_of(setting), setting.spelling)
        for one in job.about(claim.quantity, launch.scope)
    ):
        yield f"- {here} here gives another value than {decider} expects"
    else:
        yield f"- overridden: {here} here has no effect on these ranks; {decider} decides"
    for one in [one for one in setting.overrides if (one.place.path, one.place.line) not in listed_lines][:MAX_PLACES]:
        yield f"- overrides {_code(one.spelling)} at {_plain(str(one.place))}"
    name = claim.quantity.removeprefix(ENVIRONMENT_PREFIX)
    if plan is not None and name in plan.kept_variables:
        yield "- only ranks on the launcher's machine get it; the launcher does not pass it to other hosts"
    if claim.quantity in _LAYOUT:
        yield from (f"- {_row(row)}" for row in rows[:MAX_ROWS])
        if len(rows) > MAX_ROWS:
            yield f"- and {len(rows) - MAX_ROWS} more rows; `preflight plan` shows all"


def _for_whom(rows: Iterable[RankRow], claim: Claim) -> str:
    scope = claim.scope
    if scope.rank is not None:
        return f"for rank {scope.rank}"
    if scope.node:
        return f"for the ranks on {_code(scope.node)}"
    if scope.role:
        return f"for every {_plain(scope.role)}"
    listed = list(rows)
    if len(listed) == 1 and listed[0].role == "rank":
        return f"for rank{'s' if '-' in listed[0].ranks else ''} {_plain(listed[0].ranks)}"
    return "for every rank of this launch"


def _row(row: RankRow) -> str:
    node = f" on node {row.node}" if row.node else ""
    host = f" ({row.host})" if row.host else ""
    devices = f", {row.devices}" if row.devices else ""
    return _plain(f"{row.role} {row.ranks}{node}{host}{devices}")


def _covers(claim: Claim, line: int, column: int) -> bool:
    span = claim.span
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column) and span.snippet != ""


def _size(claim: Claim) -> tuple[int, int]:
    return claim.span.end_line - claim.span.line, claim.span.end_column - claim.span.column


def _line_of(claim: Claim) -> tuple[str, int]:
    return claim.span.path, claim.span.line


def _at_of(setting: Setting) -> tuple[str, int]:
    return setting.place.path, setting.place.line


def _plain(text: str) -> str:
    """Return text of a file in Markdown without links, pictures or HTML."""
    return _MARKUP.sub(r"\\\1", clean(text))


def _code(text: str) -> str:
    """Return text of a file as code in Markdown."""
    code = clean(text).strip()[:200]
    if not code:
        return "(empty)"
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {code} {fence}" if longest else f"`{code}`"


#: Largest number of places in one answer.
MAX_LOCATIONS = 200


def definitions(folder: Folder, path: str, at: tuple[int, int]) -> list[types.Location]:
    """Return the places that give a place its meaning: a contradiction, an overriding claim, an assignment."""
    places = Places(folder)
    found: list[Location] = []
    for judged in folder.jobs_with(path):
        found += _other_places(judged, path, at)
        for claim in claims_at(judged.job, path, places.text(path), *at):
            found += _sources(judged.job, claim)
    return _to_locations([one for one in found if not _contains(one, path, at)], places)


def references(folder: Folder, path: str, at: tuple[int, int]) -> list[types.Location]:
    """Return every place of the job that states the same quantity or setting, and the places of findings about it."""
    places = Places(folder)
    found: list[Location] = []
    for judged in folder.jobs_with(path):
        for claim in claims_at(judged.job, path, places.text(path), *at):
            found += [Location.at(one.span) for one in judged.job.about(claim.quantity) if _is_written(one)]
        found += _other_places(judged, path, at)
    return _to_locations(found, places)


def _other_places(judged: JudgedJob, path: str, at: tuple[int, int]) -> Iterator[Location]:
    for finding in judged.report.findings if judged.report is not None else ():
        if any(_contains(location, path, at) for location in finding.locations):
            yield from finding.locations


def _sources(job: Job, claim: Claim) -> Iterator[Location]:
    for launch in job.launches:
        if claim.scope.launch not in ("", launch.id):
            continue
        for winner in job.value_claims(claim.quantity, launch.scope):
            for written in (winner, *winner.because) if winner.source == "derived" else (winner,):
                if _is_written(written) and written.span != claim.span:
                    yield Location.at(written.span)
    if claim.origin is not None:
        yield Location.at(claim.origin)


def _is_written(claim: Claim) -> bool:
    return claim.source != "derived"


def _contains(location: Location, path: str, at: tuple[int, int]) -> bool:
    start, end = (location.line, location.column), (location.end_line, location.end_column)
    return location.path == path and start <= at <= end


def _to_locations(locations: Sequence[Location], places: Places) -> list[types.Location]:
    located = {(one.path, one.line, one.column, one.end_line, one.end_column): one for one in locations if one.path}
    return [places.location(one) for one in list(located.values())[:MAX_LOCATIONS]]
