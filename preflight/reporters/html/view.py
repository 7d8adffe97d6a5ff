"""What the page shows, in the words it shows it in: the only thing that templates read.

Everything here is plain text, unescaped: escaping is the templates' work, and theirs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from preflight.lazy.dataclasses import dataclass
from preflight.reporters.html.drawing.view import Drawing, TableView


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what stands beside it. `folded` are names in short form that a search has to find one by one."""

    name: str
    value: str
    folded: str = ""


@dataclass(frozen=True, slots=True)
class VerdictView:
    """The answer: `kind` chooses colour and sign, `word` is the answer, `sentence` what it means, `counts` of what."""

    kind: str
    word: str
    sentence: str
    counts: str
    #: What a reader must know before believing the verdict: a drill, an interruption.
    warnings: tuple[str, ...] = ()
    #: What a no-go saved, and where each number of that comes from.
    saved: str = ""
    saved_whence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandView:
    """A line to paste, and on which nodes; without any where the reader sits."""

    line: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. `target` is the anchor of the finding behind it, if there is one."""

    title: str
    text: str = ""
    commands: tuple[CommandView, ...] = ()
    target: str = ""
    #: So many further findings of the same rule.
    alike: int = 0
    #: File and line, if there are such.
    where: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, cut into what stands before, in and behind the marked part."""

    path: str
    line: int
    column: int
    before: str = ""
    marked: str = ""
    after: str = ""
    note: str = ""

    @property
    def has_text(self) -> bool:
        """Whether there is a line to show."""
        return bool(self.before or self.marked or self.after)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen, where, what was expected instead, and a command to see it oneself."""

    observed: str
    node: str = ""
    expected: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A line as it is and as a fix would leave it; only the pieces where the whole line is not known."""

    where: str
    before: str
    old: str
    new: str
    after: str


@dataclass(frozen=True, slots=True)
class FixView:
    """What `--fix` would do."""

    description: str
    changes: tuple[Change, ...]
    command: str


@dataclass(frozen=True, slots=True)
class FindingView:
    """One fault. `anchor` is stable between runs, `sides` are places that belong next to each other."""

    anchor: str
    id: str
    name: str
    severity: str
    confidence: str
    message: str
    subject: str
    nodes: str
    node_count: int
    sides: tuple[Place, ...]
    seen: tuple[Seen, ...]
    remedy: str
    commands: tuple[CommandView, ...]
    fix: FixView | None
    explain: str
    #: Why it does not count; empty for a finding that does.
    suppression: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a list: what, of whom, why, and where in a file."""

    what: str
    subject: str = ""
    why: str = ""
    where: str = ""
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries under one heading; `open` where a reader should not have to ask for them, `bulk` if not even on paper."""

    title: str
    entries: tuple[Entry, ...]
    note: str = ""
    open: bool = False
    bulk: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the run: how long it took, or why it did not take place."""

    name: str
    took: str
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class CoverageView:
    """What was looked at and what was not."""

    passed: int
    failed: int
    unknown: int
    not_applicable: int
    not_looked_at: tuple[Group, ...]
    looked_at: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to start without some nodes: a command, or words about an option."""

    text: str
    is_command: bool


@dataclass(frozen=True, slots=True)
class NodesView:
    """The nodes: who is fit, what to do without those who are not, and a table of all of them."""

    table: TableView
    summary: tuple[Fact, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the table of contents."""

    anchor: str
    title: str
    count: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    title: str
    job: str
    verdict: VerdictView
    about: tuple[Fact, ...]
    steps: tuple[Step, ...]
    #: Of further findings that no step names.
    more_steps: int
    findings: tuple[FindingView, ...]
    severities: tuple[tuple[str, int], ...]
    #: How often each rule found something, where there is much.
    by_rule: TableView | None
    nodes: NodesView | None
    drawings: tuple[tuple[str, Sequence[Drawing]], ...]
    coverage: CoverageView
    suppressed: tuple[FindingView, ...]
    notes: tuple[str, ...]
    files: tuple[Fact, ...]
    stages: tuple[Stage, ...]
    tool: str
    sections: tuple[Section, ...]
