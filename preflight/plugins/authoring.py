"""The functions with which a rule or check states its result, and its metadata. Authors import them from
`preflight.plugin`.

A rule is a pure function from a job to verdicts; a check is a plan and a judgement, both pure. Neither touches a clock,
a file, the network or a log. One decorated function with a docstring is a whole rule:

    @rule("RDV001", "rendezvous-on-loopback", severity=Severity.ERROR, evidence=("pytorch/pytorch#73656",))
    def rendezvous_on_loopback(job: Job) -> Iterator[Verdict]:
        '''...docstring with the fixed headings...'''
        for launch in job.launches:
            ...
            yield failed(launch.id, message, at=claim, remedy="...")

The module also caches results that many checks compute from the same job or the same facts.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar, cast, overload

from preflight._util import toml
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.configuration import STAGES
from preflight.model.findings import PROFILES, Command, Confidence, Edit, Evidence, Fix, Location, Severity, Status
from preflight.model.job import Claim, Job, Launch, Note, Scope, Span
from preflight.model.recording import Facts
from preflight.plugins.claim_text import argument_of, format_assignment, quoted, why_unresolved

if TYPE_CHECKING:
    from preflight.model.charts import Chart
    from preflight.model.recording import Facts, Fleet
    from preflight.model.requests import Request


T = TypeVar("T")

_ID = re.compile(r"[A-Z]{3}[0-9]{3}")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


_STAGES_OF_RULES = ("preview", "stable")
_FIX_KINDS = ("none", "safe", "unsafe")

#: The docstring of every rule and check has these headings, in this order.
HEADINGS = ("What it checks", "Why it matters", "Example", "Fix", "Known limits")
#: A public issue (`owner/repo#1`), a URL or a text; or a pair of a description and the issue or URL.
Citation: TypeAlias = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Metadata that an author gives for a rule or check, declared once for `Meta` and for both decorators."""

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
    evidence: Sequence[Citation] = ()

    @property
    def area(self) -> str:
        """Return the three letters of the area."""
        return self.id[:3]

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(
                f"{self.id!r} is not a rule id; expected three capital letters and three digits, as in RDV001"
            )
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a rule name; expected lower-case words joined by hyphens")
        if self.severity is Severity.ERROR and self.confidence is not Confidence.HIGH:
            raise ValueError(f"{self.id}: only a rule of high confidence may be an error")
        for value, allowed_values in ((self.profile, PROFILES), (self.stage, _STAGES_OF_RULES), (self.fix, _FIX_KINDS)):
            if value not in allowed_values:
                raise ValueError(f"{self.id}: {value!r} is not one of {', '.join(allowed_values)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta(_Metadata):
    """Metadata of a rule or check.

    `profile` is the least strict profile in which it runs: `gate` (only for faults that stop a job), `default` or
    `pedantic`. `stage` is `preview` until its false-alarm rate is known, then `stable`. `doc` is its docstring with the
    evidence as its last section.
    """

    doc: str


def _meta(metadata: _Metadata, function: Callable[..., object]) -> Meta:
    values = {item.name: getattr(metadata, item.name) for item in fields(_Metadata)}
    listed_evidence = _data_table(function, "evidence").get(metadata.id, ())
    evidence = tuple(metadata.evidence) or tuple(
        item if isinstance(item, str) else (item[0], item[1]) for item in listed_evidence
    )
    if not evidence:
        raise ValueError(f"{metadata.id}: evidence is missing; name a public issue or document")
    values["needs"], values["evidence"] = tuple(metadata.needs), evidence
    doc = function.__doc__ or ""
    # The indentation of the headings precedes the closing quotes.
    indent = "\n" + doc[len(doc.rstrip()) :].rpartition("\n")[2]
    citations = f";{indent}    ".join(map(_format_citation, evidence))
    return Meta(**values, doc=f"{doc.rstrip()}\n{indent}Evidence:{indent}    {citations}\n" if doc else "")


def _data_table(function: Callable[..., object], name: str) -> dict[str, Any]:
    """Return the content of `data/NAME.toml` of the pack with this function; empty if the file does not exist."""
    return _pack_data(function.__module__.partition(".")[0], name)


@functools.cache
def _pack_data(pack: str, name: str) -> dict[str, Any]:
    module = sys.modules[pack].__file__
    path = Path(module).parent / "data" / f"{name}.toml" if module is not None else None
    return toml.load(path) if path is not None and path.is_file() else {}


def _format_citation(citation: Citation) -> str:
    if isinstance(citation, str):
        return citation
    title, address = citation
    return f"{title}: {address}" if "://" in address else f"{address} ({title})"


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
    processes: tuple[str, ...] = ()


Place: TypeAlias = "Claim | Span | Launch | Note | Location"


def passed(subject: str) -> Verdict:
    """Return the verdict that the subject was judged and has no fault."""
    return Verdict(Status.PASS, subject)


def not_applicable(subject: str, reason: str) -> Verdict:
    """Return the verdict that the rule or check does not apply to the subject."""
    return Verdict(Status.NOT_APPLICABLE, subject, reason)


def unknown(
    subject: str, reason: str, *, nodes: Iterable[str] = (), required: bool = False, at: Place | None = None
) -> Verdict:
    """Return the verdict that the subject could not be judged, for this reason.

    Args:
        nodes: the nodes that remain undecided; empty if the verdict is not about particular nodes.
        required: whether the verdict of the run becomes incomplete.
        at: the location of the input that could not be judged.
    """
    locations = (place(at),) if at is not None else ()
    nodes = tuple(dict.fromkeys(nodes))
    return Verdict(Status.UNKNOWN, subject, reason, locations=locations, nodes=nodes, required=required)


def undecided(
    subject: str, claims: Iterable[Claim], launch: Launch | None = None, *, quantity: str = ""
) -> Verdict | None:
    """Return `unknown` for a subject that depends on a claim without a certain value; None if all values are certain.

    Args:
        launch: the launch of the subject: a claim in the same branch as the launch is certain.
        quantity: the name of the quantity, if the text of the claim does not show it.
    """
    claim_and_reason = why_unresolved(claims, launch)
    if claim_and_reason is None:
        return None
    claim, reason = claim_and_reason
    return unknown(subject, f"{quantity + ': ' if quantity else ''}{quoted(claim)} is unknown: {reason}", at=claim)


def failed(
    subject: str,
    message: str,
    *,
    at: Place | Evidence,
    also: Sequence[Place | tuple[Place, str] | Evidence] = (),
    nodes: Iterable[str] | None = None,
    remedy: str,
    severity: Severity | None = None,
    confidence: Confidence | None = None,
    certain: bool = True,
    fix: Fix | None = None,
    run: Sequence[Command] = (),
    waits_at: str = "",
    processes: Iterable[str] = (),
) -> Verdict:
    """Return the verdict of a fault, with its primary location or fact first.

    If a claim takes its value from a variable, the assignment of the variable becomes a further location ("set here").
    The remedy names the assignment of the primary claim.

    Args:
        message: the observed and the expected value, with the user's own spelling in quotes.
        at: the claim, span or fact of the fault.
        also: further locations, each alone or with a note, and further facts.
        nodes: the nodes that have the fault; by default, the node of the primary fact.
        remedy: the action that fixes the fault, as concrete as possible.
        severity, confidence: a lower value than that of the rule; None for the value of the rule.
        certain: False for a fault that is only likely, which is a warning of medium confidence.
        fix: possible edits, from `make_fix`; they may not be less safe than `fix` of the rule.
        run: the lines to paste into a shell, from `command` or `root_command`. A line with a name that cannot be pasted
            unchanged is dropped.
        waits_at: `rendezvous` or `collective`, if every rank would wait there for a timeout; otherwise empty.
        processes: the processes of the job that the fault is about, by role and index (`rank 2`, `server 0`).
    """
    if not certain:
        severity, confidence = Severity.WARNING, Confidence.MEDIUM
    if nodes is None:
        nodes = (at.node,) if isinstance(at, Evidence) and at.node else ()
    locations: list[Location] = []
    evidence: list[Evidence] = []
    for item in (at, *also):
        if isinstance(item, Evidence):
            evidence.append(item)
        elif isinstance(item, tuple):
            locations.append(place(item[0], item[1]))
        else:
            locations.append(place(item))
    # Two claims may have one location, which is listed once.
    locations = list(dict.fromkeys(locations))
    argument = argument_of(at) if isinstance(at, Claim) else None
    if argument is not None:
        # The script or function is correct; the line that calls it must be edited.
        locations.insert(0, Location.at(argument, "given here"))
    origins = _origins((at, *also))
    locations.extend(
        location
        for location in origins
        if not any(_same_location(location, listed_location) for listed_location in locations)
    )
    return Verdict(
        Status.FAIL,
        subject,
        message,
        remedy + _assignment_hint(at, remedy),
        tuple(locations),
        tuple(evidence),
        tuple(nodes),
        severity=severity,
        confidence=confidence,
        fix=fix,
        commands=tuple(paste_line for paste_line in run if paste_line.can_be_pasted),
        waits_at=waits_at,
        processes=tuple(dict.fromkeys(processes)),
    )


def command(*words: str, on: Iterable[str] = ()) -> Command:
    """Return `words` as one quoted shell line, to run on the nodes `on` or in the reader's own shell."""
    return Command(shlex.join(words), tuple(on))


def root_command(*words: str, on: Iterable[str] = ()) -> Command:
    """Return `words` as a shell line for a command that needs root; see `command`."""
    return command("sudo", *words, on=on)


def make_fix(description: str, *edits: Edit | None, safe: bool) -> Fix | None:
    """Return a fix with these edits; None if an edit cannot be made, or if there are none.

    `description` is an imperative sentence; see `Fix` for the meaning of `safe`.
    """
    possible_edits = tuple(edit for edit in edits if edit is not None)
    return Fix(description, possible_edits, safe) if possible_edits and len(possible_edits) == len(edits) else None


def replace_text(item: Claim | Span, old: str, new: str) -> Edit | None:
    """Return the edit that replaces `old` with `new` in the text of a claim or span.

    Return None if the text is shortened, spans several lines, or does not contain `old` exactly once (it may name a
    variable that is set elsewhere).
    """
    span = item if isinstance(item, Span) else item.span
    text = span.snippet[span.column - 1 : span.end_column - 1]
    if not old or text.count(old) != 1 or span.line != span.end_line or len(span.snippet) >= MAX_SNIPPET_LENGTH:
        return None
    return Edit(span.path, span.line, span.column + text.index(old), old, new)


def delete_word(item: Claim | Span) -> Edit | None:
    """Return the edit that removes a word of a command line and the space before it.

    Return None if the word is shortened, spans several lines, or is not a word of a command line.
    """
    span = item if isinstance(item, Span) else item.span
    text_before = span.snippet[: span.column - 1]
    text = span.snippet[span.column - 1 : span.end_column - 1]
    if not text or len(span.snippet) >= MAX_SNIPPET_LENGTH or span.line != span.end_line:
        return None
    if not text_before.strip():
        # If the word is alone on a line of a command that continues, the line is removed too.
        if span.snippet[span.end_column - 1 :].strip() == "\\":
            return Edit(span.path, span.line, 1, f"{span.snippet}\n", "")
        return Edit(span.path, span.line, span.column, text, "")
    # An entry of a list in YAML or JSON is not a word of a command line.
    if not text_before[-1].isspace() or text_before.rstrip()[-1] in "-[,:{":
        return None
    return Edit(span.path, span.line, span.column - 1, text_before[-1] + text, "")


def _origins(items: Iterable[Place | tuple[Place, str] | Evidence]) -> list[Location]:
    """Return the locations where the variables of the claims were assigned, without duplicates."""
    claims = [item[0] if isinstance(item, tuple) else item for item in items]
    spans = dict.fromkeys(claim.origin for claim in claims if isinstance(claim, Claim) and claim.origin is not None)
    return [Location.at(span, "set here") for span in spans]


def _same_location(item: Location, other: Location) -> bool:
    return (item.path, item.line, item.column) == (other.path, other.line, other.column)


def _assignment_hint(at: Place | Evidence, remedy: str) -> str:
    """Return the assignment to edit as a sentence, if the claim names a variable and the remedy has no such hint."""
    assignment = format_assignment(at) if isinstance(at, Claim) else ""
    if not assignment or not remedy or assignment in remedy:
        return ""
    return f" The value is set in {assignment}."


def place(item: Place, note: str = "") -> Location:
    """Return the location of a claim, span, launch or note."""
    if isinstance(item, Location):
        return item
    if isinstance(item, Span):
        return Location.at(item, note)
    return Location.at(item.span, note or (item.message if isinstance(item, Note) else ""))


JudgeJob: TypeAlias = "Callable[[Job], Iterable[Verdict]]"
PlanRequests: TypeAlias = "Callable[[Job, Fleet, Facts], Iterable[Request]]"
JudgeFacts: TypeAlias = "Callable[[Job, Fleet, Facts], Iterable[Verdict]]"
#: The functions that a pack lists in `charts`. They are pure, and yield nothing if there is nothing to show.
MakeCharts: TypeAlias = "Callable[[Job, Fleet, Facts], Iterable[Chart]]"


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A subject that a rule judges, and the claims that the verdict depends on.

    Args:
        launch: the launch of the subject: a claim in the same branch as the launch is certain.
        quantity: the quantity, for the reason why it is unknown, if the text of a claim does not show it.
        of: further data that the rule needs for its judgement.
    """

    subject: str
    claims: tuple[Claim, ...]
    launch: Launch | None = None
    _: KW_ONLY
    quantity: str = ""
    of: T


AskJob: TypeAlias = "Callable[[Job], Iterable[Question[T]]]"
JudgeQuestion: TypeAlias = "Callable[[Question[T]], Verdict | None]"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, which judges a job only from its claims."""

    meta: Meta
    judge: JudgeJob


@dataclass(frozen=True, slots=True)
class Check:
    """A check, which plans the facts that the job makes necessary, and judges the job and the facts.

    Args:
        meta: its metadata.
        plan: a function that returns its requests.
        judge: a function that returns its verdicts.
        when: its stage.
        probes: all functions that its requests may name.
        cost: a description of their work on a node and its duration.
        without_root: a description of the observations that need privileges; empty if there are none.
        follow_up: a function that returns requests which the facts of its own stage make necessary (a repeated test of
            a failure); None if there are none.
        reads: the probes of other checks whose facts it also uses.
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
class rule(_Metadata, Generic[T]):
    """Turn a function into a rule. `evidence` names public issues or documents; at least one is required, here or in
    `data/evidence.toml` of the pack.

    `each` lists the rule's questions about a job. The function is then called with one question at a time, and returns
    a verdict, or None if it finds no fault. A question whose claims have no certain value is unknown, and the function
    is not called for it. Without `each`, the function is called with the job and yields all verdicts.

    A job without any statement passes if it has a claim about one of the quantities in `passes_with`: the fault would
    be possible there. A name that ends in a dot represents all names that begin with it. The rule does not apply to
    other jobs; `otherwise` is the reason.

    Without `profile`, an error runs in every profile, from `gate` on, and any other rule from `default` on.

    Raises ValueError for a malformed id or name, an error of less than high confidence, or no evidence.
    """

    profile: str = field(default="", kw_only=True)
    otherwise: str = field(default="", kw_only=True)
    passes_with: Sequence[str] = field(default=(), kw_only=True)
    each: AskJob[T] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.profile:
            object.__setattr__(self, "profile", "gate" if self.severity is Severity.ERROR else "default")
        _Metadata.__post_init__(self)

    @overload
    def __call__(self: rule[NoReturn], judge: JudgeJob) -> Rule: ...

    @overload
    def __call__(self, judge: JudgeQuestion[T]) -> Rule: ...

    def __call__(self, judge: Callable[[Any], Any]) -> Rule:
        each = self.each

        @functools.wraps(judge)
        def judge_with_default(job: Job) -> Iterator[Verdict]:
            verdicts: Iterable[Verdict] = judge(job) if each is None else _judge_questions(each(job), judge)
            has_verdict = False
            for verdict in verdicts:
                has_verdict = True
                yield verdict
            if has_verdict:
                return
            if any(_has_claim(job, quantity) for quantity in self.passes_with):
                yield passed(job.name)
            elif self.otherwise:
                yield not_applicable(job.name, self.otherwise)

        return Rule(_meta(self, judge), judge_with_default)


def _has_claim(job: Job, quantity: str) -> bool:
    if quantity.endswith("."):
        return any(claim.quantity.startswith(quantity) for claim in job.claims)
    return bool(job.about(quantity))


def _judge_questions(questions: Iterable[Question[T]], judge: JudgeQuestion[T]) -> Iterator[Verdict]:
    for question in questions:
        verdict = undecided(question.subject, question.claims, question.launch, quantity=question.quantity)
        yield verdict or judge(question) or passed(question.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class check(_Metadata):
    """Turn a judging function, and the function that plans its requests, into a check.

    `probes` are the functions that its requests name, including listeners: their modules are sent to nodes for a
    plugin's check. A plan with an attribute `probes` names them itself. `follow_up` is called when the requests of the
    stage have become facts, and again after each of its own rounds, until it needs nothing new or the stage runs out of
    time. `reads` lists the probes of other checks whose facts this check plans or judges by: if only its own stage
    runs, as in `preflight smoke`, no other requests are sent before it. `cost` and `without_root` may be in
    `data/costs.toml` of the pack instead.

    Raises ValueError as `rule` does, for a `when` that is not one of STAGES, and for missing `probes` or `cost`.
    """

    plan: PlanRequests
    probes: Sequence[Callable[..., object]] | None = None
    cost: str = ""
    without_root: str = ""
    when: str = "node"
    follow_up: PlanRequests | None = None
    reads: Sequence[Callable[..., object]] = ()

    def __post_init__(self) -> None:
        _Metadata.__post_init__(self)
        if self.probes is None:
            object.__setattr__(self, "probes", getattr(self.plan, "probes", None))
        if self.probes is None:
            raise ValueError(f"{self.id}: `probes` is missing; list the functions that its requests name")
        if self.when not in STAGES:
            raise ValueError(f"{self.id}: {self.when!r} is not a stage; use one of {', '.join(STAGES)}")

    def __call__(self, judge: JudgeFacts) -> Check:
        cost_tables = _data_table(judge, "costs")
        cost = self.cost or cost_tables.get("cost", {}).get(self.id, "")
        if not cost:
            raise ValueError(f"{self.id}: `cost` is missing; state its cost on a node, such as 'reads /proc/mounts'")
        return Check(
            _meta(self, judge),
            self.plan,
            judge,
            self.when,
            tuple(self.probes or ()),
            cost,
            self.without_root or cost_tables.get("without_root", {}).get(self.id, ""),
            self.follow_up,
            tuple(self.reads),
        )


F = TypeVar("F", bound=Callable[..., Any])
_COMPARED_TYPES = (str, int, float, bool, Scope, type(None))


def memoize(function: F) -> F:
    """Return a function that stores the results of a pure function by its arguments.

    A result lives as long as the facts among the arguments or, without facts, as the first argument, which is a job.
    Strings, numbers and scopes are compared by value. All other arguments are compared by identity and must not be
    changed. All callers get the same result, so it must not be changed either. Keyword arguments are not accepted.
    """

    @functools.wraps(function)
    def call_with_memory(*args: Any) -> Any:
        owner = next((argument for argument in args if isinstance(argument, Facts)), args[0])
        memory: dict[Any, Any] = owner.__dict__.setdefault("_memo", {})
        key = (function, *[argument if isinstance(argument, _COMPARED_TYPES) else id(argument) for argument in args])
        entry = memory.get(key)
        if entry is None:
            # The arguments are stored with the result, so that no other object can reuse the id of one of them.
            entry = memory[key] = (function(*args), args)
        return entry[0]

    return cast(F, call_with_memory)


def clear_memo(owner: Any) -> None:
    """Release the stored results of a job or of facts, whose cycle only the garbage collector would free."""
    owner.__dict__.pop("_memo", None)
