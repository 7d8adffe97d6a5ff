"""Checks that a site defines in a TOML file, and the judgement of their facts. No code."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from preflight._util.sequences import grouped, join_some
from preflight._util.validation import HYPHENATED, Problem
from preflight.agent.command import CommandResult, command
from preflight.model.configuration import Condition, SiteCheck
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Node, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Check as PluginCheck
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight.plugins.site.conditions import (
    Requirements,
    format_tests,
    passes_all,
    pattern_problem,
    plain,
    problems_of,
    tests_of,
)

MAX_DEADLINE_S = 60.0
_PATH = re.compile(r"[^.]+(\.[^.]+)*")


@dataclass(frozen=True, slots=True)
class Value(Requirements):
    """A value in the JSON that a command prints, and the requirements on it."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    json: Annotated[str, "Its path of keys and indexes from 0: disks.0.free."] = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a site."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    id: Annotated[str, "Three capital letters of your own and three digits: ACM201."] = ""
    name: Annotated[str, "The fault in lower-case words: scratch-not-mounted."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "URL of the document that states the requirement."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "Severity of its findings. Default: warning."] = "warning"
    command: Annotated[list[str], "The command and its arguments, one string each; no shell is used."] = field(
        default_factory=list
    )
    deadline: Annotated[float, "Time limit in seconds, at most 60. Default: 5."] = 5.0
    context: Annotated[bool, "Run it as the ranks run: in their directory, environment and container."] = False
    nodes: Annotated[Literal["every", "first"], "On every node, or only on the node of rank 0."] = "every"
    exit: Annotated[list[int], "Exit codes that pass. Default: 0."] = field(default_factory=lambda: [0])
    warning_exit: Annotated[list[int], "Exit codes that are a warning."] = field(default_factory=list)
    unknown_exit: Annotated[list[int], "Exit codes that mean that the command could not decide."] = field(
        default_factory=list
    )
    output: Annotated[str | None, "Regular expression that must match in its standard output."] = None
    agree: Annotated[bool, "Its standard output must be the same on all nodes."] = False
    value: Annotated[list[Value], "Requirements on values in the JSON on its standard output."] = field(
        default_factory=list
    )
    absent: Annotated[
        Literal["unknown", "fault", "pass"], "The result on a node without this command. Default: unknown."
    ] = "unknown"
    required: Annotated[bool, "Whether the verdict is incomplete without an answer. Default: true."] = True


def problems(item: Check, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yield the errors of the check at `path` of a document that its types cannot express."""
    if not item.command or not item.command[0].strip():
        yield Problem((*path, "command"), '`command` is empty; expected a list such as ["df", "-h"]')
    elif any("\0" in word for word in item.command):
        yield Problem((*path, "command"), "`command` contains a character that an argument cannot contain")
    elif len(item.command) == 1 and " " in item.command[0].strip():
        words = ", ".join(f'"{word}"' for word in item.command[0].split())
        yield Problem(
            (*path, "command"), f"`command` runs without a shell; write each word as its own string: [{words}]"
        )
    if not 0 < item.deadline <= MAX_DEADLINE_S:
        yield Problem((*path, "deadline"), f"`deadline` must be more than 0 and at most {MAX_DEADLINE_S:g} seconds")
    said = [*item.exit, *item.warning_exit, *item.unknown_exit]
    for key, codes in (("exit", item.exit), ("warning-exit", item.warning_exit), ("unknown-exit", item.unknown_exit)):
        for n, code in enumerate(codes):
            if not 0 <= code <= 255:
                yield Problem((*path, key, n), f"{code} is not an exit code; use 0 to 255")
            elif said.count(code) > 1:
                yield Problem((*path, key, n), f"the exit code {code} has two meanings; list it once")
    if item.output is not None and (why := pattern_problem(item.output)):
        yield Problem((*path, "output"), why)
    for n, value in enumerate(item.value):
        if not _PATH.fullmatch(value.json):
            yield Problem(
                (*path, "value", n), "`json` must be the path of a value, such as disks.0.free", at_value=False
            )
        yield from problems_of(value, (*path, "value", n))


def to_configuration(item: Check, file: str) -> SiteCheck:
    """Return the check in the form of a configuration."""
    return SiteCheck(
        id=item.id,
        name=item.name,
        severity=item.severity,
        message=item.message.strip(),
        remedy=item.remedy.strip(),
        evidence=item.evidence.strip(),
        command=tuple(item.command),
        deadline_s=float(item.deadline),
        context=item.context,
        first_node=item.nodes == "first",
        good=tuple(item.exit),
        warning=tuple(item.warning_exit),
        unknown=tuple(item.unknown_exit),
        output=item.output or "",
        agree=item.agree,
        values=tuple(Condition("json", value.json, tests_of(value)) for value in item.value),
        absent=item.absent,
        required=item.required,
        file=file,
    )


#: Time for the agent in addition to the command's own deadline.
_STARTING_S = 2.0
_MAX_SHOWN_LENGTH = 200
#: Longest text for a regular expression, which may take very long on longer text.
_MAX_SEARCHED_LENGTH = 64 * 1024


def checks_of(site_checks: Iterable[SiteCheck]) -> tuple[PluginCheck, ...]:
    """Return the checks that the site declared, as used in a run."""
    return tuple(_build_check(item) for item in site_checks)


def _build_check(item: SiteCheck) -> PluginCheck:
    def plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
        for node in _nodes(item, fleet):
            yield Request(
                probe_name(command),
                node.name,
                _params(item),
                context=item.context,
                required=item.required,
                deadline_s=item.deadline_s + _STARTING_S,
            )

    def judge(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
        return _judge_all(item, facts)

    judge.__doc__ = _doc(item)
    decorate = check(
        item.id,
        item.name,
        plan=plan,
        probes=(command,),
        cost=f"runs `{_line(item)}`, for at most {item.deadline_s:g} s",
        severity=Severity(item.severity),
        profile="gate",
        stage="stable",
        evidence=(item.evidence,),
    )
    return decorate(judge)


def _nodes(item: SiteCheck, fleet: Fleet) -> tuple[Node, ...]:
    reached = fleet.reached
    return tuple(node for node in reached if not item.first_node or node == fleet.master)


def _params(item: SiteCheck) -> dict[str, Any]:
    return {"command": list(item.command), "deadline_s": item.deadline_s}


def _line(item: SiteCheck) -> str:
    """Return the command as it can be pasted into a shell."""
    return shlex.join(item.command)


def _doc(item: SiteCheck) -> str:
    """Return the text of `preflight explain`, under the headings of every check."""
    conditions = [f"its exit code is {' or '.join(map(str, item.good))}"]
    if item.output:
        conditions.append(f"its output matches {item.output}")
    conditions.extend(f"{value.name} in the JSON it prints is {format_tests(value.tests)}" for value in item.values)
    if item.agree:
        conditions.append("its output is the same on all nodes")
    where = "on the node of rank 0" if item.first_node else "on every node"
    paragraphs = (
        item.message,
        f"What it checks:\n    `{_line(item)}` {where}: {'; '.join(conditions)}.",
        f"Why it matters:\n    This site requires it in {item.file or 'its checks'}.",
        "Example:\n    None.",
        f"Fix:\n    {item.remedy}",
        "Known limits:\n    It knows only the exit code and output of the command.",
    )
    return "\n\n".join(paragraphs)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The judgement of one node's answer: `what` is the same for nodes with the same fault, `seen` is this node's
    output.
    """

    status: str
    what: str
    seen: str = ""
    expected: str = ""


def _judge_all(item: SiteCheck, facts: Facts) -> Iterator[Verdict]:
    wanted = _params(item)
    answers: dict[str, CommandResult | Unavailable] = {}
    for row in facts.each(command):
        if dict(row.params) == wanted and row.asked.context == item.context:
            answers[row.node] = row.fact if isinstance(row.fact, Unavailable) else row.fact.value
    if not answers:
        yield not_applicable(item.name, "no node was queried")
        return
    said = {node: _judge_node(item, found) for node, found in answers.items()}
    groups = grouped((_Answer(answer.status, answer.what), node) for node, answer in said.items())
    for group, nodes in groups.items():
        first = said[nodes[0]]
        if group.status == "unknown":
            seen = f": {first.seen}" if first.seen else ""
            reason = f"`{_line(item)}` on {join_some(nodes, 4)}: {first.what}{seen}"
            yield unknown(f"{item.name}: {group.what}", reason, required=item.required)
        elif group.status in ("fault", "warning"):
            yield _fault(item, first, nodes, mild=group.status == "warning")
    fine = {
        node: found
        for node, found in answers.items()
        if said[node].status == "pass" and isinstance(found, CommandResult)
    }
    odd = _minority_outputs(fine) if item.agree else {}
    if odd:
        common = Counter(found.output.strip() for node, found in fine.items() if node not in odd).most_common(1)
        seen = next(iter(odd.values()))
        expected = f"as on most nodes: {_short(common[0][0])}" if common else "the same on all nodes"
        yield _fault(item, _Answer("fault", "its output differs", _short(seen), expected), list(odd), mild=False)
    whole = sum(each.status == "pass" for each in said.values()) - len(odd)
    if whole:
        yield passed(f"{item.name} on {whole} nodes")


def _judge_node(item: SiteCheck, found: CommandResult | Unavailable) -> _Answer:
    if isinstance(found, Unavailable):
        if found.kind == "missing" and item.absent != "unknown":
            return _Answer(item.absent, "the command does not exist", found.reason, "the command exists")
        return _Answer("unknown", found.reason)
    if found.exit_code in item.unknown:
        return _Answer("unknown", f"the command could not decide (exit code {found.exit_code})", _first_line(found))
    if found.exit_code not in item.good:
        ended = f"exit code {found.exit_code}" if found.exit_code >= 0 else f"killed by signal {-found.exit_code}"
        status = "warning" if found.exit_code in item.warning else "fault"
        return _Answer(status, ended, _first_line(found), f"exit code {' or '.join(map(str, item.good))}")
    if item.output and not re.search(item.output, found.output[:_MAX_SEARCHED_LENGTH], re.MULTILINE):
        return _Answer("fault", "its output does not match", _first_line(found), f"output that matches {item.output}")
    return _judge_values(item, found) if item.values else _Answer("pass", "")


def _judge_values(item: SiteCheck, found: CommandResult) -> _Answer:
    try:
        document = json.loads(found.output)
    except (ValueError, RecursionError):
        return _Answer("unknown", "its output is not JSON", _first_line(found))
    for value in item.values:
        seen, exists = _at(document, value.name)
        kinds = {test.kind for test in value.tests}
        if kinds & {"required", "forbidden"}:
            if exists != ("required" in kinds):
                what = f"{value.name} is {'present' if exists else 'missing'}"
                expected = f"{value.name}: {format_tests(value.tests)}"
                return _Answer("fault", what, _short(plain(seen)) if exists else "", expected)
            continue
        if not exists:
            return _Answer("unknown", f"its output has no {value.name}")
        if (row := _judge_value(value, seen)) is not None:
            return row
    return _Answer("pass", "")


def _judge_value(value: Condition, seen: Any) -> _Answer | None:
    result = passes_all(value.tests, tuple(seen) if isinstance(seen, list) else seen)
    if result is None:
        return _Answer("unknown", f"{value.name} cannot be compared with the required value", _short(plain(seen)))
    if result:
        return None
    return _Answer(
        "fault", f"{value.name} is different", f"{value.name}: {_short(plain(seen))}", format_tests(value.tests)
    )


def _at(document: Any, path: str) -> tuple[Any, bool]:
    """Return the value at `disks.0.free`, and whether it exists; tables and lists of tables do not count as values."""
    for step in path.split("."):
        if isinstance(document, Mapping) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None, False
    inner = document if isinstance(document, list) else ()
    if isinstance(document, Mapping) or any(isinstance(item, dict | list) for item in inner):
        return json.dumps(document), True
    return document, True


def _minority_outputs(answers: Mapping[str, CommandResult]) -> dict[str, str]:
    """Return the outputs that differ from the majority; all of them if there is no majority."""
    texts = {node: found.output.strip() for node, found in answers.items()}
    counts = Counter(texts.values()).most_common(2)
    if len(counts) < 2:
        return {}
    common = counts[0][0] if counts[0][1] > counts[1][1] else None
    return {node: text for node, text in texts.items() if text != common}


def _fault(item: SiteCheck, answers: _Answer, nodes: list[str], *, mild: bool) -> Verdict:
    seen = f" ({answers.seen})" if answers.seen else ""
    return failed(
        f"{item.name}: {answers.what}",
        f"{item.message} `{_line(item)}` on {join_some(nodes, 4)}: {answers.what}{seen}; expected: {answers.expected}",
        at=Evidence(item.name, answers.seen or answers.what, answers.expected, _line(item), nodes[0]),
        nodes=nodes,
        remedy=item.remedy,
        severity=Severity.WARNING if mild else None,
        confidence=Confidence.HIGH,
    )


def _first_line(found: CommandResult) -> str:
    """Return the first line of output, otherwise of standard error."""
    lines = [line.strip() for text in (found.output, found.error) for line in text.splitlines() if line.strip()]
    return _short(lines[0]) if lines else ""


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LENGTH else text[: _MAX_SHOWN_LENGTH - 1] + "…"
