"""Checks that a site defines in a TOML file without code, and the judgement of their facts."""

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

    json: Annotated[str, "Path of the value, with keys and indexes from 0: disks.0.free."] = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a site."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    id: Annotated[str, "Three capital letters of your choice and three digits: ACM201."] = ""
    name: Annotated[str, "The fault, in lower-case words: scratch-not-mounted."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "URL of the document that states the requirement."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "Severity of its findings. Default: warning."] = "warning"
    command: Annotated[list[str], "The command and its arguments, one string each; no shell is used."] = field(
        default_factory=list
    )
    deadline: Annotated[float, "Time limit in seconds, at most 60. Default: 5."] = 5.0
    context: Annotated[bool, "Run it as the ranks run: in their directory, environment and container."] = False
    nodes: Annotated[Literal["every", "first"], "Where to run it: on every node, or only on the node of rank 0."] = (
        "every"
    )
    exit: Annotated[list[int], "Exit codes that pass. Default: 0."] = field(default_factory=lambda: [0])
    warning_exit: Annotated[list[int], "Exit codes that are a warning."] = field(default_factory=list)
    unknown_exit: Annotated[list[int], "Exit codes with which the command reports an unknown result."] = field(
        default_factory=list
    )
    output: Annotated[str | None, "Regular expression that its standard output must match."] = None
    agree: Annotated[bool, "Its standard output must be the same on all nodes."] = False
    value: Annotated[list[Value], "Requirements on values in the JSON on its standard output."] = field(
        default_factory=list
    )
    absent: Annotated[
        Literal["unknown", "fault", "pass"], "The result on a node without this command. Default: unknown."
    ] = "unknown"
    required: Annotated[bool, "Whether the verdict is incomplete if the result is unknown. Default: true."] = True


def problems(item: Check, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yield the errors of the check at `path` of a document that its types cannot express."""
    if not item.command or not item.command[0].strip():
        yield Problem((*path, "command"), '`command` is empty; expected a list such as ["df", "-h"]')
    elif any("\0" in word for word in item.command):
        yield Problem((*path, "command"), "`command` contains a character that is not allowed in an argument")
    elif len(item.command) == 1 and " " in item.command[0].strip():
        words = ", ".join(f'"{word}"' for word in item.command[0].split())
        yield Problem(
            (*path, "command"), f"`command` runs without a shell; write each word as its own string: [{words}]"
        )
    if not 0 < item.deadline <= MAX_DEADLINE_S:
        yield Problem((*path, "deadline"), f"`deadline` must be more than 0 and at most {MAX_DEADLINE_S:g} seconds")
    listed_codes = [*item.exit, *item.warning_exit, *item.unknown_exit]
    for key, codes in (("exit", item.exit), ("warning-exit", item.warning_exit), ("unknown-exit", item.unknown_exit)):
        for index, code in enumerate(codes):
            if not 0 <= code <= 255:
                yield Problem((*path, key, index), f"{code} is not an exit code; use 0 to 255")
            elif listed_codes.count(code) > 1:
                yield Problem((*path, key, index), f"the exit code {code} has two meanings; list it once")
    if item.output is not None and (reason := pattern_problem(item.output)):
        yield Problem((*path, "output"), reason)
    for index, value in enumerate(item.value):
        if not _PATH.fullmatch(value.json):
            yield Problem(
                (*path, "value", index), "`json` must be the path of a value, such as disks.0.free", at_value=False
            )
        yield from problems_of(value, (*path, "value", index))


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


#: The time for the agent in addition to the command's own deadline, in seconds.
_AGENT_TIME_S = 2.0
_MAX_SHOWN_LENGTH = 200
#: The largest length of a text for a regular expression, which may take very long on longer text.
_MAX_SEARCHED_LENGTH = 64 * 1024


def checks_of(site_checks: Iterable[SiteCheck]) -> tuple[PluginCheck, ...]:
    """Return the checks that the site declared, in the form that a run uses."""
    return tuple(_build_check(item) for item in site_checks)


def _build_check(item: SiteCheck) -> PluginCheck:
    def plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
        for node in _request_nodes(item, fleet):
            yield Request(
                probe_name(command),
                node.name,
                _request_params(item),
                context=item.context,
                required=item.required,
                deadline_s=item.deadline_s + _AGENT_TIME_S,
            )

    def judge(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
        return _judge_all(item, facts)

    judge.__doc__ = _docstring(item)
    check_decorator = check(
        item.id,
        item.name,
        plan=plan,
        probes=(command,),
        cost=f"runs `{_command_line(item)}`, for at most {item.deadline_s:g} s",
        severity=Severity(item.severity),
        profile="gate",
        stage="stable",
        evidence=(item.evidence,),
    )
    return check_decorator(judge)


def _request_nodes(item: SiteCheck, fleet: Fleet) -> tuple[Node, ...]:
    reached = fleet.reached
    return tuple(node for node in reached if not item.first_node or node == fleet.master)


def _request_params(item: SiteCheck) -> dict[str, Any]:
    return {"command": list(item.command), "deadline_s": item.deadline_s}


def _command_line(item: SiteCheck) -> str:
    """Return the command as a line that can be pasted into a shell."""
    return shlex.join(item.command)


def _docstring(item: SiteCheck) -> str:
    """Return the text of `preflight explain`, under the headings of every check."""
    conditions = [f"its exit code is {' or '.join(map(str, item.good))}"]
    if item.output:
        conditions.append(f"its output matches {item.output}")
    conditions.extend(f"{value.name} in its JSON output is {format_tests(value.tests)}" for value in item.values)
    if item.agree:
        conditions.append("its output is the same on all nodes")
    nodes_text = "on the node of rank 0" if item.first_node else "on every node"
    paragraphs = (
        item.message,
        f"What it checks:\n    `{_command_line(item)}` {nodes_text}: {'; '.join(conditions)}.",
        f"Why it matters:\n    This site requires it in {item.file or 'its checks'}.",
        "Example:\n    None.",
        f"Fix:\n    {item.remedy}",
        "Known limits:\n    Only the exit code and the output of the command are checked.",
    )
    return "\n\n".join(paragraphs)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The judgement of a node's answer: `pass`, `fault`, `warning` or `unknown`; equal faults have equal `what`."""

    status: str
    what: str
    seen: str = ""
    expected: str = ""


def _judge_all(item: SiteCheck, facts: Facts) -> Iterator[Verdict]:
    request_params = _request_params(item)
    answers: dict[str, CommandResult | Unavailable] = {}
    for row in facts.each(command):
        if dict(row.params) == request_params and row.asked.context == item.context:
            answers[row.node] = row.fact if isinstance(row.fact, Unavailable) else row.fact.value
    if not answers:
        yield not_applicable(item.name, "no node was queried")
        return
    judged_answers = {node: _judge_node(item, result) for node, result in answers.items()}
    groups = grouped((_Answer(answer.status, answer.what), node) for node, answer in judged_answers.items())
    for group, nodes in groups.items():
        first_answer = judged_answers[nodes[0]]
        if group.status == "unknown":
            output_text = f": {first_answer.seen}" if first_answer.seen else ""
            reason = f"`{_command_line(item)}` on {join_some(nodes, 4)}: {first_answer.what}{output_text}"
            yield unknown(f"{item.name}: {group.what}", reason, required=item.required)
        elif group.status in ("fault", "warning"):
            yield _fault(item, first_answer, nodes, is_warning=group.status == "warning")
    passing_results = {
        node: result
        for node, result in answers.items()
        if judged_answers[node].status == "pass" and isinstance(result, CommandResult)
    }
    differing_outputs = _minority_outputs(passing_results) if item.agree else {}
    if differing_outputs:
        common_outputs = Counter(
            result.output.strip() for node, result in passing_results.items() if node not in differing_outputs
        ).most_common(1)
        output_text = next(iter(differing_outputs.values()))
        expected = f"as on most nodes: {_shorten(common_outputs[0][0])}" if common_outputs else "the same on all nodes"
        yield _fault(
            item,
            _Answer("fault", "its output differs", _shorten(output_text), expected),
            list(differing_outputs),
            is_warning=False,
        )
    passed_count = sum(answer.status == "pass" for answer in judged_answers.values()) - len(differing_outputs)
    if passed_count:
        yield passed(f"{item.name} on {passed_count} nodes")


def _judge_node(item: SiteCheck, result: CommandResult | Unavailable) -> _Answer:
    if isinstance(result, Unavailable):
        if result.kind == "missing" and item.absent != "unknown":
            return _Answer(item.absent, "the command does not exist", result.reason, "the command exists")
        return _Answer("unknown", result.reason)
    if result.exit_code in item.unknown:
        return _Answer(
            "unknown", f"the command reported an unknown result (exit code {result.exit_code})", _first_line(result)
        )
    if result.exit_code not in item.good:
        end_text = f"exit code {result.exit_code}" if result.exit_code >= 0 else f"killed by signal {-result.exit_code}"
        status = "warning" if result.exit_code in item.warning else "fault"
        return _Answer(status, end_text, _first_line(result), f"exit code {' or '.join(map(str, item.good))}")
    if item.output and not re.search(item.output, result.output[:_MAX_SEARCHED_LENGTH], re.MULTILINE):
        return _Answer("fault", "its output does not match", _first_line(result), f"output that matches {item.output}")
    return _judge_values(item, result) if item.values else _Answer("pass", "")


def _judge_values(item: SiteCheck, result: CommandResult) -> _Answer:
    try:
        document = json.loads(result.output)
    except (ValueError, RecursionError):
        return _Answer("unknown", "its output is not JSON", _first_line(result))
    for value in item.values:
        found_value, exists = _value_at(document, value.name)
        kinds = {test.kind for test in value.tests}
        if kinds & {"required", "forbidden"}:
            if exists != ("required" in kinds):
                description = f"{value.name} is {'present' if exists else 'missing'}"
                expected = f"{value.name}: {format_tests(value.tests)}"
                return _Answer("fault", description, _shorten(plain(found_value)) if exists else "", expected)
            continue
        if not exists:
            return _Answer("unknown", f"its output has no {value.name}")
        if (answer := _judge_value(value, found_value)) is not None:
            return answer
    return _Answer("pass", "")


def _judge_value(value: Condition, found_value: Any) -> _Answer | None:
    result = passes_all(value.tests, tuple(found_value) if isinstance(found_value, list) else found_value)
    if result is None:
        return _Answer(
            "unknown", f"{value.name} cannot be compared with the required value", _shorten(plain(found_value))
        )
    if result:
        return None
    return _Answer(
        "fault",
        f"{value.name} is different",
        f"{value.name}: {_shorten(plain(found_value))}",
        format_tests(value.tests),
    )


def _value_at(document: Any, path: str) -> tuple[Any, bool]:
    """Return the value at a path such as `disks.0.free` (tables as JSON), and whether it exists."""
    for step in path.split("."):
        if isinstance(document, Mapping) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None, False
    items = document if isinstance(document, list) else ()
    if isinstance(document, Mapping) or any(isinstance(item, dict | list) for item in items):
        return json.dumps(document), True
    return document, True


def _minority_outputs(answers: Mapping[str, CommandResult]) -> dict[str, str]:
    """Return the outputs that differ from the most common output; all outputs if no output is most common."""
    outputs = {node: result.output.strip() for node, result in answers.items()}
    counts = Counter(outputs.values()).most_common(2)
    if len(counts) < 2:
        return {}
    common_output = counts[0][0] if counts[0][1] > counts[1][1] else None
    return {node: output for node, output in outputs.items() if output != common_output}


def _fault(item: SiteCheck, answer: _Answer, nodes: list[str], *, is_warning: bool) -> Verdict:
    seen_text = f" ({answer.seen})" if answer.seen else ""
    return failed(
        f"{item.name}: {answer.what}",
        f"{item.message} `{_command_line(item)}` on {join_some(nodes, 4)}: {answer.what}{seen_text}; expected:"
        f" {answer.expected}",
        at=Evidence(item.name, answer.seen or answer.what, answer.expected, _command_line(item), nodes[0]),
        nodes=nodes,
        remedy=item.remedy,
        severity=Severity.WARNING if is_warning else None,
        confidence=Confidence.HIGH,
    )


def _first_line(result: CommandResult) -> str:
    """Return the first line of standard output; if it is empty, the first line of standard error."""
    lines = [line.strip() for text in (result.output, result.error) for line in text.splitlines() if line.strip()]
    return _shorten(lines[0]) if lines else ""


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LENGTH else text[: _MAX_SHOWN_LENGTH - 1] + "…"
