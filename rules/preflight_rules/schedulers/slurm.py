"""Batch scripts: directives that sbatch rejects, time, memory and tasks, and launchers under Slurm."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from preflight._util.usage_error import similar_names
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope, Strength, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import Symbol, numbers, symbols_in, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, joined, placed, quoted, where, why_unresolved
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with
from preflight.sources.launchers.slurm import parse_seconds
from preflight_rules.data_tables import table
from preflight_rules.launches import (
    AGENT_LAUNCHERS,
    SCHEDULERS,
    certainly_one,
    certainly_several,
    is_placeholder,
    on_first_node_only,
)
from preflight_rules.schedulers.slurm_steps import all_devices_of_lightning, chores, steps

#: Forms of --time (sbatch manual): minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]].
_TIME = re.compile(r"-?\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}|(?i:infinite|unlimited)|0")
#: Numbers that are common as hours and unlikely as minutes.
_HOURS = ("24", "36", "48", "72", "96", "168")


def header_claims(job: Job, quantity: str) -> tuple[Claim, ...]:
    """Return the claims of the header's directives about a quantity."""
    return tuple(c for c in job.about(quantity) if c.source == "slurm" and not c.because)


@rule(
    "SLU007",
    "directive-not-read",
    severity=Severity.ERROR,
    otherwise="no Slurm batch script",
    passes_with=("batch_directive",),
)
def directive_not_read(job: Job) -> Iterator[Verdict]:
    """A line looks like an sbatch directive, but sbatch does not read it.

    What it checks: No `#SBATCH` line comes after the first command of the script, lacks the space (`#SBATCH--nodes`) or
    is in lower case (`#sbatch`). After the first command, an option that requests nodes, tasks, GPUs, memory, time, a
    partition, an account and the like is an error, any other option a warning. `# SBATCH` with a space may be disabled
    on purpose: it is informational, or a warning if it is the only line with the number of nodes that a launch needs.

    Why it matters: sbatch stops reading at the first command and ignores the rest without a message. The job runs with
    the defaults of the cluster: one node, no GPU, an hour.

    Example: `module load cuda` and below it `#SBATCH --gres=gpu:8`.

    Fix: Move all directives to the top, right after `#!`.

    Known limits: `##SBATCH` is treated as disabled on purpose.
    """
    for claim in job.about("directive_unread"):
        reasons = texts(claim.value)
        yield undecided(job.name, (claim,)) or failed(
            job.name,
            f"{quoted(claim)} is not read by sbatch: {reasons[0] if reasons else ''}.",
            at=claim,
            remedy="Move it to the directives at the top of the script, written `#SBATCH --option=value`.",
            severity=_severity(job, claim),
        )


#: Options without which a job gets other nodes, GPUs, memory, time, queue or account than requested.
_DECISIVE = re.compile(
    r"#SBATCH[ \t]+(?:--(?:nodes|ntasks(?:-per-(?:node|gpu))?|gres|gpus(?:-per-\w+)?|cpus-per-\w+|mem(?:-per-\w+)?|time"
    r"|account|partition|qos|constraint|nodelist|exclude|exclusive|reservation|array|dependency|licenses)(?![\w-])"
    r"|-[NnGcACpqtwxadL])"
)


def _severity(job: Job, claim: Claim) -> Severity:
    """Return the severity of an ignored directive: an error if a decisive option is certainly lost.

    A line with a space (`# SBATCH`) may be disabled on purpose.
    """
    if claim.spelling[1:2].isspace():
        return Severity.WARNING if _sets_needed_nodes(job, claim) else Severity.INFO
    is_repeated = any(read.spelling.strip() == claim.spelling.strip() for read in job.about("batch_directive"))
    return Severity.ERROR if _DECISIVE.match(claim.spelling) and not is_repeated else Severity.WARNING


def _sets_needed_nodes(job: Job, claim: Claim) -> bool:
    """Return whether only the ignored line gives the number of nodes that a launch needs."""
    directive = re.search(r"SBATCH[ \t]+(?:--nodes[= ]|-N[ \t]*)(\d{1,6})[ \t]*$", claim.spelling)
    if directive is None or int(directive[1]) < 2 or header_claims(job, "nodes"):
        return False
    return any(
        numbers(job_value(job.requirement_claims("nodes", launch.scope))) == (int(directive[1]),)
        for launch in job.launches
    )


@rule("SLU008", "tasks-contradict-tasks-per-node", severity=Severity.ERROR, profile="default")
def tasks_contradict_tasks_per_node(job: Job) -> Iterator[Verdict]:
    """`--ntasks` and `--ntasks-per-node` of one header contradict each other.

    What it checks: If `--nodes`, `--ntasks` and `--ntasks-per-node` are all given, nodes x tasks per node = tasks.

    Why it matters: sbatch then ignores `--ntasks-per-node` ("can't honor --ntasks-per-node"), and ranks are placed
    differently from what the script expects.

    Example: `#SBATCH --nodes=2 --ntasks=4 --ntasks-per-node=4`.

    Fix: Remove `--ntasks`, or set it to the product.

    Known limits: Fewer tasks than the product are allowed, and only informational, unless a node has a GPU for each
    task.
    """
    nodes, tasks, per_node = (header_claims(job, name) for name in ("nodes", "tasks", "tasks_per_node"))
    nodes, tasks, per_node = (tuple(c for c in found if c.scope == Scope()) for found in (nodes, tasks, per_node))
    if not nodes or not tasks or not per_node:
        yield not_applicable(job.name, "no header sets the numbers of nodes, tasks and tasks per node")
        return
    verdict = undecided(job.name, (nodes[0], tasks[0], per_node[0]))
    node_counts, task_counts, per_node_counts = (numbers(claim.value) for claim in (nodes[0], tasks[0], per_node[0]))
    if (
        verdict is None
        and len(node_counts) == len(task_counts) == len(per_node_counts) == 1
        and task_counts[0] != node_counts[0] * per_node_counts[0]
    ):
        product = node_counts[0] * per_node_counts[0]
        has_gpu_per_task = per_node_counts[0] in numbers(job_value(job.setting("gpus_per_node")))
        verdict = failed(
            job.name,
            f"{quoted(tasks[0])}, but {quoted(nodes[0])} x {quoted(per_node[0])} = {product}: sbatch ignores one of"
            f" the options.",
            at=tasks[0],
            also=((per_node[0], "tasks per node"), (nodes[0], "nodes")),
            remedy=f"Remove --ntasks, or write --ntasks={product}.",
            severity=None if task_counts[0] > product else Severity.WARNING if has_gpu_per_task else Severity.INFO,
        )
    yield verdict or passed(job.name)


@rule(
    "SLU009",
    "time-limit-not-what-it-seems",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no header sets a time limit",
)
def time_limit_not_what_it_seems(job: Job) -> Iterator[Verdict]:
    """`--time` has a form that Slurm rejects, or gives minutes although hours are probably intended.

    What it checks: The time has one of the forms in the manual: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours and so on. A bare 24, 48, 72 ... is a warning, because it means minutes.

    Why it matters: sbatch rejects the script ("Invalid --time specification"), or ends the job after 24 minutes.

    Example: `#SBATCH --time=24h`, `#SBATCH --time=48`.

    Fix: `--time=24:00:00` or `--time=2-00`.

    Known limits: 48 minutes may be intended.
    """
    found = header_claims(job, "time_limit")
    for claim in found:
        values = texts(claim.value)
        if undecided_verdict := undecided(job.name, (claim,)):
            yield undecided_verdict
        elif any(not re.search(r"\d", value) or re.search(r"[{}<>$%@]", value) for value in values):
            if all(_TIME.fullmatch(value.strip()) for value in values):
                yield passed(job.name)
            else:
                yield unknown(job.name, f"{quoted(claim)} is a placeholder", at=claim)
        elif values and not any(_TIME.fullmatch(value.strip()) for value in values):
            yield failed(
                job.name,
                f"{quoted(claim)} is not a valid Slurm time: sbatch rejects the script.",
                at=claim,
                remedy="Write hours:minutes:seconds (24:00:00) or days-hours (1-00).",
            )
        elif values and all(value.strip() in _HOURS for value in values):
            yield failed(
                job.name,
                f"{quoted(claim)} means {values[0]} minutes, not hours.",
                at=claim,
                remedy=f"Write {values[0]}:00:00 for hours.",
                severity=Severity.WARNING,
                confidence=Confidence.MEDIUM,
            )
        else:
            yield passed(job.name)


_MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")


def _option_name(claim: Claim) -> str:
    """Return the name of a directive's option, also if its value is filled in later."""
    return claim.spelling.removeprefix("--").replace("=", " ").split(" ")[0]


@rule(
    "SLU010",
    "memory-options-exclude-each-other",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no header requests memory",
)
def memory_options_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """Memory is requested with two mutually exclusive options.

    What it checks: One header has at most one of `--mem`, `--mem-per-cpu` and `--mem-per-gpu`.

    Why it matters: sbatch rejects the script: they are mutually exclusive.

    Example: `#SBATCH --mem=64G` and `#SBATCH --mem-per-cpu=4G`.

    Fix: Keep one of them.

    Known limits: Options on sbatch's command line are not seen.
    """
    by_file: dict[str, list[Claim]] = {}
    for claim in job.about("batch_directive"):
        if claim.scope == Scope() and _option_name(claim) in _MEMORY_OPTIONS:
            by_file.setdefault(claim.span.path, []).append(claim)
    for claims in by_file.values():
        kinds = {_option_name(claim): claim for claim in claims}
        if len(kinds) < 2:
            yield passed(job.name)
            continue
        first, second, *_ = kinds.values()
        undecided_verdict = undecided(job.name, (first, second))
        yield undecided_verdict or failed(
            job.name,
            f"{quoted(first)} and {placed(second)} are mutually exclusive: sbatch rejects the script.",
            at=second,
            also=((first, "the other"),),
            remedy=f"Keep --{_option_name(first)} or --{_option_name(second)}, not both.",
        )


@rule(
    "SLU013",
    "step-larger-than-allocation",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no step sets its number of nodes",
)
def step_larger_than_allocation(job: Job) -> Iterator[Verdict]:
    """A step requests more nodes than the job has.

    What it checks: `srun --nodes` of a batch script is at most `#SBATCH --nodes`.

    Why it matters: srun rejects the step ("More processors requested than permitted") or waits for nodes that never
    become available.

    Example: `#SBATCH --nodes=2` and `srun --nodes=4 ...`.

    Fix: Use the allocation's number: remove `--nodes` from srun, or write $SLURM_NNODES.

    Known limits: Directives may be overridden on sbatch's command line.
    """
    for step in steps(job):
        requested = step.about("step_nodes")
        grants = tuple(c for c in job.about("nodes", step.scope) if c.source == "slurm" and c.scope == Scope())
        if requested is None or not grants or requested.span == grants[0].span:
            continue
        verdict = undecided(step.subject, (requested, grants[0]), step.launch)
        requested_count, granted_count = numbers(requested.value), numbers(grants[0].value)
        if verdict is None and requested_count and granted_count and min(requested_count) > max(granted_count):
            verdict = failed(
                step.subject,
                f"{quoted(requested)} requests {counted(min(requested_count), 'node')}, but {placed(grants[0])} "
                f"grants only {max(granted_count)}.",
                at=requested,
                also=((grants[0], "granted"),),
                remedy="Remove --nodes from srun, or raise it in the header.",
            )
        yield verdict or passed(step.subject)


@rule("CST001", "granted-nodes-beyond-all-steps", severity=Severity.WARNING)
def granted_nodes_beyond_all_steps(job: Job) -> Iterator[Verdict]:
    """The steps of a script together use fewer nodes than the job has.

    What it checks: The nodes of all background steps together, or of the largest foreground step, equal `#SBATCH
    --nodes`, if all are known.

    Why it matters: The nodes that no step uses are paid for and unavailable to others during the whole run.

    Example: `#SBATCH --nodes=4` and a single `srun --nodes=2 python train.py`.

    Fix: Request as many nodes as the steps use, or use all nodes in the steps.

    Known limits: Reported only if every command that does some work is a step with a known number of nodes, and not if
    the script uses mpirun, ssh and the like.
    """
    grants = tuple(c for c in header_claims(job, "nodes") if c.scope == Scope())
    all_steps = list(steps(job))
    if not grants or not all_steps:
        yield not_applicable(job.name, "no batch script with a number of nodes runs steps")
        return
    sizes = [step.about("step_nodes") for step in all_steps]
    known = [claim for claim in sizes if claim is not None]
    undecided_verdict = undecided(job.name, (grants[0], *known))
    if undecided_verdict is not None or len(known) < len(all_steps):
        yield undecided_verdict or unknown(job.name, "the number of nodes of a step is unknown", at=all_steps[0].claim)
        return
    granted_count = numbers(grants[0].value)
    step_sizes = [(step, max(numbers(claim.value) or (0,))) for step, claim in zip(all_steps, known, strict=True)]
    background = sum(size for step, size in step_sizes if step.is_true("step_background"))
    foreground = max((size for step, size in step_sizes if not step.is_true("step_background")), default=0)
    used_count = background + foreground
    placed_at = {
        joined(texts(c.value)): size for step, size in step_sizes if (c := step.about("step_placed")) is not None
    }
    for chore in chores(job):
        if (c := chore.about("step_placed")) is not None:
            placed_at.setdefault(joined(texts(c.value)), 1)
    if len(placed_at) > 1:
        # Steps on nodes of their own use all of these.
        used_count = max(used_count, sum(placed_at.values()))
    if background and job.about("program_beside_steps"):
        # The first node is not idle, and a step may be placed on the others.
        used_count += 1
    may_use_all = any(step.is_true("step_repeated") for step in all_steps) or len({c.span.path for c in known}) > 1
    launches_beyond_steps = job.about("reaches_nodes") or len(job.launches) > len(all_steps)
    if may_use_all or launches_beyond_steps or not granted_count or used_count >= min(granted_count):
        yield passed(job.name)
        return
    waits = [claim for launch in job.launches for claim in job.requirement_claims("nodes", launch.scope)]
    if any(numbers(claim.value) and min(numbers(claim.value)) > used_count for claim in waits):
        yield not_applicable(job.name, "a launch expects more nodes than its step has, and waits for them")
        return
    yield failed(
        job.name,
        f"{quoted(grants[0])} requests {counted(min(granted_count), 'node')}, but the steps of the script use "
        f"{used_count}: {min(granted_count) - used_count} stay idle.",
        at=grants[0],
        also=tuple((claim, "used by a step") for claim in known[:8] if claim.span != grants[0].span),
        remedy=f"Request {counted(used_count, 'node')}, or use all nodes in the steps.",
    )


#: Least similarity of a misspelled option; a less similar name counts as an option of a site plugin.
_SIMILARITY = 0.8
#: Most digits of a number of GPUs.
_MAX_NUMBER_LENGTH = 6


class Option(NamedTuple):
    """One option of sbatch: whether it takes a value (`none`, `optional`, `required`), and in which form.

    sbatch ignores the value if an option in `ignored_beside` is also given.
    """

    name: str
    value: str
    form: str = ""
    expected: str = ""
    ascending: bool = False
    ignored_beside: Sequence[str] = ()


@functools.cache
def options() -> dict[str, Option]:
    """Return all options by name."""
    return {
        name: Option(name, **{key: value for key, value in row.items() if key != "names"})
        for row in table("sbatch")["option"]
        for name in row["names"]
    }


@functools.cache
def _common_mistakes() -> dict[str, str]:
    return {name: row["option"] for row in table("sbatch")["meant"] for name in row["names"]}


@rule("SLU014", "directive-refused", severity=Severity.ERROR)
def directive_refused(job: Job) -> Iterator[Verdict]:
    """sbatch rejects a directive: an unknown option, a value it cannot parse, or a combination of two options.

    What it checks: Every option of an `#SBATCH` header is in the table of sbatch's options and has a value of the right
    form; every word belongs to an option; and GPUs per node equal tasks per node times GPUs per task.

    Why it matters: sbatch stops ("unrecognized option", "Invalid numeric value") and the job is never queued.

    Example: `#SBATCH --ntasks_per_node=8`.

    Fix: Use the option or the form that the finding names.

    Known limits: A name that resembles no sbatch option is only informational, because site plugins add options. A
    placeholder instead of a number (`your_nodes`) is a warning.
    """
    claims = distinct(job.about("batch_directive"))
    if not claims:
        yield not_applicable(job.name, "no Slurm batch script")
        return
    is_accepted = True
    given_options = {option.name for claim in claims if (option := _option(_split_option(claim)[0])[0]) is not None}
    for claim in claims:
        verdict = _option_verdict(job.name, claim, given_options)
        if verdict is not None:
            is_accepted = False
            yield verdict
    for verdict in _combination_verdicts(job, claims):
        is_accepted = False
        yield verdict
    if is_accepted:
        yield passed(job.name)


def _option_verdict(subject: str, claim: Claim, given_options: Set[str]) -> Verdict | None:
    if isinstance(claim.value, Unresolved):
        return unknown(subject, f"{quoted(claim)} depends on {claim.value.why}", at=claim)
    name, value = _split_option(claim)
    if not name:
        return failed(
            subject,
            f"`{value}` after the value in this directive is not an option: sbatch rejects the script.",
            at=claim,
            remedy="Write the value without spaces, or remove the word.",
        )
    option, suggestion, why = _option(name)
    if option is None:
        return failed(
            subject,
            f"{quoted(claim)}: sbatch {why}{f'; `--{suggestion}` is probably meant' if suggestion else ''}.",
            at=claim,
            remedy=f"Write `--{suggestion}`."
            if suggestion
            else "Remove it, unless a plugin of your site adds this option.",
            severity=None if suggestion else Severity.INFO,
        )
    problem = _option_problem(option, value)
    if not problem or not given_options.isdisjoint(option.ignored_beside):
        return None
    # A single letter is a slip rather than a placeholder.
    is_blank = value is not None and len(value) > 1 and _takes_number(option) and is_placeholder(value)
    return failed(
        subject,
        f"{quoted(claim)} is rejected by sbatch: --{option.name}"
        f" {problem}{'; it looks like a placeholder' * is_blank}.",
        at=claim,
        remedy=f"Give {option.expected}." if option.expected and option.value != "none" else "Remove the value.",
        severity=Severity.WARNING if is_blank else None,
    )


def _takes_number(option: Option) -> bool:
    return bool(option.form) and re.fullmatch(option.form, "1") is not None


def _split_option(claim: Claim) -> tuple[str, str | None]:
    name_and_value = next(iter(claim.alternatives), ())
    if not isinstance(name_and_value, tuple) or len(name_and_value) != 2:
        return "", None
    return str(name_and_value[0]), None if name_and_value[1] is None else str(name_and_value[1])


def _option(name: str) -> tuple[Option | None, str, str]:
    """Return the option with this name or unambiguous prefix; otherwise None, the likely option and sbatch's
    message.
    """
    all_options = options()
    if name in all_options:
        return all_options[name], "", ""
    completions = [other for other in all_options if other.startswith(name)]
    if len(completions) == 1:
        return all_options[completions[0]], "", ""
    if completions:
        similar = similar_names(name, completions, cutoff=0.0)
        return (
            None,
            similar[0] if similar else completions[0],
            f"cannot decide which option the ambiguous `--{name}` abbreviates",
        )
    dashed = name.replace("_", "-")
    similar = (
        [dashed]
        if dashed in all_options
        else [_common_mistakes()[name]]
        if name in _common_mistakes()
        else similar_names(name, all_options, cutoff=_SIMILARITY)
    )
    return None, similar[0] if similar else "", f"has no option `--{name}`"


def _option_problem(option: Option, value: str | None) -> str:
    if option.value == "none":
        return "does not accept a value" if value is not None else ""
    if value is None:
        return "needs a value" if option.value == "required" else ""
    if option.form and re.fullmatch(option.form, value) is None and not (option.value == "optional" and value == ""):
        return f"expects {option.expected}"
    if option.ascending:
        for low, high in re.findall(r"(\d{1,9})-(\d{1,9})", value):
            if int(low) > int(high):
                return f"expects the smaller number first, not {low}-{high}"
    return ""


def _combination_verdicts(job: Job, claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    by_name: dict[str, Claim] = {}
    for claim in claims:
        name, _ = _split_option(claim)
        option = _option(name)[0] if name else None
        if option is not None:
            by_name[option.name] = claim
    for row in table("sbatch")["together"]:
        pair = [by_name[name] for name in row["names"] if name in by_name]
        if len(pair) == len(row["names"]):
            yield failed(
                job.name,
                f"{quoted(pair[-1])} and {placed(pair[0])}: {row['why']}, and sbatch rejects the script.",
                at=pair[-1],
                also=((pair[0], "the other"),),
                remedy="Keep one of the two.",
            )
    yield from _gpu_verdicts(job, by_name)
    minimum, limit = by_name.get("time-min"), by_name.get("time")
    if minimum is not None and limit is not None:
        short, long = (parse_seconds(_split_option(claim)[1] or "") for claim in (minimum, limit))
        if short is not None and long and short > long:
            yield failed(
                job.name,
                f"{quoted(minimum)} is more than {placed(limit)}: sbatch rejects the script.",
                at=minimum,
                also=((limit, "the limit"),),
                remedy="Set --time-min to less than --time.",
            )


def _gpu_verdicts(job: Job, by_name: dict[str, Claim]) -> Iterator[Verdict]:
    """Yield the verdicts on GPUs per job, per node and per task, compared with nodes and tasks."""
    per_node = by_name.get("gpus-per-node") or by_name.get("gres")
    per_task, node_tasks, total = by_name.get("gpus-per-task"), by_name.get("ntasks-per-node"), by_name.get("gpus")
    gpu_counts = [
        (claim, found) for claim in (per_node, per_task, total) if claim is not None and (found := _gpu_count(claim))
    ]
    names_types = {is_typed for _, (_, is_typed) in gpu_counts}
    if len(gpu_counts) > 1 and len(names_types) > 1:
        first, last = gpu_counts[0][0], gpu_counts[-1][0]
        yield failed(
            job.name,
            f"{quoted(last)} and {placed(first)}: only one of them names the GPU type, so sbatch rejects the script.",
            at=last,
            also=((first, "with this"),),
            remedy="Name the type in both, or in neither.",
        )
        return
    counts = {claim.span: number for claim, (number, _) in gpu_counts}
    if (
        per_node is not None
        and per_task is not None
        and node_tasks is not None
        and counts.keys() >= {per_node.span, per_task.span}
    ):
        task_count = _split_option(node_tasks)[1] or ""
        needed = int(task_count) * counts[per_task.span] if task_count.isdecimal() else 0
        if needed and needed != counts[per_node.span]:
            yield failed(
                job.name,
                f"{placed(per_node)} gives each node {counts[per_node.span]} GPUs, but {quoted(per_task)} and "
                f"{placed(node_tasks)} use {needed}: sbatch rejects the script.",
                at=per_task,
                also=((per_node, "GPUs per node"), (node_tasks, "tasks per node")),
                remedy=f"Remove one of them, or set --gpus-per-node={needed}.",
            )
    nodes = by_name.get("nodes")
    match = re.match(r"\d{1,6}(?=-|$)", _split_option(nodes)[1] or "") if nodes is not None else None
    if total is None or nodes is None or match is None or counts.get(total.span, int(match[0])) >= int(match[0]):
        return
    yield failed(
        job.name,
        f"{quoted(total)} is less than one GPU for each node of {placed(nodes)}: sbatch rejects the script.",
        at=total,
        also=((nodes, "nodes"),),
        remedy=f"Request at least {match[0]} GPUs, or use --gpus-per-node.",
    )


def _gpu_count(claim: Claim) -> tuple[int, bool] | None:
    """Return the number of GPUs that an option requests, and whether it names their type; None for other options."""
    text = _split_option(claim)[1] or ""
    if claim.spelling.startswith("--gres"):
        if not text.startswith("gpu"):
            return None
        text = text[3:].removeprefix(":") or "1"
    total, is_typed = 0, False
    for part in text.split(","):
        name, _, number = part.rpartition(":")
        if not number.isdecimal():
            name, number = part, "1"
        if len(number) > _MAX_NUMBER_LENGTH or ":" in name:
            return None
        is_typed = is_typed or bool(name)
        total += int(number)
    return (total, is_typed) if total else None


# Launchers under Slurm: tasks per node, and the nodes that they run on.


#: Modules that start the ranks of their node, for `python -m`.
_LAUNCHER_MODULES = (
    "accelerate/commands",
    "deepspeed/launcher",
    "torch/distributed",
    "horovod/runner",
    "ray/scripts",
    "paddle/distributed",
    "bash",
    # Model servers: one process uses all GPUs of its node.
    "sglang",
    "vllm",
    "lmdeploy",
    "tritonserver",
)


@rule(
    "SLU001", "launcher-started-more-than-once-per-node", severity=Severity.ERROR, otherwise="srun starts no launcher"
)
def launcher_started_more_than_once_per_node(job: Job) -> Iterator[Verdict]:
    """A launcher that starts all ranks on a node is started several times per node.

    What it checks: srun starts a launcher such as torchrun once per node: every setting of tasks per node is 1.

    Why it matters: With T tasks per node, each node gets T launchers and T times as many ranks as GPUs. The extra
    launchers wait to join the rendezvous until it times out, or two ranks share each GPU.

    Example: `#SBATCH --ntasks-per-node=8` with `srun torchrun --nproc_per_node=8 train.py`.

    Fix: `#SBATCH --ntasks-per-node=1` (or `srun --ntasks-per-node=1 torchrun ...`), or remove torchrun and let srun
    start the ranks.

    Known limits: One process per launcher (`--nproc_per_node=1`) with as many launchers as `--nnodes` is valid but
    rare, and is not reported. Launchers inside a script that reads SLURM_LOCALID itself are not analysed.
    """
    for launch in job.launches:
        if launch.launcher not in AGENT_LAUNCHERS or "srun" not in launch.wrappers:
            continue
        tasks = job.setting("tasks_per_node", launch.scope)
        if not tasks:
            yield from _judge_task_total(job, launch)
            continue
        unresolved = why_unresolved(tasks, launch)
        if unresolved is not None:
            yield unknown(
                launch.id, f"tasks per node: {quoted(unresolved[0])} is unknown: {unresolved[1]}", at=tasks[0]
            )
        elif not certainly_several(job_value(tasks)) or _starts_one_rank(job, launch):
            yield passed(launch.id)
        else:
            yield _several_launchers_finding(job, launch, tasks[0], numbers(job_value(tasks)))


def _starts_one_rank(job: Job, launch: Launch) -> bool:
    """Return whether each launcher starts one rank, alone or as one of as many launchers as `--nnodes`."""
    processes = job.setting("processes_per_node", launch.scope)
    if processes and certainly_one(job_value(processes)) and job.setting("standalone", launch.scope):
        return True
    if not processes or not certainly_one(job_value(processes)):
        return False
    announced = [claim for claim in job.requirement_claims("nodes", launch.scope) if claim.source == launch.launcher]
    tasks, nodes = (numbers(job_value(job.setting(name, launch.scope))) for name in ("tasks_per_node", "nodes"))
    is_counted = bool(announced and tasks and nodes)
    return not is_counted or max(numbers(job_value(announced)), default=0) != max(nodes)


def _judge_task_total(job: Job, launch: Launch) -> Iterator[Verdict]:
    """Yield the verdict on tasks per node computed from `--ntasks` and `--nodes`: `--ntasks=4 --nodes=2` means two."""
    tasks, nodes = job.setting("tasks", launch.scope), job.setting("nodes", launch.scope)
    if undecided_verdict := undecided(launch.id, (*tasks, *nodes), launch, quantity="tasks per node"):
        yield undecided_verdict
        return
    if not tasks or not nodes:
        yield unknown(launch.id, "the number of tasks that srun starts on each node is not given")
        return
    task_counts, node_counts = numbers(job_value(tasks)), numbers(job_value(nodes))
    if not task_counts or not node_counts or min(task_counts) <= max(node_counts) or _starts_one_rank(job, launch):
        yield passed(launch.id)
        return
    yield _several_launchers_finding(job, launch, tasks[0], (-(-min(task_counts) // max(node_counts)),))


def _several_launchers_finding(job: Job, launch: Launch, tasks: Claim, launchers: tuple[int, ...]) -> Verdict:
    processes = job.setting("processes_per_node", launch.scope)
    ranks = numbers(job_value(processes)) if processes else ()
    message = (
        f"srun starts {launch.launcher} {joined(launchers)} times on each node ({quoted(tasks)}, {where(tasks)}), but"
        f" {launch.launcher} starts all ranks of its node itself."
    )
    if len(ranks) == 1 and len(launchers) == 1:
        message += (
            f" Each node would get {launchers[0]} x {ranks[0]} = {counted(launchers[0] * ranks[0], 'rank')} where"
            f" {ranks[0]} {'is' if ranks[0] == 1 else 'are'} intended."
        )
    return failed(
        launch.id,
        message,
        at=tasks,
        also=((launch, "the launcher"), *((claim, "ranks per launcher") for claim in processes)),
        remedy=f"Set `--ntasks-per-node=1`, or let srun start the script itself without {launch.launcher}.",
    )


def _is_task_of_srun(stated: Stated[Launch]) -> bool:
    program = stated.launch.program
    if stated.launch.launcher != "srun" or _is_launcher(program) or not program.endswith(".py"):
        return False
    if stated.job.about("spawned_processes", stated.launch.scope):
        return False
    # A step may prepare something before it starts a launcher on the same tasks, or start several programs.
    *_, tasks = stated
    other_task_spans = {
        claim.span
        for other in stated.job.launches
        for claim in stated.job.setting("tasks_per_node", other.scope)
        if other.launcher in AGENT_LAUNCHERS or (other != stated.launch and claim.scope.launch)
    }
    return all(task.span not in other_task_spans for task in tasks)


@rule(
    "SLU002",
    "one-task-for-several-gpus",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="srun starts no script on nodes with a known number of GPUs",
    each=launches_with("gpus_per_node", "nodes", also=("tasks_per_node",), where=_is_task_of_srun),
)
def one_task_for_several_gpus(question: LaunchQuestion) -> Verdict | None:
    """srun starts one task per node, although each node has several GPUs.

    What it checks: If srun itself starts Python on several nodes, the number of tasks per node is not 1 although
    several GPUs per node are granted.

    Why it matters: Each task is one rank. With one task per node, only one GPU per node is used, or the script starts
    its own ranks, whose numbers differ from Slurm's.

    Example: `#SBATCH --nodes=2 --gres=gpu:4` and `srun python train.py`, without `--ntasks-per-node=4`.

    Fix: `#SBATCH --ntasks-per-node=<GPUs per node>`, or start the script through torchrun.

    Known limits: A script that drives all GPUs of its node from one process (model parallelism in one process) is
    correct, so the finding is a warning of medium confidence. A script that spawns its ranks is not judged, nor is a
    program that passes local_device_ids to jax.distributed.initialize: without them, JAX takes one GPU for each task.
    """
    gpus, nodes, tasks = question.of
    if not tasks:
        return unknown(question.subject, "the number of tasks that srun starts on each node is not given")
    if all_devices_of_lightning(question.of.job, question.of.launch.scope) is not None:
        return None  # WLD001 reports this.
    if question.of.job.setting("setting.jax_initialize.local_device_ids", question.of.launch.scope):
        return None
    if certainly_one(job_value(tasks)) and certainly_several(job_value(gpus)) and certainly_several(job_value(nodes)):
        count = numbers(job_value(gpus))
        return failed(
            question.subject,
            f"{quoted(gpus[0])} grants {joined(count)} GPUs on each node, but srun starts only one task, and so one "
            f"rank, there ({quoted(tasks[0])}): {joined(n - 1 for n in count)} stay idle unless the script uses them "
            "itself.",
            at=question.of.launch,
            also=((gpus[0], "GPUs per node"), (tasks[0], "tasks per node")),
            remedy=f"Set `--ntasks-per-node={joined(count)}`, or start the script with torchrun.",
        )
    return None


@rule(
    "SLU003",
    "multi-node-launcher-on-first-node-only",
    severity=Severity.ERROR,
    otherwise="no launcher of a batch script sets the number of nodes that it runs on",
)
def multi_node_launcher_on_first_node_only(job: Job) -> Iterator[Verdict]:
    """A launcher for several nodes runs only on the first node of the allocation.

    What it checks: In a batch script for several nodes, srun, mpirun, pdsh or ssh starts a launcher that must run on
    every node (`torchrun --nnodes=4`).

    Why it matters: Slurm runs a batch script only on the first node. The launcher there waits for the others until the
    rendezvous times out, while all nodes are occupied.

    Example: `#SBATCH --nodes=4` and `torchrun --nnodes=4 --nproc_per_node=8 train.py` with no srun before it.

    Fix: Put `srun --ntasks-per-node=1` before the launcher.

    Known limits: A launch for which the script has its own node rank (a loop over hosts with ssh) is not judged,
    nor one inside a function or script that another command may start on all nodes.
    """
    for launch in job.launches:
        local_nodes = [c for c in job.setting("nodes", launch.scope) if on_first_node_only(c, launch)]
        required_nodes = job.requirement_claims("nodes", launch.scope)
        if launch.launcher not in AGENT_LAUNCHERS or not required_nodes:
            continue
        if not local_nodes:
            if "srun" in launch.wrappers:
                yield passed(launch.id)
            continue
        verdict = undecided(launch.id, (*local_nodes, *required_nodes), launch, quantity="nodes")
        if verdict is None and certainly_several(job_value(required_nodes)):
            verdict = _first_node_verdict(job, launch, required_nodes[0])
        yield verdict or passed(launch.id)


def _is_launcher(program: str) -> bool:
    """Return whether a program is one of `_LAUNCHER_MODULES`, also by a path relative to the working directory."""
    path = f"/{program.removesuffix('.py')}/"
    return any(f"/{module}/" in path for module in _LAUNCHER_MODULES)


def _header_nodes(job: Job) -> tuple[Claim, ...]:
    return tuple(c for c in job.setting("nodes") if c.source in SCHEDULERS)


def _is_own_task_rank(claim: Claim) -> bool:
    """Return whether the node rank is the process's own (a Slurm variable), or only the default.

    In a batch script it is then 0, and no other node is started.
    """
    if claim.strength is Strength.DEFAULT:
        return True
    return bool(symbols_in(claim.value) & {Symbol.PROCESS_RANK, Symbol.NODE_RANK, Symbol.LOCAL_RANK})


def _first_node_verdict(job: Job, launch: Launch, required: Claim) -> Verdict:
    # A rank in a configuration that all nodes share does not identify a node.
    node_ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.CONFIG]
    if any(not _is_own_task_rank(claim) for claim in node_ranks):
        return unknown(
            launch.id, f"{launch.launcher} has a node rank, so something else may start the other nodes", at=launch
        )
    count, grants = joined(numbers(required.value)), _header_nodes(job)
    name, starter = SCHEDULERS[grants[0].source if grants else "slurm"]
    return failed(
        launch.id,
        f"{quoted(required)} makes {launch.launcher} wait for {count} nodes, but nothing starts it on the other "
        f"nodes: {name} runs a batch script only on the first node of its allocation.",
        at=launch,
        also=((required, f"waits for {count}"), *((claim, "granted") for claim in grants)),
        remedy=f"Put `{starter}` before {launch.launcher}.",
        waits_at="rendezvous",
    )


@rule("SLU004", "allocated-nodes-never-used", severity=Severity.WARNING)
def allocated_nodes_never_used(job: Job) -> Iterator[Verdict]:
    """A batch script requests several nodes but starts everything on the first one.

    What it checks: In a batch script for several nodes, at least one launch uses other nodes: through srun, mpirun,
    pdsh, ssh or a launcher that reaches other nodes itself.

    Why it matters: All other nodes are idle, paid for and unavailable to others during the whole run.

    Example: `#SBATCH --nodes=4` and `torchrun --nproc_per_node=8 train.py` with no srun in the script.

    Fix: Put `srun --ntasks-per-node=1` before the launcher and pass `--nnodes` to it, or request one node.

    Known limits: SLU003 reports a launcher that waits for several nodes. A program that reaches other nodes by other
    means (its own ssh, a cluster library) is not recognized.
    """
    grants = _header_nodes(job)
    local_launches = [
        launch
        for launch in job.launches
        if any(on_first_node_only(c, launch) for c in job.setting("nodes", launch.scope))
    ]
    if not grants or not job.launches:
        yield not_applicable(job.name, "no batch script requests a number of nodes")
        return
    if undecided_verdict := undecided(job.name, grants, quantity="nodes"):
        yield undecided_verdict
        return
    waits_for_nodes = any(
        certainly_several(job_value(job.requirement_claims("nodes", launch.scope))) for launch in local_launches
    )
    if len(local_launches) < len(job.launches) or waits_for_nodes or not certainly_several(job_value(grants)):
        yield passed(job.name)
        return
    count = numbers(job_value(grants))
    yield failed(
        job.name,
        f"{quoted(grants[0])} requests {joined(count)} nodes, but everything the script launches runs on the first"
        f" one: {joined(n - 1 for n in count)} stay idle.",
        at=grants[0],
        also=tuple((launch, "runs on the first node") for launch in local_launches[:8]),
        remedy=f"Put `{SCHEDULERS[grants[0].source][1]}` before the launcher and give it the number of nodes, or"
        " request one node.",
    )
