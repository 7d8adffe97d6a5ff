"""Environment variables that are misspelt, have invalid values, are left over from debugging, are overridden, or do not
reach the program that should read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Launch, Strength, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import subjects
from preflight_rules.data_tables import accepted_values, known_variables, leftovers
from preflight_rules.launches import AGENT_LAUNCHERS, certainly_one, certainly_several, nodes_spanned, starting_file
from preflight_rules.settings.tables import in_range, pinned

_PREFIX = "env."
#: Prefixes of variables that belong to a library.
_LIBRARIES = ("NCCL_", "TORCH_", "GLOO_", "PADDLE_", "CUDA_", "FLAGS_", "TP_SOCKET", "PYTORCH_")
#: Misspellings of these prefixes.
_MISSPELT_LIBRARIES = re.compile(r"N?C?CC?L_|NCLL_|NCC_|NNCL_|CUDA[A-Z]|CUD_|GLO_|TROCH_")
#: Shorter names are too similar to each other to guess a misspelling.
_MIN_LENGTH = 10
#: A misspelt name of this length or more may have two typing errors, a shorter one only one.
_LONG = 15


def variables(job: Job) -> Iterator[tuple[str, Launch | None, str, Claim]]:
    """Yield every variable that is set, once for each location: subject, launch, name and claim."""
    seen_keys: set[tuple[str, int, int, str]] = set()
    for subject, scope, launch in subjects(job):
        for claim in job.environment(scope):
            name = claim.quantity.removeprefix(_PREFIX)
            key = (claim.span.path, claim.span.line, claim.span.column, name)
            if key not in seen_keys:
                seen_keys.add(key)
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
    """A variable that nothing reads is set, and its name closely resembles a known variable.

    What it checks: No exported variable with a prefix of NCCL, Gloo, torch, CUDA or Paddle has an unknown name that is
    very similar to a known name.

    Why it matters: The setting silently has no effect: the job runs with the default.

    Example: `export NCCL_P2P5ISABLE=1`, meant to be NCCL_P2P_DISABLE.

    Fix: Use the spelling that the finding gives.

    Known limits: A name that resembles no known name is not reported, because scripts have their own variables. A name
    that is set together with the name it resembles is also treated as the script's own.
    """
    set_names = {claim.quantity.removeprefix(_PREFIX) for _, _, _, claim in variables(job)}
    for subject, _, name, claim in variables(job):
        if not name.startswith(_LIBRARIES) and not _MISSPELT_LIBRARIES.match(name):
            continue
        suggestion = nearest(name)
        if name in known_variables() or suggestion in set_names:
            yield passed(subject)
            continue
        if suggestion is None:
            yield unknown(subject, f"{name} is not a known variable; it may be specific to the script", at=claim)
            continue
        shell_text = "" if re.fullmatch(r"\w+", name) else ", and a shell cannot export such a name"
        yield failed(
            subject,
            f"{quoted(claim)}: nothing reads {name}{shell_text}; {suggestion} is probably meant.",
            at=claim,
            remedy=f"Write {suggestion}, or remove the line.",
            # Unsafe: the setting takes effect for the first time.
            fix=make_fix(f"rename {name} to {suggestion}", replace_text(claim, name, suggestion), safe=False),
        )


def nearest(name: str, known: frozenset[str] | None = None) -> str | None:
    """Return the known name that `name` probably misspells; None if `name` is known or resembles no known name."""
    known = known_variables() if known is None else known
    if name in known or len(name) < _MIN_LENGTH:
        return None
    limit = 2 if len(name) >= _LONG else 1
    best: tuple[int, str] | None = None
    for candidate in known:
        if abs(len(candidate) - len(name)) > limit:
            continue
        edits = distance(name.upper(), candidate.upper(), limit)
        if edits <= limit and (best is None or (edits, candidate) < best):
            best = (edits, candidate)
    # Numbered or plural names (NCCL_DEBUG2, NCCL_IB_HCAS) are more often a script's own than misspelt.
    if best is None or name.rstrip("0123456789S") == best[1]:
        return None
    return best[1]


def closest(name: str, known: Iterable[str], limit: int) -> str:
    """Return the known name that is most similar to `name`, with 1 to `limit` edits; empty if there is none."""
    candidates = ((distance(name, other, limit), other) for other in known if abs(len(other) - len(name)) <= limit)
    return min((candidate for candidate in candidates if 0 < candidate[0] <= limit), default=(0, ""))[1]


def distance(first: str, second: str, limit: int) -> int:
    """Return the edit distance between two strings, with transpositions; a number above `limit` is not exact."""
    # A cheap test that settles nearly all pairs: one edit changes the set of letters by at most two.
    if abs(len(first) - len(second)) > limit or len(set(first) ^ set(second)) > 2 * limit:
        return limit + 1
    row_before: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        previous_row, row_before_previous, row = row, row_before, [i]
        for j, b in enumerate(second, 1):
            cost = min(previous_row[j] + 1, row[j - 1] + 1, previous_row[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                cost = min(cost, row_before_previous[j - 2] + 1)
            row.append(cost)
        row_before = previous_row
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

    Why it matters: NCCL reads a word as 0, so `NCCL_IB_DISABLE=true` leaves InfiniBand enabled. torch fails at startup
    on a level that it does not know.

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
                fix=_digit_fix(claim, name, values) if not accepted.choices else None,
            )
        else:
            yield passed(subject)


#: Words for on and off, and the digit to use instead.
_SWITCHES = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


def _digit_fix(claim: Claim, name: str, values: tuple[str, ...]) -> Fix | None:
    """Return a fix that writes the word as a number. Readers parse a word as 0, so writing 0 changes nothing."""
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
    """A debugging setting is enabled in a run over several nodes.

    What it checks: Launches that do not certainly run on one node do not set CUDA_LAUNCH_BLOCKING=1,
    NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1, NCCL_IB_DISABLE=1, NCCL_DEBUG=TRACE, TORCH_DISTRIBUTED_DEBUG=DETAIL, or
    TORCH_NCCL_ASYNC_ERROR_HANDLING=0 (also under its old name, which torchrun overrides) unless torch waits in blocking
    mode.

    Why it matters: Each makes training slower, some by an order of magnitude, and the cost grows with every node.
    CUDA_LAUNCH_BLOCKING has made multi-node runs hang. Without asynchronous error handling the failure of a rank goes
    unnoticed.

    Example: `export NCCL_P2P_DISABLE=1`, set once for a broken workstation and copied into a cluster script.

    Fix: Remove the line, or suppress the finding and state why this cluster needs the setting.

    Known limits: Some clusters need one of these settings; NCCL_IB_DISABLE, CUDA_LAUNCH_BLOCKING and the two log levels
    are therefore informational. A variable is reported once for a job. If the number of nodes is unknown, all findings
    are informational.
    """
    rows = {row.name: row for row in leftovers()}
    reported: set[tuple[str, Severity | None]] = set()
    for subject, launch, name, claim in variables(job):
        row = rows.get(name)
        nodes = nodes_spanned(job, launch)[0] if launch is not None else None
        if row is None or (nodes is not None and certainly_one(nodes)):
            continue
        if name in _GPU_TO_GPU_VARIABLES and _has_one_gpu_per_node(job, launch):
            continue
        if name.endswith("_ASYNC_ERROR_HANDLING") and launch is not None and _is_handled(job, launch, name):
            yield passed(subject)
            continue
        values = texts(claim.value)
        if undecided_verdict := undecided(subject, (claim,), launch):
            yield undecided_verdict
        elif values and all(value.strip().upper() in row.values for value in values):
            is_multi_node = nodes is not None and certainly_several(nodes)
            severity = None if is_multi_node and row.severity == "warning" else Severity.INFO
            # One finding for all launches of the job.
            if (name, severity) in reported:
                continue
            reported.add((name, severity))
            yield failed(
                subject,
                f"{quoted(claim)}: {row.why}.",
                at=claim,
                remedy=f"Remove {name}, or suppress this finding and state why this cluster needs the variable.",
                severity=severity,
            )
        else:
            yield passed(subject)


#: Variables that matter only where a node has several GPUs.
_GPU_TO_GPU_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def _has_one_gpu_per_node(job: Job, launch: Launch | None) -> bool:
    """Return whether each node, or each pod, certainly has one GPU."""
    if launch is not None and job.setting("gpus_per_node", launch.scope):
        return certainly_one(job.value("gpus_per_node", launch.scope))
    gpus = [claim.value for claim in job.about("pod_gpus")]
    return bool(gpus) and all(map(certainly_one, gpus))


def _is_handled(job: Job, launch: Launch, name: str) -> bool:
    """Return whether torch ignores the old name, or waits for a collective with its own timeout."""
    elastic = launch.launcher in ("torchrun", "torch.distributed.launch")
    if elastic and name.startswith("NCCL_") and in_range(pinned(job, "torch"), "2.2", "") is not False:
        # CFG002 reports the old name.
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

    What it checks: If MASTER_ADDR and MASTER_PORT are set for torchrun or deepspeed, options pass them to the launcher,
    which otherwise uses its defaults.

    Why it matters: torchrun and deepspeed give their ranks an address and port of their own and overwrite both
    variables. The nodes then meet at a different address from the script's, or not at all.

    Example: `export MASTER_PORT=6000` and `torchrun --nnodes=2 --master_addr=node0 ...`: the port is 29500.

    Fix: Pass them on: `--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT`, or `--rdzv_endpoint`.

    Known limits: Reported only if the launcher's own default is certain; a value that equals the default is harmless.
    """
    for launch in job.launches:
        for variable, quantity, option in (
            ("MASTER_ADDR", "master_addr", "--master_addr"),
            ("MASTER_PORT", "master_port", "--master_port"),
        ):
            # A program reads the variables that it sets itself.
            exported = [
                claim
                for claim in job.setting(f"{_PREFIX}{variable}", launch.scope)
                if claim.span.path == launch.span.path or not claim.span.path.endswith(".py")
            ]
            defaults = [
                c
                for c in job.setting(quantity, launch.scope)
                if c.strength is Strength.DEFAULT and c.source in ("torchrun", "deepspeed")
            ]
            if exported and not defaults and launch.launcher in ("torchrun", "deepspeed"):
                if not job.setting(quantity, launch.scope):
                    reason = f"cannot determine whether {launch.launcher} gets a {quantity.replace('_', ' ')}"
                    yield unknown(launch.id, reason, at=exported[0])
                continue
            if not exported or not defaults:
                continue
            verdict = undecided(launch.id, defaults, launch)
            is_same = set(texts(job_value(exported)) or ()) & {str(v) for v in defaults[0].alternatives}
            if verdict is None and not is_same:
                default = joined(defaults[0].alternatives)
                verdict = failed(
                    launch.id,
                    f"{launch.launcher} does not read {variable}: {placed(exported[0])} has no effect, and the "
                    f"default, {default}, is used.",
                    at=exported[0],
                    also=((launch, f"uses {default}"),),
                    remedy=f"Pass the option: {option}=${variable}.",
                    fix=_option_fix(launch, f"{option}=${variable}"),
                )
            yield verdict or passed(launch.id)


def _option_fix(launch: Launch, option: str) -> Fix | None:
    """Return a fix that adds the option after the launcher's name. Unsafe: it changes the rendezvous address."""
    span = launch.span
    name = span.snippet[span.column - 1 : span.end_column - 1]
    return make_fix(f"give {launch.launcher} {option}", replace_text(span, name, f"{name} {option}"), safe=False)


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

    Fix: Replace other characters with underscores.

    Known limits: Only `export` at the beginning of a line is checked.
    """
    for claim in distinct(job.about("refused_variable")):
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        (name,) = texts(claim.value) or ("",)
        suggestion = name.replace("-", "_").replace(".", "_")
        is_known = suggestion in known_variables()
        yield failed(
            claim.span.path,
            f"{quoted(claim)} has no effect: shell variable names may contain only letters, digits and underscores"
            + (f"; {suggestion} is probably meant." if is_known else "."),
            at=claim,
            remedy=f"Write {suggestion}.",
            fix=make_fix(f"rename {name} to {suggestion}", replace_text(claim, name, suggestion), safe=False),
        )


@rule("ENV027", "assignment-split-by-shell", severity=Severity.ERROR, otherwise="the job has no launch line")
def assignment_split_by_shell(job: Job) -> Iterator[Verdict]:
    """A line that should set a variable is split at a space or semicolon, and sets nothing or only a part.

    What it checks: `NAME = value` where the script uses the variable, and `export NAME= value`; also lists without
    quotes with a `;` or `&` between their items, in the script and in files that it sources, which is a warning.

    Why it matters: The shell reads the first as a command called NAME, which it does not find, and the second as an
    empty value and another name. The variable stays empty, and the launch line loses its value or its option. Of a list
    only the first item is set; the others are run as commands.

    Example: `NPROC = 8` and `torchrun --nproc_per_node=$NPROC train.py`; `export NCCL_IB_HCA=mlx5_0:1;mlx5_3:1`.

    Fix: `NPROC=8`; `export NCCL_IB_HCA=mlx5_0:1,mlx5_3:1`.

    Known limits: `NAME= command` runs a command with an empty variable, which may be intended, and is not reported. A
    word after `;` is part of the list if it differs from the item before only in its numbers, or if both are paths.
    """
    assignments = distinct((*job.about("blank_in_assignment"), *job.about("cut_value")))
    if not assignments and job.launches:
        yield passed(job.name)
    for claim in assignments:
        (name,) = texts(claim.value) or ("",)
        is_list = claim.quantity == "cut_value"
        yield undecided(claim.span.path, (claim,)) or failed(
            claim.span.path,
            f"`{claim.spelling}` sets only the first item of {name}: the shell ends the value at the separator and runs"
            " the rest as a command."
            if is_list
            else f"{quoted(claim)} does not set {name}: an assignment has no blanks around the equals sign.",
            at=claim,
            remedy="Separate the items by commas, or put the value in quotes." if is_list else f"Write {name}=VALUE.",
            severity=Severity.WARNING if is_list else None,
        )


#: Variables of ranks that torchrun and similar launchers set, whatever the script assigned.
_SET_BY_LAUNCHERS = frozenset(("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"))


def _is_set_by_launchers(job: Job, claim: Claim) -> bool:
    """Return whether the script of a claim starts programs, and only with launchers that set the variables of ranks."""
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
    """A script sets a variable for a program that does not see it.

    What it checks: Variables that launchers and communication libraries read (NPROC_PER_NODE, MASTER_ADDR, NCCL_*,
    CUDA_VISIBLE_DEVICES ...) are exported or precede the command. They are neither assigned on their own line
    and used nowhere else, nor written among the arguments. Variables that a launch in `bash -c '...'` needs are
    exported. What a script exports for Hugging Face, Weights & Biases, torch and similar libraries is in
    `.deepspeed_env` if deepspeed starts the ranks on several hosts.

    Why it matters: The shell keeps the value to itself. The program runs with its default: one process, all GPUs,
    another port. deepspeed passes only variables with the prefixes NCCL, PYTHON, MLFLOW, MV2 and UCX to other hosts, so
    ranks there download a model again, or write a cache elsewhere.

    Example: `NPROC_PER_NODE=8` on its own line, and `swift sft ...` on the next line.

    Fix: Write `export NPROC_PER_NODE=8`, or put the assignment before the command on the same line.

    Known limits: Assigning a variable that the script's environment already has keeps it exported. A script
    that names the variable a second time may pass it on, and is not judged. Ranks and their number are not judged where
    only launchers that set them start programs. Variables that `srun --export=NAME,...` without ALL withholds are
    judged if a script reads them as `os.environ["NAME"]` outside of branches. The shells of other hosts may set what
    deepspeed does not pass on.
    """
    yield from _withheld_verdicts(job)
    for launch in job.launches:
        yield from _deepspeed_verdicts(job, launch)
    for claim in distinct((*job.about("unexported_variable"), *job.about("variable_as_argument"))):
        (name,) = texts(claim.value) or ("",)
        if name in _SET_BY_LAUNCHERS and _is_set_by_launchers(job, claim):
            yield passed(claim.span.path)
            continue
        if claim.because:
            yield undecided(claim.span.path, (claim,)) or failed(
                claim.span.path,
                f"{quoted(claim)} is expanded by an inner shell, where {name} is not set: {placed(claim.because[0])} "
                "is not exported to that shell.",
                at=claim,
                also=((claim.because[0], "set here"),),
                remedy=f"Export {name}, or let the outer script expand it: use double quotes and no backslash.",
            )
            continue
        as_argument = claim.quantity == "variable_as_argument"
        yield undecided(claim.span.path, (claim,)) or failed(
            claim.span.path,
            f"{quoted(claim)} "
            + (
                "comes after the program and is passed as an argument"
                if as_argument
                else "is neither exported nor used in the script"
            )
            + f", so the program does not see {name}.",
            at=claim,
            remedy=f"Put it before the command: `{claim.spelling} command ...`."
            if as_argument
            else f"Write `export {claim.spelling}`, or put it before the command on one line.",
        )


#: Variables of libraries that ranks need on every host, and that deepspeed does not pass on by itself.
_LEFT_BY_DEEPSPEED = re.compile(
    r"env\.(?:(?:HF_(?:HUB|DATASETS)|HUGGING_?FACE_HUB|WANDB|TORCH_(?:NCCL|DISTRIBUTED)|TORCHINDUCTOR|FI_EFA)_\w+"
    r"|HF_(?:HOME|TOKEN|ENDPOINT)|TRANSFORMERS_(?:CACHE|OFFLINE)|TORCH_(?:HOME|EXTENSIONS_DIR|CUDA_ARCH_LIST)"
    r"|PYTORCH_(?:CUDA_)?ALLOC_CONF|GLOO_SOCKET_IFNAME|FI_PROVIDER|TRITON_CACHE_DIR)"
)
#: Launchers of deepspeed that pass on prefixes; Slurm's srun passes the whole environment on.
_PASSING_PREFIXES = frozenset(("pdsh", "openmpi", "mpich", "impi", "mvapich"))


def _deepspeed_verdicts(job: Job, launch: Launch) -> Iterator[Verdict]:
    """Yield the verdicts on variables that the script exports and deepspeed does not pass on to other hosts."""
    launchers = texts(job_value(job.setting("multinode_launcher", launch.scope))) or ("pdsh",)
    nodes, hosts = job.setting("nodes", launch.scope), job.setting("hosts", launch.scope)
    if (
        launch.launcher != "deepspeed"
        or not hosts
        or not certainly_several(job_value(nodes))
        or not _PASSING_PREFIXES.issuperset(launchers)
        or job.setting("each_node_itself", launch.scope)
    ):
        return
    # A file or a program that sets the variable sets it for the ranks of every host.
    claims = [c for c in job.environment(launch.scope) if _LEFT_BY_DEEPSPEED.fullmatch(c.quantity)]
    exported = [c for c in claims if c.span.path == launch.span.path and c.source == "environment" and not c.condition]
    set_elsewhere = {c.quantity for c in job.claims if c.span.path.endswith((".deepspeed_env", ".py"))}
    left = [claim for claim in exported if claim.quantity not in set_elsewhere]
    forwarded = job.setting("forwarded_variables", launch.scope)
    if left and forwarded:
        yield undecided(launch.id, forwarded, launch) or passed(launch.id)
        return
    for claim in left[:3]:
        name = claim.quantity.removeprefix(_PREFIX)
        yield failed(
            launch.id,
            f"{placed(claim)} is exported here only: deepspeed does not pass {name} to the other hosts of"
            f" {placed(hosts[0])}.",
            at=claim,
            also=((hosts[0], "other hosts"),),
            remedy=f"Write `{claim.spelling}` into .deepspeed_env.",
        )
    if exported and not left:
        yield passed(launch.id)


def _withheld_verdicts(job: Job) -> Iterator[Verdict]:
    """Yield the verdicts on variables that srun's list leaves out and the program reads."""
    for launch in job.launches:
        needed_variables = {
            name: claim for claim in job.about("needed_variable", launch.scope) for name in texts(claim.value)
        }
        for claim in distinct(job.about("withheld_variable", launch.scope)):
            (name,) = texts(claim.value) or ("",)
            if name in needed_variables:
                yield undecided(launch.id, (claim,), launch) or failed(
                    launch.id,
                    f"`{claim.spelling}` passes only the variables that it lists, and {name} is not one of them: the"
                    " program stops with KeyError.",
                    at=claim,
                    also=((needed_variables[name], "read here"), *((each, "exported here") for each in claim.because)),
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

    What it checks: In a block of exports with constant values, no variable occurs twice with different values.

    Why it matters: Only the last value takes effect. If each machine needs its own value, such as an interface name,
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
            yield unknown(
                claim.span.path, f"{quoted(claim)}: a shell may look up commands before the next assignment", at=claim
            )
            continue
        yield failed(
            claim.span.path,
            f"{quoted(claim)} has no effect: line {later.span.line} replaces it with {quoted(later)}.",
            at=claim,
            also=((later, "the value in effect"),),
            remedy="Remove the assignment that is not intended"
            + (", or write both in one list." if name.endswith("_IFNAME") else "."),
        )


@rule(
    "ENV026",
    "variable-left-on-this-machine",
    severity=Severity.ERROR,
    otherwise="no command for another machine uses a variable of the script",
)
def variable_left_on_this_machine(job: Job) -> Iterator[Verdict]:
    """A command for another machine uses a variable that exists only in this script.

    What it checks: A launch line in single quotes after ssh, pdsh or clush uses no variable that the script assigns:
    the shell on the other machine expands it.

    Why it matters: The other machine has no such variable and expands it to an empty string: every node gets the same
    rank or none, and no address. The launcher stops or waits.

    Example: `for h in $HOSTS; do ssh $h 'torchrun --node_rank=$rank ...' & done`.

    Fix: Write the command in double quotes, or close the single quotes around the variable.

    Known limits: A variable that the other machine's profile happens to set under the same name is also reported.
    """
    uses = distinct(job.about("variable_left_here"))
    for claim in uses:
        undecided_verdict = undecided(claim.span.path, (claim,))
        (name,) = texts(claim.value) or ("",)
        yield undecided_verdict or failed(
            claim.span.path,
            f"`{claim.spelling}` is in single quotes, so the other machine expands it, but ${name} is set only in "
            "this script: it is empty there.",
            at=claim,
            remedy="Write the command in double quotes.",
        )
    if not uses:
        for launch in job.launches:
            if {"ssh", "pdsh", "clush"} & set(launch.wrappers):
                yield passed(launch.id)
