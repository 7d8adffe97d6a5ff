"""The header of a batch script against itself, and against the steps it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import counted, job_value, numbers, placed, quoted, texts, undecided
from preflight_rules.schedulers.steps import steps

#: Forms of --time (sbatch manual): minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]].
_TIME = lazy_pattern(r"\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}|(?i:infinite|unlimited)|0")
#: Minutes that nobody asks for, and hours that many do.
_HOURS = ("24", "36", "48", "72", "96", "168")


def header_says(job: Job, quantity: str) -> tuple[Claim, ...]:
    """What the header says of a quantity, by its own words."""
    return tuple(c for c in job.about(quantity) if c.source == "slurm" and not c.because)


@rule(
    "SLU007",
    "directive-not-read",
    severity=Severity.WARNING,
    evidence=(
        "https://slurm.schedmd.com/sbatch.html#SECTION_DESCRIPTION",
        "https://bugs.schedmd.com/show_bug.cgi?id=8376",
    ),
)
def directive_not_read(job: Job) -> Iterator[Verdict]:
    """A line looks like a directive for sbatch, which does not read it.

    What it checks:
        `#SBATCH` behind the first command of the script, `#SBATCH--nodes` without a blank, `#sbatch` in small
        letters; as information `# SBATCH` with a blank, which may be how somebody switched it off, unless it gives the
        nodes that a launch counts on and nothing else does.

    Why it matters:
        sbatch stops reading at the first command and says nothing about the rest. The job runs with the defaults of
        the cluster: one node, no GPU, an hour.

    Example:
        `module load cuda` and below it `#SBATCH --gres=gpu:8`.

    Fix:
        Move all directives to the top, right behind `#!`.

    Known limits:
        `##SBATCH` is taken for switched off on purpose.

    Evidence:
        sbatch's manual (directives are read up to the first line that is neither blank nor a comment).
    """
    found = job.about("directive_unread")
    for claim in found:
        reasons = texts(claim.value)
        blank = "".join(reasons).startswith("a blank")
        open_end = undecided(job.name, (claim,))
        yield open_end or failed(
            job.name,
            f"{quoted(claim)} is not read by sbatch: {reasons[0] if reasons else ''}.",
            at=claim,
            remedy="Move it to the directives at the top of the script, written `#SBATCH --option=value`.",
            severity=Severity.INFO if blank and not _missed(job, claim) else None,
        )
    if not found:
        headers = header_says(job, "nodes") or header_says(job, "time_limit") or header_says(job, "gpus_per_node")
        yield passed(job.name) if headers else not_applicable(job.name, "no batch script of Slurm")


def _missed(job: Job, claim: Claim) -> bool:
    """Whether a line that is not read gives the nodes that a launch counts on, and none that is read does."""
    found = re.search(r"SBATCH[ \t]+(?:--nodes[= ]|-N[ \t]*)(\d{1,6})[ \t]*$", claim.spelling)
    if found is None or int(found[1]) < 2 or header_says(job, "nodes"):
        return False
    return any(numbers(job_value(job.requiring("nodes", each.scope))) == (int(found[1]),) for each in job.launches)


@rule(
    "SLU008",
    "tasks-contradict-tasks-per-node",
    severity=Severity.WARNING,
    evidence=("https://slurm.schedmd.com/sbatch.html#OPT_ntasks-per-node", "pytorch/pytorch#67547"),
)
def tasks_contradict_tasks_per_node(job: Job) -> Iterator[Verdict]:
    """`--ntasks` and `--ntasks-per-node` of one header do not come to the same.

    What it checks:
        With `--nodes`, `--ntasks` and `--ntasks-per-node` all given, that nodes x tasks per node = tasks.

    Why it matters:
        sbatch then ignores `--ntasks-per-node` ("can't honor --ntasks-per-node"), and ranks are laid out otherwise
        than the script counts on.

    Example:
        `#SBATCH --nodes=2 --ntasks=4 --ntasks-per-node=4`.

    Fix:
        Leave `--ntasks` out, or make it the product.

    Known limits:
        Fewer tasks than the product is allowed, and only information.

    Evidence:
        sbatch's manual, --ntasks-per-node.
    """
    nodes, tasks, each = (header_says(job, name) for name in ("nodes", "tasks", "tasks_per_node"))
    nodes, tasks, each = (tuple(c for c in found if c.scope == Scope()) for found in (nodes, tasks, each))
    if not nodes or not tasks or not each:
        yield not_applicable(job.name, "no header gives nodes, tasks and tasks per node")
        return
    open_end = undecided(job.name, (nodes[0], tasks[0], each[0]))
    many, total, one = (numbers(claim.value) for claim in (nodes[0], tasks[0], each[0]))
    if open_end is not None:
        yield open_end
    elif len(many) == len(total) == len(one) == 1 and total[0] != many[0] * one[0]:
        product = many[0] * one[0]
        yield failed(
            job.name,
            f"{quoted(tasks[0])}, but {quoted(nodes[0])} x {quoted(each[0])} = {product}: sbatch ignores one of them.",
            at=tasks[0],
            also=((each[0], "tasks of a node"), (nodes[0], "nodes")),
            remedy=f"Leave --ntasks out, or write --ntasks={product}.",
            severity=None if total[0] > product else Severity.INFO,
        )
    else:
        yield passed(job.name)


@rule(
    "SLU009",
    "time-limit-not-what-it-seems",
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/sbatch.html#OPT_time",),
)
def time_limit_not_what_it_seems(job: Job) -> Iterator[Verdict]:
    """`--time` is written in a form that Slurm refuses, or one that means minutes where hours are meant.

    What it checks:
        The forms of the manual: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on. A bare 24, 48,
        72 ... is a warning: it means minutes.

    Why it matters:
        sbatch refuses the script ("Invalid --time specification"), or ends the job after 24 minutes.

    Example:
        `#SBATCH --time=24h`, `#SBATCH --time=48`.

    Fix:
        `--time=24:00:00` or `--time=2-00`.

    Known limits:
        Somebody may want 48 minutes.

    Evidence:
        sbatch's manual, --time.
    """
    found = header_says(job, "time_limit")
    for claim in found:
        open_end = undecided(job.name, (claim,))
        values = texts(claim.value)
        if open_end is not None:
            yield open_end
        elif any(not re.search(r"\d", value) or re.search(r"[{}<>$%@]", value) for value in values):
            if all(_TIME.fullmatch(value.strip()) for value in values):
                yield passed(job.name)
            else:
                yield unknown(job.name, f"{quoted(claim)} is to be filled in", at=claim)
        elif values and not any(_TIME.fullmatch(value.strip()) for value in values):
            yield failed(
                job.name,
                f"{quoted(claim)} is no time that Slurm understands: sbatch refuses the script.",
                at=claim,
                remedy="Write hours:minutes:seconds (24:00:00) or days-hours (1-00).",
            )
        elif values and all(value.strip() in _HOURS for value in values):
            yield failed(
                job.name,
                f"{quoted(claim)} are {values[0]} minutes, not hours.",
                at=claim,
                remedy=f"Write {values[0]}:00:00 for hours.",
                severity=Severity.WARNING,
                confidence=Confidence.MEDIUM,
            )
        else:
            yield passed(job.name)
    if not found:
        yield not_applicable(job.name, "no header gives a time limit")


@rule(
    "SLU010",
    "memory-options-exclude-each-other",
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/sbatch.html#OPT_mem",),
)
def memory_options_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """Memory is asked for in two ways of which Slurm takes one.

    What it checks:
        Of `--mem`, `--mem-per-cpu` and `--mem-per-gpu` one header gives one at most.

    Why it matters:
        sbatch refuses the script: they are mutually exclusive.

    Example:
        `#SBATCH --mem=64G` and `#SBATCH --mem-per-cpu=4G`.

    Fix:
        Keep one of them.

    Known limits:
        What is given on the command line of sbatch is not seen.

    Evidence:
        sbatch's manual, --mem.
    """
    by_file: dict[str, list[Claim]] = {}
    for name in ("memory_per_node_mib", "memory_per_cpu_mib", "memory_per_gpu_mib"):
        for claim in header_says(job, name):
            if claim.scope == Scope():
                by_file.setdefault(claim.span.path, []).append(claim)
    for claims in by_file.values():
        kinds = {claim.quantity: claim for claim in claims}
        if len(kinds) < 2:
            yield passed(job.name)
            continue
        first, second, *_ = kinds.values()
        open_end = undecided(job.name, (first, second))
        yield open_end or failed(
            job.name,
            f"{quoted(first)} and {placed(second)} exclude each other: sbatch refuses the script.",
            at=second,
            also=((first, "the other"),),
            remedy="Keep one of the two.",
        )
    if not by_file:
        yield not_applicable(job.name, "no header asks for memory")


@rule(
    "SLU013",
    "step-larger-than-allocation",
    severity=Severity.ERROR,
    evidence=("https://slurm.schedmd.com/srun.html#OPT_nodes", "huggingface/accelerate#2521"),
)
def step_larger_than_allocation(job: Job) -> Iterator[Verdict]:
    """A step asks for more nodes than the script was granted.

    What it checks:
        `srun --nodes` of a batch script against `#SBATCH --nodes`.

    Why it matters:
        srun refuses the step ("More processors requested than permitted") or waits for nodes that never come.

    Example:
        `#SBATCH --nodes=2` and `srun --nodes=4 ...`.

    Fix:
        Take the number from the allocation: leave `--nodes` out of srun, or write $SLURM_NNODES.

    Known limits:
        A script whose directives are overridden on the command line of sbatch is right in another way.

    Evidence:
        srun's manual, --nodes.
    """
    met = False
    for step in steps(job):
        asked = step.about("step_nodes")
        granted = tuple(c for c in job.about("nodes", step.scope) if c.source == "slurm" and c.scope == Scope())
        if asked is None or not granted or asked.span == granted[0].span:
            continue
        met = True
        open_end = undecided(step.subject, (asked, granted[0]), step.launch)
        wanted, there = numbers(asked.value), numbers(granted[0].value)
        if open_end is not None:
            yield open_end
        elif wanted and there and min(wanted) > max(there):
            yield failed(
                step.subject,
                f"{quoted(asked)} asks for {counted(min(wanted), 'node')}, and {placed(granted[0])} grants"
                f" {max(there)}.",
                at=asked,
                also=((granted[0], "granted"),),
                remedy="Leave --nodes out of srun, or raise it in the header.",
            )
        else:
            yield passed(step.subject)
    if not met:
        yield not_applicable(job.name, "no step gives a number of nodes of its own")


@rule(
    "CST001",
    "granted-nodes-beyond-all-steps",
    severity=Severity.WARNING,
    evidence=("https://slurm.schedmd.com/srun.html#OPT_nodes",),
)
def granted_nodes_beyond_all_steps(job: Job) -> Iterator[Verdict]:
    """The steps of a script together use fewer nodes than it asks for.

    What it checks:
        The nodes of the steps in the background together, and of the largest one in the foreground, against
        `#SBATCH --nodes`, where all of them are known.

    Why it matters:
        The nodes that no step uses are billed and blocked for others for the whole run.

    Example:
        `#SBATCH --nodes=4` and a single `srun --nodes=2 python train.py`.

    Fix:
        Ask for as many nodes as the steps use, or let the steps use all of them.

    Known limits:
        Only where every command that does some work is a step whose nodes are known: with mpirun, ssh and the like
        in the script nothing is said.

    Evidence:
        srun's manual, --nodes.
    """
    granted = tuple(c for c in header_says(job, "nodes") if c.scope == Scope())
    found = list(steps(job))
    if not granted or not found:
        yield not_applicable(job.name, "no batch script runs steps on nodes it asks for")
        return
    sizes = [step.about("step_nodes") for step in found]
    known = [claim for claim in sizes if claim is not None]
    open_end = undecided(job.name, (granted[0], *known))
    if open_end is not None or len(known) < len(found):
        yield open_end or unknown(job.name, "over how many nodes a step runs", at=found[0].claim)
        return
    there = numbers(granted[0].value)
    sized = [(step, max(numbers(claim.value) or (0,))) for step, claim in zip(found, known, strict=True)]
    behind = sum(size for step, size in sized if step.surely("step_background"))
    front = max((size for step, size in sized if not step.surely("step_background")), default=0)
    used = behind + front
    whole = any(step.surely("step_repeated") for step in found) or len({c.span.path for c in known}) > 1
    others = job.about("reaches_nodes") or len(job.launches) > len(found)
    if whole or others or not there or used >= min(there):
        yield passed(job.name)
        return
    yield failed(
        job.name,
        f"{quoted(granted[0])} asks for {counted(min(there), 'node')}, and the steps of the script use {used}:"
        f" {min(there) - used} stay idle.",
        at=granted[0],
        also=tuple((claim, "used by a step") for claim in known[:8] if claim.span != granted[0].span),
        remedy=f"Ask for {counted(used, 'node')}, or let the steps use all.",
    )
