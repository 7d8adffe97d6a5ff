"""Environment variables: misspelt, misunderstood by their reader, left over from debugging, or overridden."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Strength
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Fix, Severity
from preflight_rules.reading import (
    certainly_one,
    certainly_several,
    job_value,
    nodes_spanned,
    placed,
    quoted,
    spoken,
    subjects,
    texts,
    undecided,
)
from preflight_rules.tables import accepted_values, known_variables, leftovers

_PREFIX = "env."
#: Names with these beginnings belong to a library; others may be the script's own.
_LIBRARIES = ("NCCL_", "TORCH_", "GLOO_", "PADDLE_", "CUDA_", "FLAGS_", "TP_SOCKET", "PYTORCH_")
#: Beginnings that come of hitting the wrong key in one of them.
_NEAR_LIBRARIES = lazy_pattern(r"N?C?CC?L_|NCLL_|NCC_|NNCL_|CUDA[A-Z]|CUD_|GLO_|TROCH_")
#: Below this length two different real names are too close to each other.
_SHORTEST = 10
#: From this length on, two slips are believed; below, one.
_LONG = 15


def variables(job: Job) -> Iterator[tuple[str, Launch | None, str, Claim]]:
    """Every variable in force, once for each place: subject, launch, name and claim."""
    seen: set[tuple[str, int, int, str]] = set()
    for subject, scope, launch in subjects(job):
        for claim in job.environment(scope):
            name = claim.quantity.removeprefix(_PREFIX)
            key = (claim.span.path, claim.span.line, claim.span.column, name)
            if key not in seen:
                seen.add(key)
                yield subject, launch, name, claim


@rule(
    "ENV001",
    "variable-misspelt",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    fix="unsafe",
    evidence=("cocktailpeanut/fluxgym#283",),
)
def variable_misspelt(job: Job) -> Iterator[Verdict]:
    """A variable is set whose name nothing reads, one slip away from one that is read.

    What it checks:
        Exported variables that begin like those of NCCL, Gloo, torch, CUDA or Paddle and are not among their names,
        but very close to one.

    Why it matters:
        The setting has no effect, and nothing says so: the job runs with the value it was meant to change.

    Example:
        `export NCCL_P2P5ISABLE=1`, meant to be NCCL_P2P_DISABLE.

    Fix:
        Take the spelling that the finding names.

    Known limits:
        A name that is nobody's and near nobody's is left alone, because scripts have variables of their own. A
        name that is set together with the one it resembles is taken for the script's own, too.

    Evidence:
        cocktailpeanut/fluxgym#283 (NCCL_P2P5ISABLE and NCCL_IB-DISABLE had no effect).
    """
    present = {claim.quantity.removeprefix(_PREFIX) for _, _, _, claim in variables(job)}
    met = False
    for subject, _, name, claim in variables(job):
        if not name.startswith(_LIBRARIES) and not _NEAR_LIBRARIES.match(name):
            continue
        met = True
        meant = nearest(name)
        if name in known_variables() or meant in present:
            yield passed(subject)
            continue
        if meant is None:
            yield unknown(subject, f"{name} is in no table of known variables; it may be the script's own", at=claim)
            continue
        shell = "" if re.fullmatch(r"\w+", name) else ", and a shell cannot export such a name"
        yield failed(
            subject,
            f"{quoted(claim)}: nothing reads {name}{shell}; {meant} is probably meant.",
            at=claim,
            remedy=f"Write {meant}, or leave the line out.",
            # Unsafe: from then on the setting has the effect that it never had.
            fix=mend(f"rename {name} to {meant}", reworded(claim, name, meant), safe=False),
        )
    if not met:
        yield not_applicable(job.name, "no variable of a known library is set")


def nearest(name: str, known: frozenset[str] | None = None) -> str | None:
    """The known name that `name` is probably a misspelling of; None when it is known or near none."""
    known = known_variables() if known is None else known
    if name in known or len(name) < _SHORTEST:
        return None
    most = 2 if len(name) >= _LONG else 1
    best: tuple[int, str] | None = None
    for candidate in known:
        if abs(len(candidate) - len(name)) > most:
            continue
        slips = distance(name.upper(), candidate.upper(), most)
        if slips <= most and (best is None or (slips, candidate) < best):
            best = (slips, candidate)
    # Numbered or plural names (NCCL_DEBUG2, NCCL_IB_HCAS) are scripts' own more often than slips.
    if best is None or name.rstrip("0123456789S") == best[1]:
        return None
    return best[1]


def distance(first: str, second: str, most: int) -> int:
    """Insertions, deletions, replacements and swaps of neighbours between two texts; above `most` any larger number."""
    # What costs next to nothing and settles nearly all pairs: one slip changes the set of letters by two at most.
    if abs(len(first) - len(second)) > most or len(set(first) ^ set(second)) > 2 * most:
        return most + 1
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        previous, before_previous, row = row, before, [i]
        for j, b in enumerate(second, 1):
            cost = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                cost = min(cost, before_previous[j - 2] + 1)
            row.append(cost)
        before = previous
        if min(row) > most:
            return most + 1
    return row[-1]


@rule(
    "ENV002",
    "variable-value-not-understood",
    severity=Severity.WARNING,
    fix="unsafe",
    evidence=(
        "https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc",
        "https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug",
    ),
)
def variable_value_not_understood(job: Job) -> Iterator[Verdict]:
    """A well-known variable holds a value that its reader does not understand.

    What it checks:
        NCCL's switches and counts are numbers; NCCL_DEBUG and TORCH_DISTRIBUTED_DEBUG are one of their levels.

    Why it matters:
        NCCL makes 0 of a word, so `NCCL_IB_DISABLE=true` leaves InfiniBand on. torch stops at start for a level it
        does not know.

    Example:
        `export NCCL_IB_DISABLE=true`.

    Fix:
        Write 1 or 0, or one of the levels.

    Known limits:
        Only variables in the table `data/values.toml` are looked at.

    Evidence:
        NCCL, src/misc/param.cc (strtoll); torch.distributed documentation, TORCH_DISTRIBUTED_DEBUG.
    """
    met = False
    for subject, launch, name, claim in variables(job):
        accepted = accepted_values().get(name)
        if accepted is None:
            continue
        met = True
        open_end = undecided(subject, (claim,), launch)
        if open_end is not None:
            yield open_end
            continue
        values = texts(claim.value)
        if values and not any(_understood(value, accepted.choices) for value in values):
            expected = f"one of {', '.join(accepted.choices)}" if accepted.choices else "a number"
            yield failed(
                subject,
                f"{quoted(claim)}: {name} is expected to be {expected}, and {accepted.effect}.",
                at=claim,
                remedy=accepted.remedy,
                fix=_as_digit(claim, name, values) if not accepted.choices else None,
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no variable with a known set of values is set")


#: What people write for a switch, and the number that stands for it.
_SWITCHES = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


def _as_digit(claim: Claim, name: str, values: tuple[str, ...]) -> Fix | None:
    """The word as a number. A word is 0 to its reader, so that writing 0 changes nothing."""
    digit = _SWITCHES.get(values[0].strip().lower()) if len(values) == 1 else None
    if digit is None:
        return None
    return mend(f"write {name}={digit}", reworded(claim, values[0], digit), safe=digit == "0")


def _understood(value: str, choices: tuple[str, ...]) -> bool:
    text = value.strip()
    if not text:
        return True
    if choices:
        return text.upper() in choices
    return re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)[kKmMgG]?[bB]?", text) is not None


@rule(
    "ENV003",
    "debug-setting-left-on",
    severity=Severity.WARNING,
    evidence=(
        "huggingface/transformers#22363",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
)
def debug_setting_left_on(job: Job) -> Iterator[Verdict]:
    """A setting for hunting faults is on in a run over several nodes.

    What it checks:
        For launches that do not certainly stay on one node: CUDA_LAUNCH_BLOCKING=1, NCCL_P2P_DISABLE=1,
        NCCL_SHM_DISABLE=1, NCCL_IB_DISABLE=1, NCCL_DEBUG=TRACE, TORCH_DISTRIBUTED_DEBUG=DETAIL; and
        TORCH_NCCL_ASYNC_ERROR_HANDLING=0, by its old name too, unless torch is told to wait blocking.

    Why it matters:
        Each makes training slower, some by an order of magnitude, and the bill grows with every node.
        CUDA_LAUNCH_BLOCKING has made multi-node runs hang. Without asynchronous error handling a rank that fails is
        noticed by nobody.

    Example:
        `export NCCL_P2P_DISABLE=1`, set once for a broken workstation and copied into a cluster script.

    Fix:
        Remove the line, or say in a suppression why this cluster needs it.

    Known limits:
        Some clusters do need one of them; NCCL_IB_DISABLE, CUDA_LAUNCH_BLOCKING and the two log levels are therefore
        information only. A variable is reported once for a job. Where the number of nodes is unknown, all are.

    Evidence:
        huggingface/transformers#22363; NCCL user guide, section on debugging variables.
    """
    rows = {row.name: row for row in leftovers()}
    met = False
    told: set[tuple[str, Severity | None]] = set()
    for subject, launch, name, claim in variables(job):
        row = rows.get(name)
        nodes = nodes_spanned(job, launch)[0] if launch is not None else None
        if row is None or (nodes is not None and certainly_one(nodes)):
            continue
        met = True
        if name.endswith("_ASYNC_ERROR_HANDLING") and launch is not None and _waits_blocking(job, launch):
            yield passed(subject)
            continue
        open_end = undecided(subject, (claim,), launch)
        values = texts(claim.value)
        if open_end is not None:
            yield open_end
        elif values and all(value.strip().upper() in row.values for value in values):
            several = nodes is not None and certainly_several(nodes)
            severity = None if several and row.severity == "warning" else Severity.INFO
            # Several launches of one job, one thing to say.
            if (name, severity) in told:
                continue
            told.add((name, severity))
            yield failed(
                subject,
                f"{quoted(claim)}: {row.why}.",
                at=claim,
                remedy=f"Remove {name}, or suppress this with the reason why this cluster needs it.",
                severity=severity,
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no debugging variable is set for a launch over several nodes")


def _waits_blocking(job: Job, launch: Launch) -> bool:
    """Whether a wait for a collective may itself end at its time-out, so that nothing has to be handled."""
    names = ("env.TORCH_NCCL_BLOCKING_WAIT", "env.NCCL_BLOCKING_WAIT")
    return any(texts(claim.value) != ("0",) for name in names for claim in job.setting(name, launch.scope))


@rule(
    "ENV004",
    "exported-rendezvous-ignored",
    severity=Severity.WARNING,
    fix="unsafe",
    evidence=("pytorch/pytorch#76367", "https://docs.pytorch.org/docs/stable/elastic/run.html"),
)
def exported_rendezvous_ignored(job: Job) -> Iterator[Verdict]:
    """MASTER_ADDR or MASTER_PORT is exported to a launcher that does not read it.

    What it checks:
        MASTER_ADDR and MASTER_PORT are set for torchrun or deepspeed, and the launcher, told nothing on its command
        line, takes its default instead.

    Why it matters:
        torchrun and deepspeed give their ranks an address and port of their own and overwrite both variables. The
        nodes then meet elsewhere than the script says, or not at all.

    Example:
        `export MASTER_PORT=6000` and `torchrun --nnodes=2 --master_addr=node0 ...`: the port is 29500.

    Fix:
        Pass it on: `--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT`, or `--rdzv_endpoint`.

    Known limits:
        Only where the launcher's own default is certain; a value equal to the default does no harm.

    Evidence:
        torchrun documentation; pytorch/pytorch#76367.
    """
    met = False
    for launch in job.launches:
        for variable, quantity, option in (
            ("MASTER_ADDR", "master_addr", "--master_addr"),
            ("MASTER_PORT", "master_port", "--master_port"),
        ):
            exported = job.setting(f"{_PREFIX}{variable}", launch.scope)
            taken = [
                c
                for c in job.setting(quantity, launch.scope)
                if c.strength is Strength.DEFAULT and c.source in ("torchrun", "deepspeed")
            ]
            if exported and not taken and launch.launcher in ("torchrun", "deepspeed"):
                if not job.setting(quantity, launch.scope):
                    met = True
                    why = f"it cannot be told whether {launch.launcher} is given a {quantity.replace('_', ' ')}"
                    yield unknown(launch.id, why, at=exported[0])
                continue
            if not exported or not taken:
                continue
            met = True
            open_end = undecided(launch.id, taken, launch)
            same = set(texts(job_value(exported)) or ()) & {str(v) for v in taken[0].alternatives}
            if open_end is not None:
                yield open_end
            elif same:
                yield passed(launch.id)
            else:
                default = spoken(taken[0].alternatives)
                yield failed(
                    launch.id,
                    f"{launch.launcher} does not read {variable}: {placed(exported[0])} has no"
                    f" effect, and {default} is used.",
                    at=exported[0],
                    also=((launch, f"uses {default}"),),
                    remedy=f"Pass it on: {option}=${variable}.",
                    fix=_passed_on(launch, f"{option}=${variable}"),
                )
    if not met:
        yield not_applicable(job.name, "no launcher overrides an exported address or port")


def _passed_on(launch: Launch, option: str) -> Fix | None:
    """The option behind the launcher's name. Unsafe: the nodes meet elsewhere from then on."""
    span = launch.span
    name = span.snippet[span.column - 1 : span.end_column - 1]
    return mend(f"give {launch.launcher} {option}", reworded(span, name, f"{name} {option}"), safe=False)
