"""Environment variables: misspelt, with invalid values, left over from debugging, or overridden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Launch, Strength
from preflight.model.job.claim import job_value
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import subjects
from preflight_rules.data_tables import accepted_values, known_variables, leftovers
from preflight_rules.launches import certainly_one, certainly_several, nodes_spanned
from preflight_rules.settings.tables import in_range, pinned

_PREFIX = "env."
#: Prefixes of variables that belong to a library.
_LIBRARIES = ("NCCL_", "TORCH_", "GLOO_", "PADDLE_", "CUDA_", "FLAGS_", "TP_SOCKET", "PYTORCH_")
#: Misspellings of these prefixes.
_NEAR_LIBRARIES = re.compile(r"N?C?CC?L_|NCLL_|NCC_|NNCL_|CUDA[A-Z]|CUD_|GLO_|TROCH_")
#: Shorter names are too similar to each other to guess a misspelling.
_MIN_LENGTH = 10
#: A misspelt name of this length or more may have two typing errors, a shorter one only one.
_LONG = 15


def variables(job: Job) -> Iterator[tuple[str, Launch | None, str, Claim]]:
    """Every variable in force, once for each location: subject, launch, name and claim."""
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
    otherwise="no variable of a known library is set",
)
def variable_misspelt(job: Job) -> Iterator[Verdict]:
    """A variable that nothing reads is set, and its name is almost that of a known one.

    What it checks: No exported variable with a prefix of NCCL, Gloo, torch, CUDA or Paddle has an unknown name that is
    very close to a known one.

    Why it matters: The setting silently has no effect: the job runs with the default.

    Example: `export NCCL_P2P5ISABLE=1`, meant to be NCCL_P2P_DISABLE.

    Fix: Use the spelling that the finding gives.

    Known limits: A name unlike all known ones is not reported, because scripts have their own variables. A name that is
    set together with the one it resembles is also treated as the script's own.
    """
    present = {claim.quantity.removeprefix(_PREFIX) for _, _, _, claim in variables(job)}
    for subject, _, name, claim in variables(job):
        if not name.startswith(_LIBRARIES) and not _NEAR_LIBRARIES.match(name):
            continue
        meant = nearest(name)
        if name in known_variables() or meant in present:
            yield passed(subject)
            continue
        if meant is None:
            yield unknown(subject, f"{name} is not a known variable; it may be the script's own", at=claim)
            continue
        shell = "" if re.fullmatch(r"\w+", name) else ", and a shell cannot export such a name"
        yield failed(
            subject,
            f"{quoted(claim)}: nothing reads {name}{shell}; {meant} is probably meant.",
            at=claim,
            remedy=f"Write {meant}, or remove the line.",
            # Unsafe: the setting takes effect for the first time.
            fix=make_fix(f"rename {name} to {meant}", replace_text(claim, name, meant), safe=False),
        )


def nearest(name: str, known: frozenset[str] | None = None) -> str | None:
    """The known name that `name` probably misspells; None when it is known itself or unlike all known ones."""
    known = known_variables() if known is None else known
    if name in known or len(name) < _MIN_LENGTH:
        return None
    limit = 2 if len(name) >= _LONG else 1
    best: tuple[int, str] | None = None
    for candidate in known:
        if abs(len(candidate) - len(name)) > limit:
            continue
        slips = distance(name.upper(), candidate.upper(), limit)
        if slips <= limit and (best is None or (slips, candidate) < best):
            best = (slips, candidate)
    # Numbered or plural names (NCCL_DEBUG2, NCCL_IB_HCAS) are more often a script's own than misspelt.
    if best is None or name.rstrip("0123456789S") == best[1]:
        return None
    return best[1]


def closest(name: str, known: Iterable[str], limit: int) -> str:
    """The known name that differs from `name` in the fewest characters, at most `limit`; empty if there is none."""
    near = ((distance(name, one, limit), one) for one in known if abs(len(one) - len(name)) <= limit)
    return min((found for found in near if 0 < found[0] <= limit), default=(0, ""))[1]


def distance(first: str, second: str, limit: int) -> int:
    """The edit distance between two strings, with transpositions; a number above `limit` is not exact."""
    # A cheap test that settles nearly all pairs: one edit changes the set of letters by at most two.
    if abs(len(first) - len(second)) > limit or len(set(first) ^ set(second)) > 2 * limit:
        return limit + 1
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
        if min(row) > limit:
            return limit + 1
    return row[-1]


@rule(
    "ENV002",
    "variable-value-not-understood",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="no variable with a known set of values is set",
)
def variable_value_not_understood(job: Job) -> Iterator[Verdict]:
    """A well-known variable has a value that its reader does not understand.

    What it checks: NCCL's switches and counts are numbers; NCCL_DEBUG and TORCH_DISTRIBUTED_DEBUG are one of their
    levels.

    Why it matters: NCCL reads a word as 0, so `NCCL_IB_DISABLE=true` leaves InfiniBand on. torch fails at startup on a
    level that it does not know.

    Example: `export NCCL_IB_DISABLE=true`.

    Fix: Write 1 or 0, or one of the levels.

    Known limits: Only variables in the table `data/values.toml` are checked.
    """
    for subject, launch, name, claim in variables(job):
        accepted = accepted_values().get(name)
        if accepted is None:
            continue
        if undecided_verdict := undecided(subject, (claim,), launch):
            yield undecided_verdict
            continue
        values = texts(claim.value)
        if values and not any(_accepts(value, accepted.choices) for value in values):
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


#: Words for on and off, and the digit to use instead.
_SWITCHES = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


def _as_digit(claim: Claim, name: str, values: tuple[str, ...]) -> Fix | None:
    """A fix that writes the word as a number. Readers parse a word as 0, so writing 0 changes nothing."""
    digit = _SWITCHES.get(values[0].strip().lower()) if len(values) == 1 else None
    if digit is None:
        return None
    return make_fix(f"write {name}={digit}", replace_text(claim, values[0], digit), safe=digit == "0")


def _accepts(value: str, choices: tuple[str, ...]) -> bool:
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
    otherwise="no debugging variable is set for a launch over several nodes",
)
def debug_setting_left_on(job: Job) -> Iterator[Verdict]:
    """A debugging setting is on in a run over several nodes.

    What it checks: For launches that do not certainly stay on one node: CUDA_LAUNCH_BLOCKING=1, NCCL_P2P_DISABLE=1,
    NCCL_SHM_DISABLE=1, NCCL_IB_DISABLE=1, NCCL_DEBUG=TRACE, TORCH_DISTRIBUTED_DEBUG=DETAIL; and
    TORCH_NCCL_ASYNC_ERROR_HANDLING=0, by its old name too, which torchrun overrides, unless torch waits in blocking
    mode.

    Why it matters: Each makes training slower, some by an order of magnitude, and the bill grows with every node.
    CUDA_LAUNCH_BLOCKING has made multi-node runs hang. Without asynchronous error handling the failure of a rank goes
    unnoticed.

    Example: `export NCCL_P2P_DISABLE=1`, set once for a broken workstation and copied into a cluster script.

    Fix: Remove the line, or suppress the finding with the reason why this cluster needs it.

    Known limits: Some clusters do need one of them; NCCL_IB_DISABLE, CUDA_LAUNCH_BLOCKING and the two log levels are
    therefore informational. A variable is reported once for a job. If the number of nodes is unknown, all are.
    """
    rows = {row.name: row for row in leftovers()}
    reported: set[tuple[str, Severity | None]] = set()
    for subject, launch, name, claim in variables(job):
        row = rows.get(name)
        nodes = nodes_spanned(job, launch)[0] if launch is not None else None
        if row is None or (nodes is not None and certainly_one(nodes)):
            continue
        if name.endswith("_ASYNC_ERROR_HANDLING") and launch is not None and _is_handled(job, launch, name):
            yield passed(subject)
            continue
        values = texts(claim.value)
        if undecided_verdict := undecided(subject, (claim,), launch):
            yield undecided_verdict
        elif values and all(value.strip().upper() in row.values for value in values):
            several = nodes is not None and certainly_several(nodes)
            severity = None if several and row.severity == "warning" else Severity.INFO
            # One finding for all launches of the job.
            if (name, severity) in reported:
                continue
            reported.add((name, severity))
            yield failed(
                subject,
                f"{quoted(claim)}: {row.why}.",
                at=claim,
                remedy=f"Remove {name}, or suppress this with the reason why this cluster needs it.",
                severity=severity,
            )
        else:
            yield passed(subject)


def _is_handled(job: Job, launch: Launch, name: str) -> bool:
    """Whether torch ignores the old name, or waits for a collective with its own timeout."""
    elastic = launch.launcher in ("torchrun", "torch.distributed.launch")
    if elastic and name.startswith("NCCL_") and in_range(pinned(job, "torch"), "2.2", "") is not False:
        # CFG002 says so.
        return True
    names = ("env.TORCH_NCCL_BLOCKING_WAIT", "env.NCCL_BLOCKING_WAIT")
    return any(texts(claim.value) != ("0",) for name in names for claim in job.setting(name, launch.scope))


@rule(
    "ENV004",
    "exported-rendezvous-ignored",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="no launcher overrides an exported address or port",
)
def exported_rendezvous_ignored(job: Job) -> Iterator[Verdict]:
    """MASTER_ADDR or MASTER_PORT is exported to a launcher that does not read it.

    What it checks: MASTER_ADDR and MASTER_PORT are set for torchrun or deepspeed, and the launcher, without options for
    them, uses its default instead.

    Why it matters: torchrun and deepspeed give their ranks an address and port of their own and overwrite both
    variables. The nodes then meet at a different address than the script says, or not at all.

    Example: `export MASTER_PORT=6000` and `torchrun --nnodes=2 --master_addr=node0 ...`: the port is 29500.

    Fix: Pass it on: `--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT`, or `--rdzv_endpoint`.

    Known limits: Only where the launcher's own default is certain; a value equal to the default does no harm.
    """
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
                    why = f"cannot determine whether {launch.launcher} is given a {quantity.replace('_', ' ')}"
                    yield unknown(launch.id, why, at=exported[0])
                continue
            if not exported or not taken:
                continue
            verdict = undecided(launch.id, taken, launch)
            same = set(texts(job_value(exported)) or ()) & {str(v) for v in taken[0].alternatives}
            if verdict is None and not same:
                default = joined(taken[0].alternatives)
                verdict = failed(
                    launch.id,
                    f"{launch.launcher} does not read {variable}: {placed(exported[0])} has no"
                    f" effect, and {default} is used.",
                    at=exported[0],
                    also=((launch, f"uses {default}"),),
                    remedy=f"Pass it on: {option}=${variable}.",
                    fix=_option_fix(launch, f"{option}=${variable}"),
                )
            yield verdict or passed(launch.id)


def _option_fix(launch: Launch, option: str) -> Fix | None:
    """A fix that adds the option after the launcher's name. Unsafe: it changes the rendezvous address."""
    span = launch.span
    name = span.snippet[span.column - 1 : span.end_column - 1]
    return make_fix(f"give {launch.launcher} {option}", replace_text(span, name, f"{name} {option}"), safe=False)
