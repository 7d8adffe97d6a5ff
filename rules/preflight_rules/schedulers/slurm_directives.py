"""Directives that sbatch rejects: options it does not have, and values it cannot parse."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Set
from typing import NamedTuple

from preflight._util.usage_error import similar_names
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.claim import distinct
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.sources.launchers.slurm import parse_seconds
from preflight_rules.data_tables import table
from preflight_rules.launches import is_placeholder

#: Names that are less alike are taken for options of a plugin of the site.
_SIMILARITY = 0.8
#: Digits of a number of GPUs.
_MAX_NUMBER_LENGTH = 6


class Option(NamedTuple):
    """One option of sbatch: whether it takes a value (`none`, `optional`, `required`), and in which form.

    sbatch does not read the value if an option of `ignored_beside` is given, too.
    """

    name: str
    value: str
    form: str = ""
    expected: str = ""
    ascending: bool = False
    ignored_beside: tuple[str, ...] = ()


@functools.cache
def options() -> dict[str, Option]:
    """All options by name."""
    rows = table("sbatch")["option"]
    return {
        name: Option(
            name,
            row["value"],
            row.get("form", ""),
            row.get("expected", ""),
            row.get("ascending", False),
            tuple(row.get("ignored_beside", ())),
        )
        for row in rows
        for name in row["names"]
    }


@functools.cache
def _meant() -> dict[str, str]:
    return {name: row["option"] for row in table("sbatch")["meant"] for name in row["names"]}


@rule("SLU014", "directive-refused", severity=Severity.ERROR)
def directive_refused(job: Job) -> Iterator[Verdict]:
    """sbatch rejects a directive: an option it does not have, a value it cannot parse, or a combination of two options.

    What it checks: Every option of an `#SBATCH` header is in the table of sbatch's options and has a value of its form;
    no word belongs to no option; and the GPUs of a node are its tasks times the GPUs of a task.

    Why it matters: sbatch stops ("unrecognized option", "Invalid numeric value") and the job is never queued.

    Example: `#SBATCH --ntasks_per_node=8`.

    Fix: Use the option or the form that the finding names.

    Known limits: Plugins of a site add options. A name that resembles none of sbatch's own is only information. A
    placeholder in place of a number (`your_nodes`) is a warning.
    """
    claims = distinct(job.about("batch_directive"))
    if not claims:
        yield not_applicable(job.name, "no Slurm batch script")
        return
    fine = True
    given = {option.name for claim in claims if (option := _option(_parts(claim)[0])[0]) is not None}
    for claim in claims:
        verdict = _judged(job.name, claim, given)
        if verdict is not None:
            fine = False
            yield verdict
    for verdict in _together(job, claims):
        fine = False
        yield verdict
    if fine:
        yield passed(job.name)


def _judged(subject: str, claim: Claim, given: Set[str]) -> Verdict | None:
    if isinstance(claim.value, Unresolved):
        return unknown(subject, f"{quoted(claim)} depends on {claim.value.why}", at=claim)
    name, value = _parts(claim)
    if not name:
        return failed(
            subject,
            f"`{value}` follows a value in this directive and is not an option: sbatch rejects the script.",
            at=claim,
            remedy="Write the value without spaces, or remove the word.",
        )
    option, meant, why = _option(name)
    if option is None:
        sure = bool(meant)
        return failed(
            subject,
            f"{quoted(claim)}: sbatch {why}{f'; `--{meant}` is probably meant' if meant else ''}.",
            at=claim,
            remedy=f"Write `--{meant}`." if meant else "Remove it, unless a plugin of your site adds this option.",
            severity=None if sure else Severity.INFO,
        )
    problem = _problem(option, value)
    if not problem or not given.isdisjoint(option.ignored_beside):
        return None
    # A single letter is a slip rather than a placeholder.
    blank = value is not None and len(value) > 1 and _takes_number(option) and is_placeholder(value)
    return failed(
        subject,
        f"{quoted(claim)} is rejected by sbatch: --{option.name} {problem}{'; it looks like a placeholder' * blank}.",
        at=claim,
        remedy=f"Give {option.expected}." if option.expected and option.value != "none" else "Remove the value.",
        severity=Severity.WARNING if blank else None,
    )


def _takes_number(option: Option) -> bool:
    return bool(option.form) and re.fullmatch(option.form, "1") is not None


def _parts(claim: Claim) -> tuple[str, str | None]:
    stated = next(iter(claim.alternatives), ())
    if not isinstance(stated, tuple) or len(stated) != 2:
        return "", None
    return str(stated[0]), None if stated[1] is None else str(stated[1])


def _option(name: str) -> tuple[Option | None, str, str]:
    """The option with this name or unambiguous prefix; otherwise the option that is probably meant, and sbatch's
    message.
    """
    known = options()
    if name in known:
        return known[name], "", ""
    longer = [other for other in known if other.startswith(name)]
    if len(longer) == 1:
        return known[longer[0]], "", ""
    if longer:
        near = similar_names(name, longer, cutoff=0.0)
        return None, near[0] if near else longer[0], f"cannot decide which option the ambiguous `--{name}` abbreviates"
    plain = name.replace("_", "-")
    near = (
        [plain]
        if plain in known
        else [_meant()[name]]
        if name in _meant()
        else similar_names(name, known, cutoff=_SIMILARITY)
    )
    return None, near[0] if near else "", f"has no option `--{name}`"


def _problem(option: Option, value: str | None) -> str:
    if option.value == "none":
        return "takes no value" if value is not None else ""
    if value is None:
        return "needs a value" if option.value == "required" else ""
    if option.form and re.fullmatch(option.form, value) is None and not (option.value == "optional" and value == ""):
        return f"expects {option.expected}"
    if option.ascending:
        for low, high in re.findall(r"(\d{1,9})-(\d{1,9})", value):
            if int(low) > int(high):
                return f"expects the smaller number first, not {low}-{high}"
    return ""


def _together(job: Job, claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    by_name: dict[str, Claim] = {}
    for claim in claims:
        name, _ = _parts(claim)
        option = _option(name)[0] if name else None
        if option is not None:
            by_name[option.name] = claim
    for row in table("sbatch")["together"]:
        found = [by_name[name] for name in row["names"] if name in by_name]
        if len(found) == len(row["names"]):
            yield failed(
                job.name,
                f"{quoted(found[-1])} and {placed(found[0])}: {row['why']}, and sbatch rejects the script.",
                at=found[-1],
                also=((found[0], "the other"),),
                remedy="Keep one of the two.",
            )
    yield from _gpus(job, by_name)
    least, limit = by_name.get("time-min"), by_name.get("time")
    if least is not None and limit is not None:
        short, long = (parse_seconds(_parts(claim)[1] or "") for claim in (least, limit))
        if short is not None and long and short > long:
            yield failed(
                job.name,
                f"{quoted(least)} is more than {placed(limit)}: sbatch rejects the script.",
                at=least,
                also=((limit, "the limit"),),
                remedy="Give --time-min less than --time.",
            )


def _gpus(job: Job, by_name: dict[str, Claim]) -> Iterator[Verdict]:
    """GPUs of the job, of a node and of a task, beside its nodes and tasks."""
    node = by_name.get("gpus-per-node") or by_name.get("gres")
    task, tasks, every = by_name.get("gpus-per-task"), by_name.get("ntasks-per-node"), by_name.get("gpus")
    counted = [(claim, found) for claim in (node, task, every) if claim is not None and (found := _count(claim))]
    typed = {is_typed for _, (_, is_typed) in counted}
    if len(counted) > 1 and len(typed) > 1:
        first, last = counted[0][0], counted[-1][0]
        yield failed(
            job.name,
            f"{quoted(last)} and {placed(first)}: one names the type of the GPUs and the other does not, which sbatch"
            " refuses.",
            at=last,
            also=((first, "with this"),),
            remedy="Name the type in both, or in neither.",
        )
        return
    counts = {claim.span: number for claim, (number, _) in counted}
    if node is not None and task is not None and tasks is not None and counts.keys() >= {node.span, task.span}:
        each = _parts(tasks)[1] or ""
        wanted = int(each) * counts[task.span] if each.isdecimal() else 0
        if wanted and wanted != counts[node.span]:
            yield failed(
                job.name,
                f"{placed(node)} gives a node {counts[node.span]} GPUs, but {quoted(task)} and {placed(tasks)} use"
                f" {wanted}: sbatch rejects the script.",
                at=task,
                also=((node, "GPUs of a node"), (tasks, "tasks of a node")),
                remedy=f"Leave one of them out, or set --gpus-per-node={wanted}.",
            )
    nodes = by_name.get("nodes")
    least = re.match(r"\d{1,6}(?=-|$)", _parts(nodes)[1] or "") if nodes is not None else None
    if every is None or nodes is None or least is None or counts.get(every.span, int(least[0])) >= int(least[0]):
        return
    yield failed(
        job.name,
        f"{quoted(every)} is less than one GPU for each node of {placed(nodes)}: sbatch rejects the script.",
        at=every,
        also=((nodes, "nodes"),),
        remedy=f"Request at least {least[0]} GPUs, or use --gpus-per-node.",
    )


def _count(claim: Claim) -> tuple[int, bool] | None:
    """The GPUs that an option requests, and whether it names their type; None for what is not about GPUs."""
    text = _parts(claim)[1] or ""
    if claim.spelling.startswith("--gres"):
        if not text.startswith("gpu"):
            return None
        text = text[3:].removeprefix(":") or "1"
    total, is_typed = 0, False
    for item in text.split(","):
        name, _, number = item.rpartition(":")
        if not number.isdecimal():
            name, number = item, "1"
        if len(number) > _MAX_NUMBER_LENGTH or ":" in name:
            return None
        is_typed = is_typed or bool(name)
        total += int(number)
    return (total, is_typed) if total else None
