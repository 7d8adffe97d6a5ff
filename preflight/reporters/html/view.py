"""View models of the page: everything that templates read, in the words to show.

All values are plain, unescaped text; templates do the escaping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from preflight.reporters.html.drawing.shapes import Drawing, TableView


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value. `folded` are names in folded form that search expands."""

    name: str
    value: str
    folded: str = ""


@dataclass(frozen=True, slots=True)
class VerdictView:
    """The verdict: `kind` selects colour and sign, `word` and `sentence` give it, `counts` are its numbers."""

    kind: str
    word: str
    sentence: str
    counts: str
    #: What a reader must know before trusting the verdict: an injected fault, an interruption.
    warnings: tuple[str, ...] = ()
    #: The cost that a no-go avoided, and the source of each number.
    avoided: str = ""
    avoided_sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandView:
    """A command to paste, and the nodes to run it on; no nodes means the reader's own machine."""

    line: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. `target` is the anchor of its finding, if there is one."""

    title: str
    text: str = ""
    commands: tuple[CommandView, ...] = ()
    target: str = ""
    #: Number of further findings of the same rule.
    same_count: int = 0
    #: File and line, if known.
    where: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, split into the text before, inside and after the mark."""

    path: str
    line: int
    column: int
    before: str = ""
    marked: str = ""
    after: str = ""
    note: str = ""

    @property
    def has_text(self) -> bool:
        """Return whether there is a line to show."""
        return bool(self.before or self.marked or self.after)


@dataclass(frozen=True, slots=True)
class ObservationView:
    """What was observed, where, what was expected instead, and a command that shows it."""

    observed: str
    node: str = ""
    expected: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A line before and after a fix; only the edited pieces if the whole line is unknown."""

    where: str
    before: str
    old: str
    new: str
    after: str


@dataclass(frozen=True, slots=True)
class FixView:
    """What `--fix` would change."""

    description: str
    changes: tuple[Change, ...]
    command: str


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding. `anchor` is stable between runs; `sides` are locations that belong together."""

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
    seen: tuple[ObservationView, ...]
    remedy: str
    commands: tuple[CommandView, ...]
    fix: FixView | None
    explain: str
    #: Why it does not count; empty for a finding that does.
    suppression: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a list: what, its subject, the reason, and the location in a file."""

    what: str
    subject: str = ""
    why: str = ""
    where: str = ""
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries under one heading; `open` groups are expanded at first, `bulk` ones are not printed on paper."""

    title: str
    entries: tuple[Entry, ...]
    note: str = ""
    open: bool = False
    bulk: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the run: how long it took, or why it did not run."""

    name: str
    took: str
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class CoverageView:
    """What was checked and what was not."""

    passed: int
    failed: int
    unknown: int
    not_applicable: int
    not_looked_at: tuple[Group, ...]
    looked_at: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A way to start without some nodes: a command, or text about an option."""

    text: str
    is_command: bool


@dataclass(frozen=True, slots=True)
class NodesView:
    """The nodes: which are fit, how to start without the others, and a table of all of them."""

    table: TableView
    summary: tuple[Fact, ...]
    starts: tuple[Start, ...]


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
    #: Number of findings that no step mentions.
    more_steps: int
    findings: tuple[FindingView, ...]
    severities: tuple[tuple[str, int], ...]
    #: Number of findings per rule, if there are many.
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
