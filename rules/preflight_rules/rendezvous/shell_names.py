"""Variables of scripts that do not reach the program that should read them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.claim import distinct
from preflight.model.job.value import texts
from preflight.plugins.authoring import (
    Verdict,
    failed,
    make_fix,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
from preflight.plugins.claim_text import quoted
from preflight_rules.data_tables import known_variables
from preflight_rules.launches import AGENT_LAUNCHERS, starting_file


@rule(
    "ENV011",
    "variable-name-refused-by-shell",
    severity=Severity.WARNING,
    otherwise="no script exports a variable",
    passes_with=("env.",),
    fix="unsafe",
)
def variable_name_refused_by_shell(job: Job) -> Iterator[Verdict]:
    """A script exports a name that no shell variable can have.

    What it checks: Names after `export` consist of letters, digits and underscores.

    Why it matters: The shell prints "not a valid identifier" among many other lines, sets nothing and continues: the
    job runs with the old value.

    Example: `export NCCL_IB-DISABLE=1`, meant to be NCCL_IB_DISABLE.

    Fix: Replace other characters by underscores.

    Known limits: Only `export` at the beginning of a line is checked.
    """
    for claim in distinct(job.about("refused_variable")):
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        (name,) = texts(claim.value) or ("",)
        meant = name.replace("-", "_").replace(".", "_")
        known = meant in known_variables()
        yield failed(
            claim.span.path,
            f"{quoted(claim)} has no effect: names in a shell have letters, digits and underscores only"
            + (f"; {meant} is probably meant." if known else "."),
            at=claim,
            remedy=f"Write {meant}.",
            fix=make_fix(f"rename {name} to {meant}", replace_text(claim, name, meant), safe=False),
        )


@rule("ENV027", "blank-beside-equals-sign", severity=Severity.ERROR, otherwise="the job has no launch line")
def blank_beside_equals_sign(job: Job) -> Iterator[Verdict]:
    """A line means to set a variable and has a blank beside the equals sign.

    What it checks: `NAME = value` where the script uses the variable, and `export NAME= value`.

    Why it matters: The shell takes the first for a command called NAME, which it does not find, and the second for an
    empty value and another name. The variable stays empty, and the launch line loses its value or its option.

    Example: `NPROC = 8` and `torchrun --nproc_per_node=$NPROC train.py`.

    Fix: `NPROC=8`.

    Known limits: `NAME= command` runs a command with an empty variable, which may be meant.
    """
    found = distinct(job.about("blank_in_assignment"))
    if not found and job.launches:
        yield passed(job.name)
    for claim in found:
        (name,) = texts(claim.value) or ("",)
        yield undecided(claim.span.path, (claim,)) or failed(
            claim.span.path,
            f"{quoted(claim)} does not set {name}: an assignment has no blanks beside the equals sign.",
            at=claim,
            remedy=f"Write {name}=VALUE.",
        )


#: Variables of ranks that torchrun and similar launchers set, whatever the script assigned.
_SET_BY_LAUNCHERS = frozenset(("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"))


def _is_set_by_launchers(job: Job, claim: Claim) -> bool:
    """Whether the script of a claim starts programs, and only with launchers that set the variables of ranks."""
    launchers = [launch.launcher for launch in job.launches if starting_file(launch) == claim.span.path]
    return bool(launchers) and all(name in AGENT_LAUNCHERS or name == "deepspeed" for name in launchers)


@rule(
    "ENV018",
    "variable-does-not-reach-program",
    severity=Severity.WARNING,
    otherwise="no script sets a variable for a program",
    passes_with=("env.",),
)
def variable_does_not_reach_program(job: Job) -> Iterator[Verdict]:
    """A script sets a variable for a program, which does not see it.

    What it checks: Variables that launchers and communication libraries read (NPROC_PER_NODE, MASTER_ADDR, NCCL_*,
    CUDA_VISIBLE_DEVICES ...) are exported or stand before the command. They are neither assigned on a line of their own
    and used nowhere else, nor written among the arguments.

    Why it matters: The shell keeps the value to itself. The program runs with its default: one process, all GPUs,
    another port.

    Example: `NPROC_PER_NODE=8` on a line of its own, and `swift sft ...` below it.

    Fix: Write `export NPROC_PER_NODE=8`, or put the assignment before the command on the same line.

    Known limits: A variable that the environment of the script has already stays exported when it is assigned. A script
    that names the variable a second time may pass it on, and is not judged. Ranks and their number are not judged where
    only launchers that set them start programs. What `srun --export=NAME,...` without ALL keeps from the tasks is
    judged where a script reads it as `os.environ["NAME"]`, outside of branches.
    """
    yield from _withheld(job)
    for claim in distinct((*job.about("unexported_variable"), *job.about("variable_as_argument"))):
        (name,) = texts(claim.value) or ("",)
        if name in _SET_BY_LAUNCHERS and _is_set_by_launchers(job, claim):
            yield passed(claim.span.path)
            continue
        as_argument = claim.quantity == "variable_as_argument"
        yield undecided(claim.span.path, (claim,)) or failed(
            claim.span.path,
            f"{quoted(claim)} "
            + (
                "stands among the arguments, so the program gets it as text"
                if as_argument
                else "is neither exported nor used in the script"
            )
            + f": the program does not see {name}.",
            at=claim,
            remedy=f"Put it before the command: `{claim.spelling} command ...`."
            if as_argument
            else f"Write `export {claim.spelling}`, or put it before the command on one line.",
        )


def _withheld(job: Job) -> Iterator[Verdict]:
    """The verdicts on variables that a list of srun leaves out, and that the program reads."""
    for launch in job.launches:
        needed = {name: claim for claim in job.about("needed_variable", launch.scope) for name in texts(claim.value)}
        for claim in distinct(job.about("withheld_variable", launch.scope)):
            (name,) = texts(claim.value) or ("",)
            if name in needed:
                yield undecided(launch.id, (claim,), launch) or failed(
                    launch.id,
                    f"`{claim.spelling}` passes only what it lists, and {name} is not among it: the program stops with"
                    " KeyError.",
                    at=claim,
                    also=((needed[name], "read here"), *((each, "exported here") for each in claim.because)),
                    remedy="Begin the list with ALL: `--export=ALL,...`.",
                )


@rule(
    "ENV019",
    "exported-value-replaced",
    severity=Severity.WARNING,
    otherwise="no script exports a variable",
    passes_with=("env.",),
)
def exported_value_replaced(job: Job) -> Iterator[Verdict]:
    """A script exports a variable twice in a row with different values.

    What it checks: In a block of exports with constant values, no variable occurs twice with two values.

    Why it matters: Only the last one counts. Where one was meant for each machine, as with the name of an interface,
    every machine gets the last one.

    Example: `export NCCL_SOCKET_IFNAME=eno1` and, on the next line, `export NCCL_SOCKET_IFNAME=enp96s0f0`.

    Fix: Keep one of them. NCCL takes a list of interfaces: `export NCCL_SOCKET_IFNAME=eno1,enp96s0f0`.

    Known limits: Only lines with only exports, comments and blank lines between them are compared.
    """
    for claim in distinct(job.about("overwritten_export")):
        if not claim.because:
            continue
        later = claim.because[0]
        (name,) = texts(claim.value) or ("",)
        if name == "PATH":
            yield unknown(claim.span.path, f"{quoted(claim)}: a shell may look up commands in between", at=claim)
            continue
        yield failed(
            claim.span.path,
            f"{quoted(claim)} has no effect: line {later.span.line} replaces it with {quoted(later)}.",
            at=claim,
            also=((later, "the value that counts"),),
            remedy="Remove the one that is not meant"
            + (", or write both in one list." if name.endswith("_IFNAME") else "."),
        )


@rule(
    "ENV026",
    "variable-left-on-this-machine",
    severity=Severity.ERROR,
    otherwise="no command for another machine uses a variable of the script",
)
def variable_left_on_this_machine(job: Job) -> Iterator[Verdict]:
    """A command for another machine uses a variable that only the script here has.

    What it checks: A launch line in single quotes behind ssh, pdsh or clush uses no variable that the script assigns:
    the shell on the other machine expands it.

    Why it matters: The other machine has no such variable and puts nothing in its place: every node gets the same rank,
    or none, and no address. The launcher stops or waits.

    Example: `for h in $HOSTS; do ssh $h 'torchrun --node_rank=$rank ...' & done`.

    Fix: Write the command in double quotes, or close the single quotes around the variable.

    Known limits: A variable that the other machine's profile happens to set under the same name is not known.
    """
    used = distinct(job.about("variable_left_here"))
    for claim in used:
        undecided_verdict = undecided(claim.span.path, (claim,))
        (name,) = texts(claim.value) or ("",)
        yield undecided_verdict or failed(
            claim.span.path,
            f"`{claim.spelling}` is in single quotes, so the other machine expands it, and ${name} is set in this"
            " script only: nothing takes its place.",
            at=claim,
            remedy="Write the command in double quotes.",
        )
    if not used:
        for launch in job.launches:
            if {"ssh", "pdsh", "clush"} & set(launch.wrappers):
                yield passed(launch.id)
