"""The header of a batch script: directives, time, memory, tasks, and the steps that use them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted
from preflight_rules.schedulers.slurm_steps import steps

#: Forms of --time (sbatch manual): minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]].
_TIME = re.compile(r"-?\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}|(?i:infinite|unlimited)|0")
#: Numbers that are common as hours and unlikely as minutes.
_HOURS = ("24", "36", "48", "72", "96", "168")


def header_claims(job: Job, quantity: str) -> tuple[Claim, ...]:
    """The claims of the header's directives about a quantity."""
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

    What it checks: `#SBATCH` after the first command of the script, `#SBATCH--nodes` without a space, `#sbatch` in
    lower case. It is an error after the first command where the option asks for nodes, tasks, GPUs, memory, time, a
    partition, an account and the like, and a warning otherwise. `# SBATCH` with a space may be disabled on purpose: it
    is information, and a warning where it gives the nodes that a launch counts on and nothing else does.

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


#: Options whose loss leaves a job with other nodes, GPUs, memory, time, queue or account than it asked for.
_DECISIVE = re.compile(
    r"#SBATCH[ \t]+(?:--(?:nodes|ntasks(?:-per-(?:node|gpu))?|gres|gpus(?:-per-\w+)?|cpus-per-\w+|mem(?:-per-\w+)?|time"
    r"|account|partition|qos|constraint|nodelist|exclude|exclusive|reservation|array|dependency|licenses)(?![\w-])"
    r"|-[NnGcACpqtwxadL])"
)


def _severity(job: Job, claim: Claim) -> Severity:
    """An error where a decisive option is lost for certain; a line with a space may be switched off on purpose."""
    if claim.spelling[1:2].isspace():
        return Severity.WARNING if _sets_needed_nodes(job, claim) else Severity.INFO
    is_repeated = any(read.spelling.strip() == claim.spelling.strip() for read in job.about("batch_directive"))
    return Severity.ERROR if _DECISIVE.match(claim.spelling) and not is_repeated else Severity.WARNING


def _sets_needed_nodes(job: Job, claim: Claim) -> bool:
    """Whether the line that Slurm ignores states the number of nodes that a launch needs, and no directive does."""
    found = re.search(r"SBATCH[ \t]+(?:--nodes[= ]|-N[ \t]*)(\d{1,6})[ \t]*$", claim.spelling)
    if found is None or int(found[1]) < 2 or header_claims(job, "nodes"):
        return False
    return any(numbers(job_value(job.requiring("nodes", each.scope))) == (int(found[1]),) for each in job.launches)


@rule("SLU008", "tasks-contradict-tasks-per-node", severity=Severity.ERROR, profile="default")
def tasks_contradict_tasks_per_node(job: Job) -> Iterator[Verdict]:
    """`--ntasks` and `--ntasks-per-node` of one header contradict each other.

    What it checks: With `--nodes`, `--ntasks` and `--ntasks-per-node` all given, that nodes x tasks per node = tasks.

    Why it matters: sbatch then ignores `--ntasks-per-node` ("can't honor --ntasks-per-node"), and ranks are placed
    differently from what the script expects.

    Example: `#SBATCH --nodes=2 --ntasks=4 --ntasks-per-node=4`.

    Fix: Leave `--ntasks` out, or make it the product.

    Known limits: Fewer tasks than the product are allowed, and only information, unless a node has a GPU for each task.
    """
    nodes, tasks, each = (header_claims(job, name) for name in ("nodes", "tasks", "tasks_per_node"))
    nodes, tasks, each = (tuple(c for c in found if c.scope == Scope()) for found in (nodes, tasks, each))
    if not nodes or not tasks or not each:
        yield not_applicable(job.name, "no header sets the number of nodes, of tasks and of tasks per node")
        return
    verdict = undecided(job.name, (nodes[0], tasks[0], each[0]))
    many, total, per_node = (numbers(claim.value) for claim in (nodes[0], tasks[0], each[0]))
    if verdict is None and len(many) == len(total) == len(per_node) == 1 and total[0] != many[0] * per_node[0]:
        product = many[0] * per_node[0]
        idle = per_node[0] in numbers(job_value(job.setting("gpus_per_node")))
        verdict = failed(
            job.name,
            f"{quoted(tasks[0])}, but {quoted(nodes[0])} x {quoted(each[0])} = {product}: sbatch ignores one of them.",
            at=tasks[0],
            also=((each[0], "tasks of a node"), (nodes[0], "nodes")),
            remedy=f"Remove --ntasks, or write --ntasks={product}.",
            severity=None if total[0] > product else Severity.WARNING if idle else Severity.INFO,
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
    """`--time` has a form that Slurm rejects, or gives minutes where hours are probably intended.

    What it checks: The forms of the manual: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on. A
    bare 24, 48, 72 ... is a warning: it means minutes.

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
                f"{quoted(claim)} is not a time that Slurm understands: sbatch rejects the script.",
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


def _option_of(claim: Claim) -> str:
    """The name of a directive's option, also where its value is filled in later."""
    return claim.spelling.removeprefix("--").replace("=", " ").split(" ")[0]


@rule(
    "SLU010",
    "memory-options-exclude-each-other",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no header requests memory",
)
def memory_options_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """Memory is requested with two options that exclude each other.

    What it checks: One header has at most one of `--mem`, `--mem-per-cpu` and `--mem-per-gpu`.

    Why it matters: sbatch rejects the script: they are mutually exclusive.

    Example: `#SBATCH --mem=64G` and `#SBATCH --mem-per-cpu=4G`.

    Fix: Keep one of them.

    Known limits: What is given on the command line of sbatch is not seen.
    """
    by_file: dict[str, list[Claim]] = {}
    for claim in job.about("batch_directive"):
        if claim.scope == Scope() and _option_of(claim) in _MEMORY_OPTIONS:
            by_file.setdefault(claim.span.path, []).append(claim)
    for claims in by_file.values():
        kinds = {_option_of(claim): claim for claim in claims}
        if len(kinds) < 2:
            yield passed(job.name)
            continue
        first, second, *_ = kinds.values()
        undecided_verdict = undecided(job.name, (first, second))
        yield undecided_verdict or failed(
            job.name,
            f"{quoted(first)} and {placed(second)} exclude each other: sbatch rejects the script.",
            at=second,
            also=((first, "the other"),),
            remedy="Keep one of the two.",
        )


@rule(
    "SLU013",
    "step-larger-than-allocation",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no step sets its own number of nodes",
)
def step_larger_than_allocation(job: Job) -> Iterator[Verdict]:
    """A step requests more nodes than the job has.

    What it checks: `srun --nodes` of a batch script is at most `#SBATCH --nodes`.

    Why it matters: srun rejects the step ("More processors requested than permitted") or waits for nodes that never
    come.

    Example: `#SBATCH --nodes=2` and `srun --nodes=4 ...`.

    Fix: Take the number from the allocation: leave `--nodes` out of srun, or write $SLURM_NNODES.

    Known limits: Directives may be overridden on the command line of sbatch.
    """
    for step in steps(job):
        requested = step.about("step_nodes")
        granted = tuple(c for c in job.about("nodes", step.scope) if c.source == "slurm" and c.scope == Scope())
        if requested is None or not granted or requested.span == granted[0].span:
            continue
        verdict = undecided(step.subject, (requested, granted[0]), step.launch)
        wanted, granted_count = numbers(requested.value), numbers(granted[0].value)
        if verdict is None and wanted and granted_count and min(wanted) > max(granted_count):
            verdict = failed(
                step.subject,
                f"{quoted(requested)} requests {counted(min(wanted), 'node')}, and {placed(granted[0])} grants"
                f" {max(granted_count)}.",
                at=requested,
                also=((granted[0], "granted"),),
                remedy="Remove --nodes from srun, or raise it in the header.",
            )
        yield verdict or passed(step.subject)


@rule("CST001", "granted-nodes-beyond-all-steps", severity=Severity.WARNING)
def granted_nodes_beyond_all_steps(job: Job) -> Iterator[Verdict]:
    """The steps of a script together use fewer nodes than the job has.

    What it checks: The nodes of all background steps together, or of the largest foreground step, equal `#SBATCH
    --nodes`, where all of them are known.

    Why it matters: The nodes that no step uses are billed and blocked for others for the whole run.

    Example: `#SBATCH --nodes=4` and a single `srun --nodes=2 python train.py`.

    Fix: Request as many nodes as the steps use, or let the steps use all of them.

    Known limits: Only reported where every command that does some work is a step whose nodes are known, not with
    mpirun, ssh and the like in the script.
    """
    granted = tuple(c for c in header_claims(job, "nodes") if c.scope == Scope())
    found = list(steps(job))
    if not granted or not found:
        yield not_applicable(job.name, "no batch script with a number of nodes runs steps")
        return
    sizes = [step.about("step_nodes") for step in found]
    known = [claim for claim in sizes if claim is not None]
    undecided_verdict = undecided(job.name, (granted[0], *known))
    if undecided_verdict is not None or len(known) < len(found):
        yield undecided_verdict or unknown(job.name, "the number of nodes of a step is unknown", at=found[0].claim)
        return
    granted_count = numbers(granted[0].value)
    sized = [(step, max(numbers(claim.value) or (0,))) for step, claim in zip(found, known, strict=True)]
    background = sum(size for step, size in sized if step.definitely("step_background"))
    front = max((size for step, size in sized if not step.definitely("step_background")), default=0)
    used = background + front
    whole = any(step.definitely("step_repeated") for step in found) or len({c.span.path for c in known}) > 1
    others = job.about("reaches_nodes") or len(job.launches) > len(found)
    if whole or others or not granted_count or used >= min(granted_count):
        yield passed(job.name)
        return
    waits = [claim for launch in job.launches for claim in job.requiring("nodes", launch.scope)]
    if any(numbers(claim.value) and min(numbers(claim.value)) > used for claim in waits):
        yield not_applicable(job.name, "a launch expects more nodes than its step has, and waits for them")
        return
    yield failed(
        job.name,
        f"{quoted(granted[0])} requests {counted(min(granted_count), 'node')}, and the steps of the script use {used}:"
        f" {min(granted_count) - used} stay idle.",
        at=granted[0],
        also=tuple((claim, "used by a step") for claim in known[:8] if claim.span != granted[0].span),
        remedy=f"Request {counted(used, 'node')}, or let the steps use all.",
    )
