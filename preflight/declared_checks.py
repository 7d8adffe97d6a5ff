"""Judging by a site's declared checks: each becomes a check like any other, whose facts are what its command said."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from preflight.comparing import answer, plain, spoken
from preflight.configuration import Condition, SiteCheck
from preflight.job import Job
from preflight.judgement import Check, Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.node.command import Ran, command
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Node, Unavailable
from preflight.request import Request, probe_name

#: What the agent needs beside the command's own time.
_STARTING_S = 2.0
_LONGEST_SHOWN = 200
#: A regular expression may take very long for more.
_LONGEST_SEARCHED = 64 * 1024


def checks_of(site_checks: Iterable[SiteCheck]) -> tuple[Check, ...]:
    """The checks that the site declared, as they take part in a run."""
    return tuple(_made(item) for item in site_checks)


def _made(item: SiteCheck) -> Check:
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
        return _judged(item, fleet, facts)

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
    """The command as it can be pasted into a shell."""
    return shlex.join(item.command)


def _doc(item: SiteCheck) -> str:
    """What `preflight explain` says of it, under the headings of every check."""
    asked = [f"its exit code is {' or '.join(map(str, item.good))}"]
    if item.output:
        asked.append(f"its output holds a match of {item.output}")
    asked.extend(f"{value.name} in the JSON it prints is {spoken(value.tests)}" for value in item.values)
    if item.agree:
        asked.append("it prints the same on all nodes")
    where = "on the node of rank 0" if item.first_node else "on every node"
    paragraphs = (
        item.message,
        f"What it checks:\n    `{_line(item)}` {where}: {'; '.join(asked)}.",
        f"Why it matters:\n    This site laid it down in {item.file or 'its checks'}.",
        "Example:\n    None is given.",
        f"Fix:\n    {item.remedy}",
        "Known limits:\n    It knows what the command says, and no more.",
        f"Evidence:\n    {item.evidence}",
    )
    return "\n\n".join(paragraphs)


@dataclass(frozen=True, slots=True)
class _Said:
    """What one node's answer comes to: `what` is the same for nodes with the same fault, `seen` is this node's."""

    status: str
    what: str
    seen: str = ""
    expected: str = ""


def _judged(item: SiteCheck, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    wanted = _params(item)
    answers: dict[str, Ran | Unavailable] = {}
    for one in facts.each(command):
        if dict(one.params) == wanted and one.asked.context == item.context:
            answers[one.node] = one.fact if isinstance(one.fact, Unavailable) else one.fact.value
    if not answers:
        yield not_applicable(item.name, "no node was asked")
        return
    said = {node: _of_node(item, found) for node, found in answers.items()}
    groups: dict[_Said, list[str]] = {}
    for node, answer_of_node in said.items():
        groups.setdefault(_Said(answer_of_node.status, answer_of_node.what), []).append(node)
    for group, nodes in groups.items():
        first = said[nodes[0]]
        if group.status == "unknown":
            reason = f"`{_line(item)}` on {_names(nodes)}: {first.what}" + (f": {first.seen}" if first.seen else "")
            yield unknown(f"{item.name}: {group.what}", reason, required=item.required)
        elif group.status in ("fault", "warning"):
            yield _fault(item, first, nodes, mild=group.status == "warning")
    fine = {node: found for node, found in answers.items() if said[node].status == "pass" and isinstance(found, Ran)}
    odd = _odd(fine) if item.agree else {}
    if odd:
        common = Counter(found.output.strip() for node, found in fine.items() if node not in odd).most_common(1)
        node, seen = next(iter(odd.items()))
        expected = f"as on most nodes: {_short(common[0][0])}" if common else "the same on all nodes"
        yield _fault(item, _Said("fault", "what it prints differs", _short(seen), expected), list(odd), mild=False)
    whole = sum(each.status == "pass" for each in said.values()) - len(odd)
    if whole:
        yield passed(f"{item.name} on {whole} nodes")


def _of_node(item: SiteCheck, found: Ran | Unavailable) -> _Said:
    if isinstance(found, Unavailable):
        if found.kind == "missing" and item.absent != "unknown":
            return _Said(item.absent, "there is no such command", found.reason, "the command is there")
        return _Said("unknown", found.reason)
    if found.exit_code in item.unknown:
        return _Said("unknown", f"it could not tell (exit code {found.exit_code})", _first_line(found))
    if found.exit_code not in item.good:
        ended = f"exit code {found.exit_code}" if found.exit_code >= 0 else f"ended by signal {-found.exit_code}"
        status = "warning" if found.exit_code in item.warning else "fault"
        return _Said(status, ended, _first_line(found), f"exit code {' or '.join(map(str, item.good))}")
    if item.output and not re.search(item.output, found.output[:_LONGEST_SEARCHED], re.MULTILINE):
        return _Said("fault", "its output is another", _first_line(found), f"a match of {item.output}")
    return _of_values(item, found) if item.values else _Said("pass", "")


def _of_values(item: SiteCheck, found: Ran) -> _Said:
    try:
        document = json.loads(found.output)
    except (ValueError, RecursionError):
        return _Said("unknown", "what it prints is no JSON", _first_line(found))
    for value in item.values:
        seen, there = _at(document, value.name)
        kinds = {test.kind for test in value.tests}
        if kinds & {"required", "forbidden"}:
            if there != ("required" in kinds):
                what = f"{value.name} is {'there' if there else 'missing'}"
                expected = f"{value.name}: {spoken(value.tests)}"
                return _Said("fault", what, _short(plain(seen)) if there else "", expected)
            continue
        if not there:
            return _Said("unknown", f"there is no {value.name} in what it prints")
        if (one := _tested(value, seen)) is not None:
            return one
    return _Said("pass", "")


def _tested(value: Condition, seen: Any) -> _Said | None:
    told = answer(value.tests, tuple(seen) if isinstance(seen, list) else seen)
    if told is None:
        return _Said("unknown", f"{value.name} cannot be compared with what is asked", _short(plain(seen)))
    if told:
        return None
    return _Said("fault", f"{value.name} is another", f"{value.name}: {_short(plain(seen))}", spoken(value.tests))


def _at(document: Any, way: str) -> tuple[Any, bool]:
    """What stands at `disks.0.free`, and whether anything does; a table or a list of tables is not a value."""
    for step in way.split("."):
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


def _odd(answers: Mapping[str, Ran]) -> dict[str, str]:
    """What the nodes print that do not print what most do; all of them where no text is that of most."""
    texts = {node: found.output.strip() for node, found in answers.items()}
    counts = Counter(texts.values()).most_common(2)
    if len(counts) < 2:
        return {}
    common = counts[0][0] if counts[0][1] > counts[1][1] else None
    return {node: text for node, text in texts.items() if text != common}


def _fault(item: SiteCheck, said: _Said, nodes: list[str], *, mild: bool) -> Verdict:
    seen = f" ({said.seen})" if said.seen else ""
    return failed(
        f"{item.name}: {said.what}",
        f"{item.message} `{_line(item)}` on {_names(nodes)}: {said.what}{seen}; expected: {said.expected}",
        at=Evidence(item.name, said.seen or said.what, said.expected, _line(item), nodes[0]),
        nodes=nodes,
        remedy=item.remedy,
        severity=Severity.WARNING if mild else None,
        confidence=Confidence.HIGH,
    )


def _names(nodes: list[str]) -> str:
    shown = ", ".join(nodes[:4])
    return shown if len(nodes) <= 4 else f"{shown} and {len(nodes) - 4} more"


def _first_line(found: Ran) -> str:
    """The first line it printed, or else complained with."""
    lines = [line.strip() for text in (found.output, found.error) for line in text.splitlines() if line.strip()]
    return _short(lines[0]) if lines else ""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
