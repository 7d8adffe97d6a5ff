"""How a rule or check says what it found, and what is known about it: the contract plugin authors meet.

A rule is a pure function from a job to verdicts; a check is a plan and a judgement, both pure. Neither touches a
clock, a file, the network or a log. One decorated function with a docstring is a whole rule:

    @rule("RDV001", "rendezvous-on-loopback", severity=Severity.ERROR, evidence=("pytorch/pytorch#73656",))
    def rendezvous_on_loopback(job: Job) -> Iterator[Verdict]:
        '''...docstring with the fixed headings...'''
        for launch in job.launches:
            ...
            yield failed(launch.id, message, at=claim, remedy="...")
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, fields
from typing import TYPE_CHECKING, TypeAlias

from preflight.job import Claim, Job, Launch, Note, Span
from preflight.job.span import LONGEST_SNIPPET
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import PROFILES, Command, Confidence, Edit, Evidence, Fix, Location, Severity, Status

if TYPE_CHECKING:
    from preflight.exhibit import Exhibit
    from preflight.recording import Facts, Fleet
    from preflight.request import Request

_ID = lazy_pattern(r"[A-Z]{3}[0-9]{3}")
_NAME = lazy_pattern(r"[a-z0-9]+(-[a-z0-9]+)*")

_MATURITIES = ("preview", "stable")
_FIXES = ("none", "safe", "unsafe")

#: The docstring of every rule and check has these headings, in this order.
HEADINGS = ("What it checks", "Why it matters", "Example", "Fix", "Known limits", "Evidence")


@dataclass(frozen=True, slots=True)
class _Described:
    """What an author says about a rule or check, declared once for `Meta` and for both decorators."""

    id: str
    name: str
    _: KW_ONLY
    severity: Severity
    confidence: Confidence = Confidence.HIGH
    profile: str = "default"
    needs: Sequence[str] = ()
    applies_to: str = ""
    since: str = "0.1"
    stage: str = "preview"
    fix: str = "none"
    evidence: Sequence[str]

    @property
    def area(self) -> str:
        """The three letters that name the subject."""
        return self.id[:3]

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"{self.id!r} is no rule id: three capital letters and three digits are expected")
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no rule name: lower-case words joined by hyphens are expected")
        if self.severity is Severity.ERROR and self.confidence is not Confidence.HIGH:
            raise ValueError(f"{self.id}: only a rule of high confidence may be an error")
        for said, known in ((self.profile, PROFILES), (self.stage, _MATURITIES), (self.fix, _FIXES)):
            if said not in known:
                raise ValueError(f"{self.id}: {said!r} is none of {', '.join(known)}")
        if not self.evidence:
            raise ValueError(f"{self.id}: a public issue or document is needed as evidence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta(_Described):
    """What is known about a rule or check before it runs.

    `profile` says from which strictness on it runs: `gate` (only what stops a job), `default`, `pedantic`.
    `stage` is `preview` until its false-alarm rate is known, then `stable`. `doc` is its docstring.
    """

    doc: str


def _meta(described: _Described, function: Callable[..., object]) -> Meta:
    said = {item.name: getattr(described, item.name) for item in fields(_Described)}
    said["needs"], said["evidence"] = tuple(described.needs), tuple(described.evidence)
    return Meta(**said, doc=function.__doc__ or "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One statement of a rule or check about one subject; build it with `passed`, `failed`, `unknown`."""

    status: Status
    subject: str
    message: str = ""
    remedy: str = ""
    locations: tuple[Location, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    nodes: tuple[str, ...] = ()
    required: bool = False
    severity: Severity | None = None
    confidence: Confidence | None = None
    fix: Fix | None = None
    commands: tuple[Command, ...] = ()
    waits_at: str = ""


Place: TypeAlias = "Claim | Span | Launch | Note | Location"


def passed(subject: str) -> Verdict:
    """The subject was looked at and nothing is wrong with it."""
    return Verdict(Status.PASS, subject)


def not_applicable(subject: str, reason: str) -> Verdict:
    """The subject is not of the kind this rule or check speaks of."""
    return Verdict(Status.NOT_APPLICABLE, subject, reason)


def unknown(subject: str, reason: str, *, required: bool = False, at: Place | None = None) -> Verdict:
    """It could not be told, for this reason. `required` makes the whole verdict incomplete."""
    locations = (place(at),) if at is not None else ()
    return Verdict(Status.UNKNOWN, subject, reason, locations=locations, required=required)


def failed(
    subject: str,
    message: str,
    *,
    at: Place | Evidence,
    also: Sequence[Place | tuple[Place, str] | Evidence] = (),
    nodes: Iterable[str] = (),
    remedy: str,
    severity: Severity | None = None,
    confidence: Confidence | None = None,
    fix: Fix | None = None,
    run: Sequence[Command] = (),
    waits_at: str = "",
) -> Verdict:
    """A fault, with its primary place or fact first; a fault without one cannot be stated.

    Args:
        message: what was seen and what was expected, quoting the user's own spelling.
        at: the claim, span or fact to point at first.
        also: further places, each alone or with a note, and further facts.
        remedy: what to do, as concretely as it can be said.
        severity, confidence: only to be milder than the rule's own.
        fix: what could be edited, built with `mend`; the rule's own `fix` says how safe it is at worst.
        run: what to paste into a shell, built with `command` or `root_command`; one with a name in it that a terminal
            would not take as it is is left out.
        waits_at: where every rank would wait for a time-out: `rendezvous` or `collective`; empty where none would.

    Where a claim takes its value from a variable, the assignment becomes a further place ("set here"), and the
    remedy names that of the primary claim.
    """
    locations: list[Location] = []
    evidence: list[Evidence] = []
    for item in (at, *also):
        if isinstance(item, Evidence):
            evidence.append(item)
        elif isinstance(item, tuple):
            locations.append(place(item[0], item[1]))
        else:
            locations.append(place(item))
    # One claim may stand for two things in one place; it is pointed at once.
    locations = list(dict.fromkeys(locations))
    origins = _origins((at, *also))
    locations.extend(location for location in origins if not any(_same_place(location, known) for known in locations))
    return Verdict(
        Status.FAIL,
        subject,
        message,
        remedy + _set_elsewhere(at, remedy),
        tuple(locations),
        tuple(evidence),
        tuple(nodes),
        severity=severity,
        confidence=confidence,
        fix=fix,
        commands=tuple(one for one in run if one.can_be_pasted),
        waits_at=waits_at,
    )


def command(*words: str, on: Iterable[str] = ()) -> Command:
    """These words as one line for a shell, quoted, to be run on these nodes, or by the reader where they sit."""
    return Command(shlex.join(words), tuple(on))


def root_command(*words: str, on: Iterable[str] = ()) -> Command:
    """The same for what only root may do."""
    return command("sudo", *words, on=on)


def mend(description: str, *edits: Edit | None, safe: bool) -> Fix | None:
    """A fix made of these edits; None, which is no fix, where one of them cannot be made.

    `description` tells in the imperative what is done; see `Fix` for what is safe.
    """
    made = tuple(edit for edit in edits if edit is not None)
    return Fix(description, made, safe) if made and len(made) == len(edits) else None


def reworded(item: Claim | Span, old: str, new: str) -> Edit | None:
    """The edit that puts `new` in the place of `old` in what a claim or span covers.

    None where that does not hold `old` exactly once on one line as it is shown: it was cut, goes over several lines,
    or names a variable that is set elsewhere.
    """
    span = item if isinstance(item, Span) else item.span
    text = span.snippet[span.column - 1 : span.end_column - 1]
    if not old or text.count(old) != 1 or span.line != span.end_line or len(span.snippet) >= LONGEST_SNIPPET:
        return None
    return Edit(span.path, span.line, span.column + text.index(old), old, new)


def dropped(item: Claim | Span) -> Edit | None:
    """The edit that takes a word of a command line out, with the blank before it; None as for `reworded`."""
    span = item if isinstance(item, Span) else item.span
    before = span.snippet[: span.column - 1]
    text = span.snippet[span.column - 1 : span.end_column - 1]
    if not text or len(span.snippet) >= LONGEST_SNIPPET or span.line != span.end_line:
        return None
    if not before.strip():
        # Alone on a line of a command that goes on behind it, it takes the line along.
        if span.snippet[span.end_column - 1 :].strip() == "\\":
            return Edit(span.path, span.line, 1, f"{span.snippet}\n", "")
        return Edit(span.path, span.line, span.column, text, "")
    # An entry of a list in YAML or JSON is no word of a command line.
    if not before[-1].isspace() or before.rstrip()[-1] in "-[,:{":
        return None
    return Edit(span.path, span.line, span.column - 1, before[-1] + text, "")


def _origins(items: Iterable[Place | tuple[Place, str] | Evidence]) -> list[Location]:
    """Where the variables that the claims name were assigned, each place once."""
    claims = [item[0] if isinstance(item, tuple) else item for item in items]
    spans = dict.fromkeys(claim.origin for claim in claims if isinstance(claim, Claim) and claim.origin is not None)
    return [Location.at(span, "set here") for span in spans]


def _same_place(one: Location, other: Location) -> bool:
    return (one.path, one.line, one.column) == (other.path, other.line, other.column)


def _set_elsewhere(at: Place | Evidence, remedy: str) -> str:
    """Which assignment is to be edited, where the primary claim names a variable and the remedy does not say it."""
    assignment = assigned(at) if isinstance(at, Claim) else ""
    if not assignment or not remedy or assignment in remedy:
        return ""
    return f" The value is set in {assignment}."


def assigned(claim: Claim) -> str:
    """`` `NNODES=8` (train.sbatch:4)`` where the claim's value was assigned; empty where no assignment is known."""
    span = claim.origin
    if span is None or span.line != span.end_line or span.end_column - 1 > len(span.snippet):
        return ""
    text = span.snippet[span.column - 1 : span.end_column - 1]
    return f"`{text}` ({span.path}:{span.line})" if "=" in text else ""


def place(item: Place, note: str = "") -> Location:
    """The location of a claim, span, launch or note."""
    if isinstance(item, Location):
        return item
    if isinstance(item, Span):
        return Location.at(item, note)
    if isinstance(item, Note):
        return Location.at(item.span, note or item.message)
    return Location.at(item.span, note)


JudgeJob: TypeAlias = "Callable[[Job], Iterable[Verdict]]"
PlanRequests: TypeAlias = "Callable[[Job, Fleet, Facts], Iterable[Request]]"
JudgeFacts: TypeAlias = "Callable[[Job, Fleet, Facts], Iterable[Verdict]]"
#: What a pack names in `EXHIBITS` beside `PACK`: pure, and silent where there is nothing to show.
MakeExhibits: TypeAlias = "Callable[[Job, Fleet, Facts], Iterable[Exhibit]]"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: judges a job from its claims alone."""

    meta: Meta
    judge: JudgeJob


#: Stages of `check`, in the order they run; a check sees the facts of its own and all earlier stages.
STAGES = ("node", "link", "smoke")


@dataclass(frozen=True, slots=True)
class Check:
    """A check: plans which facts the job makes necessary, and judges job and facts.

    `probes` are all the functions its requests may name; `cost` says in words what they do on a
    node and how long that takes, `without_root` what cannot be seen without privilege (empty: nothing is lost).
    `follow_up` plans what only the facts of its own stage make necessary (a second look at what failed). `reads` are
    the probes of other checks whose facts it looks at, too.
    """

    meta: Meta
    plan: PlanRequests
    judge: JudgeFacts
    when: str = "node"
    probes: tuple[Callable[..., object], ...] = ()
    cost: str = ""
    without_root: str = ""
    follow_up: PlanRequests | None = None
    reads: tuple[Callable[..., object], ...] = ()


@dataclass(frozen=True, slots=True)
class rule(_Described):
    """Make a rule of a function. `evidence` names public issues or documents; there must be one.

    Raises ValueError for a malformed id or name, an error of less than high confidence, or no evidence.
    """

    def __call__(self, judge: JudgeJob) -> Rule:
        """The rule that judges with this function."""
        return Rule(_meta(self, judge), judge)


@dataclass(frozen=True, slots=True, kw_only=True)
class check(_Described):
    """Make a check of its judging function and the function that plans its requests.

    `probes` are the functions that its requests name, those that listen included: their modules are what is shipped
    to nodes for a check of somebody else's. `follow_up` is asked when the requests of the stage have become facts,
    and again after each of its own waves, until it wants nothing new or the stage's time is up. `reads` names the
    probes of other checks whose facts this one plans or judges by: where only its own stage is wanted, as by
    `preflight smoke`, nothing else is asked before.

    Raises ValueError as `rule` does, for a `when` that is none of STAGES, and for no `cost`.
    """

    plan: PlanRequests
    probes: Sequence[Callable[..., object]]
    cost: str
    without_root: str = ""
    when: str = "node"
    follow_up: PlanRequests | None = None
    reads: Sequence[Callable[..., object]] = ()

    def __post_init__(self) -> None:
        _Described.__post_init__(self)
        if not self.cost:
            raise ValueError(f"{self.id}: say what it costs on a node, such as 'reads /proc/mounts'")
        if self.when not in STAGES:
            raise ValueError(f"{self.id}: {self.when!r} is no stage; stages are {', '.join(STAGES)}")

    def __call__(self, judge: JudgeFacts) -> Check:
        """The check that plans with `plan` and judges with this function."""
        return Check(
            _meta(self, judge),
            self.plan,
            judge,
            self.when,
            tuple(self.probes),
            self.cost,
            self.without_root,
            self.follow_up,
            tuple(self.reads),
        )
