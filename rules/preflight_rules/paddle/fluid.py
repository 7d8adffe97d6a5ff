"""Legacy Fluid: the transpiler, the transpiled program and its executor, and the parameters that each server holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from preflight._util.hostnames import host_of
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Scope, Unresolved
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import SubjectQuestion, claims_about, each_claim, subjects
from preflight_rules.kubernetes.workloads import Role, Workload, workloads
from preflight_rules.launches import subject_claims
from preflight_rules.paddle.fleet import distinct_claims
from preflight_rules.paddle.roles import endpoints
from reference_trainer.ps.partition import FLOAT_BYTES, MIN_BLOCK, OPTIMIZER_SLOTS, bytes_held, overloaded


def transpilers(job: Job, scope: Scope) -> Iterator[tuple[Claim, str]]:
    """Yield each transpiler of a scope with its mode; the mode is empty if unknown."""
    for claim in job.about("transpiler", scope):
        modes = set(texts(claim.value))
        yield claim, modes.pop() if len(modes) == 1 else ""


def claims_by_owner(job: Job, quantity: str, scope: Scope, owner: Claim) -> tuple[Claim, ...]:
    """Return the claims about a quantity that are derived from `owner`, such as the claim of one transpiler."""
    return tuple(
        claim
        for claim in job.about(quantity, scope)
        if any(source.span == owner.span and source.quantity == owner.quantity for source in claim.because)
    )


def transpiling_scopes(job: Job) -> Iterator[tuple[str, Scope]]:
    """Yield each subject and scope with a transpiler; a script that two launches start occurs once."""
    seen_keys: set[tuple[object, ...]] = set()
    for subject, scope, _ in subjects(job):
        key = tuple(sorted({(c.span.path, c.span.line) for c in job.about("transpiler", scope)}))
        if key and key not in seen_keys:
            seen_keys.add(key)
            yield subject, scope


@rule(
    "FLU001",
    "transpile-given-text-for-number",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no script uses the transpiler",
)
def transpile_given_text_for_number(job: Job) -> Iterator[Verdict]:
    """The transpiler is given trainer_id or the number of trainers as a string.

    What it checks: In pserver mode `trainer_id` and `trainers` are not strings, such as the result of `os.getenv(...)`
    without `int(...)`. In nccl2 mode `trainers` is a string, the list of endpoints, not a number.

    Why it matters: Both become integer attributes of operators. With a string, the server's program is not built, or
    waits forever for its trainers; in nccl2 mode an assertion without a message stops the program.

    Example: `t.transpile(int(os.getenv("TRAINER_ID")), pservers=eps, trainers=os.getenv("TRAINERS"))`.

    Fix: Convert: `trainers=int(os.getenv("TRAINERS"))`.

    Known limits: Only a literal argument, or one taken directly from the environment, is judged.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, mode in transpilers(job, scope):
            text_claims = claims_by_owner(job, "text_argument", scope, transpiler)
            number_claims = claims_by_owner(job, "number_argument", scope, transpiler) if mode == "nccl2" else ()
            if mode in ("nccl2", "collective"):
                text_claims = tuple(claim for claim in text_claims if texts(claim.value) == ("trainer_id",))
            if not mode and text_claims:
                yield unknown(subject, f"{quoted(transpiler)}: its mode is known only at run time", at=transpiler)
            elif text_claims:
                name = texts(text_claims[0].value)[0]
                yield failed(
                    subject,
                    f"{quoted(text_claims[0])} is a string, but the transpiler expects a number.",
                    at=text_claims[0],
                    also=((transpiler, "the transpiler"),),
                    remedy=f"Convert it: `{name}=int(...)`.",
                )
            elif number_claims:
                yield failed(
                    subject,
                    f"{quoted(number_claims[0])} is a number, but {placed(transpiler)} is in nccl2 mode, where"
                    " `trainers` is the list of the trainers' endpoints as one string.",
                    at=number_claims[0],
                    also=((transpiler, "nccl2 mode"),),
                    remedy='Give the endpoints: `trainers="host0:6170,host1:6170"`.',
                )
            else:
                yield passed(subject)


@rule(
    "FLU002",
    "server-program-of-unlisted-endpoint",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no script requests a server program",
)
def server_program_of_unlisted_endpoint(job: Job) -> Iterator[Verdict]:
    """A server's program is requested for an endpoint that the transpiler was not given.

    What it checks: The endpoint of `get_pserver_program` is one of `pservers`, if both are literals in the script.

    Why it matters: Parameters are assigned to endpoints by their text. For any other endpoint the program is empty or
    fails with a KeyError, and the trainers wait for a server without parameters.

    Example: `t.transpile(0, pservers="10.0.0.1:6174", trainers=2)` and `t.get_pserver_program("127.0.0.1:6174")`.

    Fix: Use an endpoint from the list itself.

    Known limits: PPS004 judges endpoints from the environment, if the environment is known.
    """
    for subject, scope in transpiling_scopes(job):
        for endpoint in job.about("pserver_program_endpoint", scope):
            lists = [
                c
                for c in job.about("ps_server_endpoints", scope)
                if c.source == "paddle" and c.span.path == endpoint.span.path
            ]
            undecided_verdict = undecided(subject, (endpoint, *lists))
            if undecided_verdict is not None or not lists:
                yield undecided_verdict or unknown(
                    subject, f"{quoted(endpoint)}: the servers are known only at run time", at=endpoint
                )
                continue
            own_endpoints, entries = texts(endpoint.value), {entry for claim in lists for entry in endpoints((claim,))}
            if own_endpoints and entries and not set(own_endpoints) & entries:
                yield failed(
                    subject,
                    f"{quoted(endpoint)} is not one of the servers of {placed(lists[0])}:"
                    f" {', '.join(sorted(entries))}.",
                    at=endpoint,
                    also=((lists[0], "the servers"),),
                    remedy="Use an endpoint exactly as it is written in `pservers`.",
                )
            else:
                yield passed(subject)


@rule(
    "FLU011",
    "own-endpoint-outside-trainers",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no transpiler is in nccl2 mode with its own endpoint",
)
def own_endpoint_outside_trainers(job: Job) -> Iterator[Verdict]:
    """In nccl2 mode a trainer's own endpoint is not one of the trainers.

    What it checks: `current_endpoint` of `transpile` is one of the endpoints in `trainers`, if both are known.

    Why it matters: The transpiler removes its own endpoint from the list to find the others. An endpoint that is not in
    the list raises ValueError, and the other trainers wait for this one.

    Example: `t.transpile(0, trainers="10.0.0.1:6174,10.0.0.2:6174", current_endpoint="10.0.0.3:6174")`.

    Fix: Write the endpoint exactly as it is in `trainers`, with its port.

    Known limits: Endpoints that the script reads from the environment are unknown. If only one of several branches is
    wrong, the finding is a warning.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, _ in transpilers(job, scope):
            list_claims = claims_by_owner(job, "nccl2_endpoints", scope, transpiler)
            for own in claims_by_owner(job, "nccl2_own_endpoint", scope, transpiler):
                # All are arguments of one call, so the branch of the call does not matter.
                unresolved = next((c for c in (own, *list_claims) if isinstance(c.value, Unresolved)), None)
                if unresolved is not None or not list_claims:
                    reason = f"{quoted(own)} and the trainers are known only at run time"
                    yield unknown(subject, reason if unresolved is not None else "the trainers are not given", at=own)
                    continue
                entries = {entry for claim in list_claims for text in texts(claim.value) for entry in text.split(",")}
                unlisted = [text for text in texts(own.value) if text not in entries]
                if entries and unlisted and len(unlisted) < len(texts(own.value)):
                    yield failed(
                        subject,
                        f"{quoted(own)} is {unlisted[0]} in one branch, which is not one of the trainers of"
                        f" {placed(list_claims[0])}: the transpiler raises ValueError there.",
                        at=own,
                        also=((list_claims[0], "the trainers"),),
                        remedy=f'Use an endpoint as it is written in `trainers`: "{min(entries)}".',
                        severity=Severity.WARNING,
                    )
                elif entries and unlisted:
                    yield failed(
                        subject,
                        f"{quoted(own)} is not one of the trainers of {placed(list_claims[0])}: the transpiler raises"
                        " ValueError.",
                        at=own,
                        also=((list_claims[0], "the trainers"),),
                        remedy=f'Use an endpoint as it is written in `trainers`: `current_endpoint="{min(entries)}"`.',
                    )
                else:
                    yield passed(subject)


@rule(
    "FLU007",
    "update-settings-exclude-each-other",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no transpiler has a setting for asynchronous updates",
)
def update_settings_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """A transpiler setting for asynchronous updates is used with synchronous ones.

    What it checks: `runtime_split_send_recv` and `enable_dc_asgd` are not enabled while `sync_mode` is enabled, which
    is the default unless it is set to False first.

    Why it matters: The configuration raises ValueError, or the transpiler stops at an assertion when it builds the
    server's program.

    Example: `config.runtime_split_send_recv = True` without `config.sync_mode = False` before it.

    Fix: Set `sync_mode = False` first, or remove the setting.

    Known limits: Only settings of a configuration that the script creates itself are known.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, _ in transpilers(job, scope):
            for quantity in ("runtime_split_send_recv", "dc_asgd"):
                for claim in claims_by_owner(job, quantity, scope, transpiler):
                    yield _exclusion_verdict(job, subject, scope, transpiler, claim)


def _exclusion_verdict(job: Job, subject: str, scope: Scope, transpiler: Claim, claim: Claim) -> Verdict:
    modes = claims_by_owner(job, "ps_update_mode", scope, transpiler)
    if undecided_verdict := undecided(subject, (claim, *modes)):
        return undecided_verdict
    if set(claim.alternatives) != {True}:
        return passed(subject)
    mode_names = {text for mode in modes for text in texts(mode.value)}
    async_before = [m for m in modes if texts(m.value) == ("async",) and m.span.line < claim.span.line]
    is_asynchronous = bool(async_before) or (claim.quantity == "dc_asgd" and bool(mode_names - {"sync"}))
    if is_asynchronous or "geo" in mode_names:
        return passed(subject)
    sync_claim = next((m for m in modes if texts(m.value) == ("sync",)), transpiler)
    return failed(
        subject,
        f"{quoted(claim)} needs asynchronous updates, but sync_mode is on ({placed(sync_claim)}).",
        at=claim,
        also=((sync_claim, "synchronous"),),
        remedy="Set `sync_mode = False` on the configuration first.",
    )


#: The effect of a startup program that transpile does not get, by mode.
_EFFECT_BY_MODE = {
    "pserver": "the servers run the default program, which is empty",
    "nccl2": "the communicator id is exchanged in the default startup program, which is not run",
}


@rule(
    "FLU024",
    "own-startup-program-not-passed",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no transpiled program has its own startup program",
)
def own_startup_program_not_passed(job: Job) -> Iterator[Verdict]:
    """A script builds its own programs but does not pass them to the transpiler.

    What it checks: If `program_guard(main, startup)` builds the program, `transpile` in pserver or nccl2 mode is given
    `program` and `startup_program`.

    Why it matters: The transpiler uses the default programs instead, which are empty. The servers' startup program then
    initializes no parameters and stops at the first one, and the trainers wait for the servers.

    Example: `with fluid.program_guard(main, startup): ...` and `t.transpile(0, program=main, pservers=eps,
    trainers=2)`.

    Fix: `t.transpile(..., program=main, startup_program=startup)`.

    Known limits: Judged only if both calls are in one script.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, mode in transpilers(job, scope):
            for transpile_call in claims_by_owner(job, "startup_program_given", scope, transpiler):
                guard = transpile_call.because[-1]
                if transpile_call.alternatives == (True,):
                    yield passed(subject)
                elif mode not in _EFFECT_BY_MODE:
                    yield unknown(subject, f"{quoted(transpiler)}: its mode is known only at run time", at=transpiler)
                else:
                    yield failed(
                        subject,
                        f"{quoted(transpile_call)} is not given `{texts(guard.value)[0]}`, which {placed(guard)} "
                        f"builds: {_EFFECT_BY_MODE[mode]}.",
                        at=transpile_call,
                        also=((guard, "built here"),),
                        remedy=f"Pass it: `{texts(guard.value)[0]}`.",
                    )


@rule(
    "FLU025",
    "server-runs-on-gpu",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no script runs a server program",
)
def server_runs_on_gpu(job: Job) -> Iterator[Verdict]:
    """A parameter server's program runs on an executor with a GPU.

    What it checks: The executor that runs the program of `get_pserver_program` has a CPUPlace.

    Why it matters: A server keeps parameters and sends them over the network from host memory. On a host without a GPU
    it stops immediately; next to trainers it uses memory of their GPU, and each update is copied there and back.

    Example: `exe = fluid.Executor(fluid.CUDAPlace(0))` for both trainers and servers.

    Fix: `place = fluid.CPUPlace()` for servers, and the GPU for trainers only.

    Known limits: Only executors that the same script creates are known.
    """
    for subject, device in subject_claims(job, "server_executor_device"):
        if isinstance(device.value, Unresolved):
            yield unknown(subject, f"{quoted(device)} is unknown: {device.value.why}", at=device)
        elif "gpu" in device.alternatives:
            yield failed(
                subject,
                f"The executor of {quoted(device)} runs a server's program, which belongs on the CPU.",
                at=device,
                remedy="Give servers their own executor: `fluid.Executor(fluid.CPUPlace())`.",
                severity=None if len(device.alternatives) == 1 else Severity.INFO,
            )
        else:
            yield passed(subject)


# Legacy Fluid: the transpiled program and its executor.


@rule(
    "FLU003",
    "distributed-table-not-served",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no embedding of a transpiled program sets is_distributed",
)
def distributed_table_not_served(job: Job) -> Iterator[Verdict]:
    """An embedding has is_distributed=True, which the transpiler cannot serve.

    What it checks: In a program that is transpiled, no embedding has `is_distributed=True`: `is_sparse=True` alone
    already keeps the table on the servers and fetches rows.

    Why it matters: `is_distributed` takes another path (`_replace_lookup_table_op_with_prefetch`). It needs
    `is_sparse=True`, allows one table in the whole program, updates it with plain SGD regardless of the optimizer, and
    in Fluid 1.4 to 1.8 stops with "list index out of range" or when the server starts.

    Example: `fluid.layers.embedding(x, size=[1000000, 8], is_sparse=True, is_distributed=True)` and `t.transpile(...)`.

    Fix: Remove `is_distributed` and set `is_sparse=True`.

    Known limits: Programs of Fluid before 1.3 with one table and SGD are correct.
    """
    for subject, scope in transpiling_scopes(job):
        for claim in job.about("embedding_distributed", scope):
            verdict = undecided(subject, (claim,))
            if verdict is None and set(claim.alternatives) == {True}:
                verdict = _not_served_finding(job, subject, scope, claim)
            yield verdict or passed(subject)


def _not_served_finding(job: Job, subject: str, scope: Scope, claim: Claim) -> Verdict:
    tables = [c for c in job.about("embedding_distributed", scope) if set(c.alternatives) == {True}]
    table = claim.because[0]
    is_sparse = any(
        True in other.alternatives
        for other in job.about("embedding_sparse", scope)
        if any(reason.span == table.span for reason in other.because)
    )
    optimizers = [c for c in job.about("optimizer", scope) if texts(c.value) not in ((), ("",), ("SGD",))]
    also: list[tuple[Claim, str]] = []
    if not is_sparse:
        fault = "also needs `is_sparse=True`: without it, every step sends the whole table"
    elif len(tables) > 1 and len(_parameter_names(job, scope, tables)) > 1:
        fault = f"is set for {len(tables)} tables, but the transpiler supports only one"
        also = [(other, "another table") for other in tables if other is not claim][:3]
    elif optimizers:
        fault = f"makes the servers update the table with plain SGD instead of {texts(optimizers[0].value)[0]}"
        also = [(optimizers[0], "the optimizer")]
    else:
        fault = "is replaced by a prefetch that fails in the transpiler of Fluid 1.4 to 1.8"
    transpiler = job.about("transpiler", scope)[0]
    return failed(
        subject,
        f"{quoted(claim)} {fault} ({where(transpiler)} transpiles the program).",
        at=claim,
        also=(*also, (transpiler, "the transpiler")),
        remedy="Remove `is_distributed` and set `is_sparse=True`: the servers then also hold the table.",
    )


def _parameter_names(job: Job, scope: Scope, tables: Sequence[Claim]) -> set[str]:
    """Return the names of the tables' parameters; an unnamed parameter counts as separate."""
    names = set()
    for index, table in enumerate(tables):
        name_claims = [c for c in job.about("embedding_parameter", scope) if c.because[:1] == table.because[:1]]
        name = "".join(texts(name_claims[0].value)) if name_claims else ""
        names.add(name or f"#{index}")
    return names


@rule(
    "FLU004",
    "trainers-run-unequal-steps",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no loop depends on the trainer's index",
)
def trainers_run_unequal_steps(job: Job) -> Iterator[Verdict]:
    """In synchronous training, some trainers leave the loop over batches early.

    What it checks: No loop of a program that updates synchronously ends or skips a step under a condition on the
    trainer's own index.

    Why it matters: Each step waits for all trainers. Those that still have batches wait for the ones that have left,
    until the RPC deadline ends them; a collective waits forever.

    Example: `if trainer_id != 3 and batch_id > 100: break`.

    Fix: Give every trainer the same number of steps, or update asynchronously.

    Known limits: Only an `if` directly in the loop that names the trainer's index, rank or worker index is recognized.
    """
    for subject, scope, _, claim in each_claim(job, "rank_dependent_steps"):
        mode_claims = job.about("ps_update_mode", scope)
        modes = {text for mode in mode_claims for text in texts(mode.value)}
        if modes == {"sync"}:
            yield failed(
                subject,
                f"{quoted(claim)} ends the loop on some trainers only, but {placed(mode_claims[0])} updates "
                "synchronously: the others wait until the RPC times out.",
                at=claim,
                also=((mode_claims[0], "synchronous updates"),),
                remedy="Make every trainer run the same number of steps, or update asynchronously.",
            )
        elif not modes:
            yield unknown(subject, f"{quoted(claim)}: the update mode is not given", at=claim)
        else:
            yield passed(subject)


@rule(
    "FLU005",
    "memory-optimize-renames-gradients",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 1.6 (Fluid)",
    otherwise="no transpiled program is memory-optimized",
)
def memory_optimize_renames_gradients(job: Job) -> Iterator[Verdict]:
    """memory_optimize of a transpiled program may reuse the gradients' variables.

    What it checks: A script that transpiles its program passes `skip_grads=True` to memory_optimize.

    Why it matters: The transpiler sends gradients by the names of their variables. memory_optimize renames and reuses
    them: the servers then receive wrong data, or the transpiler finds no gradients at all.

    Example: `fluid.memory_optimize(program)` and `t.transpile(...)`.

    Fix: Write `fluid.memory_optimize(program, skip_grads=True)`.

    Known limits: Since 1.5, `skip_grads` is true by default, and since 1.6, memory_optimize does nothing.
    """
    for subject, scope in transpiling_scopes(job):
        for claim in job.about("memory_optimize_skips_gradients", scope):
            transpiler = job.about("transpiler", scope)[0]
            undecided_verdict = None if claim.alternatives else undecided(subject, (claim,))
            # In nccl2 mode nothing is sent by name.
            if set(claim.alternatives) != {False} or {mode for _, mode in transpilers(job, scope)} == {"nccl2"}:
                yield undecided_verdict or passed(subject)
                continue
            yield failed(
                subject,
                f"{quoted(claim)} may reuse the gradients' variables, which {placed(transpiler)} sends by name.",
                at=claim,
                also=((transpiler, "the transpiler"),),
                remedy="Give `skip_grads=True`.",
            )


@rule(
    "FLU006",
    "executor-not-told-of-trainers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no program in nccl2 mode runs on a ParallelExecutor",
)
def executor_not_told_of_trainers(job: Job) -> Iterator[Verdict]:
    """A program in nccl2 mode runs on a ParallelExecutor without num_trainers and trainer_id.

    What it checks: If the transpiler is in nccl2 mode, ParallelExecutor is given `num_trainers` and `trainer_id`, or
    the BuildStrategy has them.

    Why it matters: Without them, the executor averages only over the GPUs of its own machine: every trainer silently
    trains its own model.

    Example: `config.mode = "nccl2"` and `fluid.ParallelExecutor(use_cuda=True, loss_name=loss.name)`.

    Fix: Pass `num_trainers=` and `trainer_id=`.

    Known limits: An executor that shares its variables with another is used for evaluation and not checked.
    """
    for subject, scope in transpiling_scopes(job):
        modes = {mode for _, mode in transpilers(job, scope)}
        executors = job.about("executor_knows_trainers", scope)
        if not executors or not modes & {"nccl2", ""}:
            continue
        transpiler = next(claim for claim, mode in transpilers(job, scope) if mode in ("nccl2", ""))
        uninformed = [claim for claim in executors if claim.alternatives == (False,)]
        if not uninformed:
            yield passed(subject)
        elif "nccl2" not in modes or uninformed[0].condition:
            yield unknown(subject, f"{quoted(transpiler)}: its mode is known only at run time", at=transpiler)
        else:
            yield failed(
                subject,
                f"{quoted(uninformed[0])} is given neither num_trainers nor trainer_id, but {placed(transpiler)} is in "
                "nccl2 mode: each trainer trains alone.",
                at=uninformed[0],
                also=((transpiler, "nccl2 mode"),),
                remedy="Give ParallelExecutor `num_trainers=` and `trainer_id=`.",
            )


# The distribution of parameters over servers, and the memory that they need.


#: Most servers that are judged; a larger number is a mistake that other rules report.
_MAX_SERVERS = 10_000
#: From this size on, sending a table at every step takes longer than the step.
_LARGE_TABLE_BYTES = 64 * 2**20


def _known_shapes(claims: Sequence[Claim]) -> list[tuple[int, ...]]:
    return [
        tuple(int(str(n)) for n in value)
        for claim in claims
        for value in claim.alternatives
        if isinstance(value, tuple)
    ]


def _without_shared_parameters(job: Job, scope: Scope, claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims without those about tables that share a named parameter with an earlier table."""
    seen_names: set[str] = set()
    claims_kept: list[Claim] = []
    for claim in claims:
        name_claims = [
            c for c in job.about("embedding_parameter", scope) if any(r.span == claim.span for r in c.because)
        ]
        name = "".join(texts(name_claims[0].value)) if name_claims else ""
        if name not in seen_names or not name:
            claims_kept.append(claim)
        seen_names.add(name)
    return claims_kept


def _megabytes(size: float) -> str:
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


@rule(
    "PPS014",
    "servers-hold-unequal-shares",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no transpiled script with known servers creates parameters",
)
def servers_hold_unequal_shares(job: Job) -> Iterator[Verdict]:
    """Some servers hold no parameter, or one holds far more than the others.

    What it checks: If a script gives the sizes of all its parameters, the shares of the servers are computed: every
    server holds some, and the fullest holds at most twice the mean.

    Why it matters: A server without parameters does nothing, and in Paddle v2 waits forever. The fullest server sends
    and receives most of the data of every step, so its network card sets the speed of the job.

    Example: `config.slice_var_up = False`, an embedding of 1000000 x 64 and two small layers, on 8 servers.

    Fix: Keep slice_var_up enabled, use a smaller min_block_size, or start fewer servers.

    Known limits: With layers whose sizes are not computed (convolutions, recurrent layers), the result is unknown.
    HashName depends on variable names and is not computed.
    """
    for subject, scope, transpiler in distinct_claims(job, "transpiler"):
        if "pserver" not in texts(transpiler.value):
            continue
        path = transpiler.span.path
        parameters = [
            claim
            for name in ("embedding_shape", "parameter_shape")
            for claim in job.about(name, scope)
            if claim.span.path == path
        ]
        servers = job.value_claims("ps_server_endpoints", scope) or job.value_claims("ps_servers", scope)
        if not parameters or not servers:
            continue
        parameters.sort(key=lambda claim: (claim.span.line, claim.span.column))
        yield _shares_verdict(
            job, subject, scope, transpiler, _without_shared_parameters(job, scope, parameters), servers
        )


def _shares_verdict(
    job: Job, subject: str, scope: Scope, transpiler: Claim, parameters: Sequence[Claim], servers: tuple[Claim, ...]
) -> Verdict:
    settings = [
        c
        for name in ("slice_var_up", "min_block_size", "split_method")
        for c in claims_by_owner(job, name, scope, transpiler)
    ]
    if undecided_verdict := undecided(subject, (*servers, *settings, *parameters)):
        return undecided_verdict
    values = {claim.quantity: claim.alternatives[0] for claim in settings}
    if values.get("split_method") == "HashName":
        return unknown(subject, "HashName assigns blocks to servers by the hash of their names", at=transpiler)
    entries = endpoints(servers)
    count = len(entries) or min(numbers(servers[0].value), default=0)
    min_elements = values.get("min_block_size", MIN_BLOCK)
    is_sliced = values.get("slice_var_up", True) is not False
    if not 1 <= count <= _MAX_SERVERS or not isinstance(min_elements, int):
        return unknown(subject, "the number of servers is unknown", at=servers[0])
    held_bytes = bytes_held(_known_shapes(parameters), (), count, min_elements=min_elements if is_sliced else None)
    total, fullest = sum(held_bytes), max(held_bytes)
    empty_servers = [index for index, share in enumerate(held_bytes) if not share]
    cutting_claim = settings[0] if settings else transpiler
    largest = max(parameters, key=lambda claim: math.prod(_known_shapes([claim])[0]))
    if empty_servers:
        return failed(
            subject,
            f"{quoted(servers[0])}: {len(empty_servers)} of {count} servers hold nothing, because the "
            f"{len(parameters)} parameters ({_megabytes(total)}) form only {count - len(empty_servers)} blocks.",
            at=servers[0],
            also=((cutting_claim, "cut here"), (largest, "the largest parameter")),
            remedy=f"Start {count - len(empty_servers)} servers, or use a smaller min_block_size.",
        )
    if overloaded(held_bytes):
        return failed(
            subject,
            f"{quoted(largest)} goes to one server, which holds {_megabytes(fullest)}, while the mean of {count} is"
            f" {_megabytes(total / count)}.",
            at=largest,
            also=((cutting_claim, "cut here"), (servers[0], "the servers")),
            remedy="Keep slice_var_up enabled, so that large parameters are split."
            if not is_sliced
            else "Use a smaller min_block_size or fewer servers.",
        )
    return passed(subject)


@rule(
    "PPS015",
    "tables-exceed-server-memory",
    severity=Severity.ERROR,
    otherwise="no job with tables gives its servers and their memory",
)
def tables_exceed_server_memory(job: Job) -> Iterator[Verdict]:
    """The embedding tables do not fit into the memory of the servers' hosts.

    What it checks: Rows x width x 4 bytes x (1 + the optimizer's slots per value), divided by all servers and
    multiplied by the servers per node, is less than the memory that the job requests on each node.

    Why it matters: A server allocates its share when the first parameters arrive, and runs out of memory: "bad alloc"
    after the whole job has started.

    Example: `size=[1000000000, 64]` with Adam over 4 servers, and `#SBATCH --mem=64G`.

    Fix: Start more servers on more hosts, request more memory, or use a table that stores only the rows in use.

    Known limits: Tables that grow (`sparse_embedding`) start empty and are not counted. The trainers' own memory is not
    subtracted.
    """
    seen_keys: set[tuple[str, ...]] = set()
    for subject, scope, first in distinct_claims(job, "embedding_shape"):
        memory = job.setting("memory_per_node_mib", scope)
        servers = [
            claim
            for quantity in ("ps_server_endpoints", "ps_servers")
            for claim in job.value_claims(quantity, scope)
            if not isinstance(claim.value, Unresolved)
        ] or list(job.value_claims("ps_server_endpoints", scope))
        key = (first.span.path, subject)
        if not memory or not servers or key in seen_keys:
            continue
        seen_keys.add(key)
        sparse_embeddings = [c for c in job.about("embedding_sparse", scope) if "sparse_embedding" in c.spelling]
        tables = [
            claim
            for claim in job.about("embedding_shape", scope)
            if not any(reason.span == claim.span for other in sparse_embeddings for reason in other.because)
        ]
        memory_and_servers = (memory[0], servers[0])
        yield _memory_verdict(job, subject, scope, _without_shared_parameters(job, scope, tables), memory_and_servers)
        growing_tables = [reason for claim in sparse_embeddings for reason in claim.because]
        if growing_tables:
            yield _memory_verdict(job, subject, scope, growing_tables, memory_and_servers, severity=Severity.WARNING)


def _memory_verdict(
    job: Job,
    subject: str,
    scope: Scope,
    tables: Sequence[Claim],
    memory_and_servers: tuple[Claim, Claim],
    *,
    severity: Severity | None = None,
) -> Verdict:
    memory, servers = memory_and_servers
    undecided_verdict = undecided(subject, (memory, servers, *tables))
    if undecided_verdict is not None or not tables:
        return undecided_verdict or passed(subject)
    # If the operator assigns the addresses, each server has its own pod.
    count = max(numbers(servers.value), default=0) if servers.quantity == "ps_servers" else 0
    entries = endpoints((servers,)) if not count else [f"pod{index}" for index in range(min(count, _MAX_SERVERS))]
    optimizers = {text for claim in job.about("optimizer", scope) for text in texts(claim.value)} - {""}
    slots = max((OPTIMIZER_SLOTS.get(name, 0) for name in optimizers), default=0)
    total = sum(math.prod(shape) for shape in _known_shapes(tables)) * FLOAT_BYTES * (1 + slots)
    hosts = [host_of(entry) for entry in entries]
    servers_per_host = max((hosts.count(host) for host in hosts), default=0)
    memory_mib = max(numbers(memory.value), default=0)
    if not entries or not memory_mib:
        return unknown(subject, f"{quoted(memory)}: the amount is not given", at=memory)
    share = total / len(entries) * servers_per_host
    if share <= memory_mib * 2**20:
        return passed(subject)
    verb = "may grow to" if severity is not None else "take"
    largest = max(tables, key=lambda claim: math.prod(_known_shapes([claim])[0]))
    slots_text = (
        f", with {slots} optimizer values for each parameter ({', '.join(sorted(optimizers))})" if slots else ""
    )
    return failed(
        subject,
        f"{quoted(largest)}: the tables {verb} {_megabytes(total)}{slots_text}, so {_megabytes(share)} on a host of"
        f" {servers_per_host} of the {len(entries)} servers, but {placed(memory)} grants"
        f" {_megabytes(memory_mib * 2**20)}.",
        at=largest,
        also=((memory, "memory of a node"), (servers, "the servers")),
        remedy="Spread the tables over more servers, or request more memory.",
        severity=severity,
    )


@rule(
    "PPS016",
    "large-table-sent-whole",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script with parameter servers creates an embedding",
)
def large_table_sent_whole(job: Job) -> Iterator[Verdict]:
    """A large embedding in a parameter-server job is not sparse.

    What it checks: An embedding of 64 MiB or more, in a script that serves parameters, has `is_sparse=True`.

    Why it matters: Without it, the gradient is as large as the table, and every step sends the gradient to the servers
    and the whole table back, instead of the rows of the batch.

    Example: `fluid.layers.embedding(x, size=[10000000, 16])` in a script with a transpiler.

    Fix: Write `is_sparse=True`.

    Known limits: Only tables with a literal size are judged.
    """
    for subject, scope, table in distinct_claims(job, "embedding_shape"):
        modes = [c for c in job.about("ps_mode", scope) if True in c.alternatives]
        if not modes:
            continue
        sparse_claims = [
            c for c in job.about("embedding_sparse", scope) if any(r.span == table.span for r in c.because)
        ]
        if undecided_verdict := undecided(subject, (table, *sparse_claims, *modes)):
            yield undecided_verdict
            continue
        size = math.prod(_known_shapes([table])[0]) * FLOAT_BYTES
        if size < _LARGE_TABLE_BYTES or any(True in claim.alternatives for claim in sparse_claims):
            yield passed(subject)
        else:
            yield failed(
                subject,
                f"{quoted(table)} is a table of {_megabytes(size)} without is_sparse=True: every step sends all of"
                f" it to the servers of {placed(modes[0])} and back.",
                at=table,
                also=((modes[0], "parameter servers"),),
                remedy="Give the embedding `is_sparse=True`.",
            )


@rule(
    "FLU008",
    "blocks-dealt-by-hash",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no transpiler's split_method is set",
    each=claims_about("split_method", also=("env.PYTHONHASHSEED",)),
)
def blocks_dealt_by_hash(question: SubjectQuestion) -> Verdict | None:
    """Parameters are assigned to servers by Python's hash, which differs between processes.

    What it checks: The transpiler's split_method is RoundRobin, or PYTHONHASHSEED is set to one number for all
    processes.

    Why it matters: HashName uses `hash(name)`, which Python 3 salts differently in each process, so trainers and
    servers disagree about the assignment: trainers request parameters from servers that do not have them. A hash also
    fills servers unevenly when there are few blocks.

    Example: `config.split_method = HashName`.

    Fix: Use RoundRobin, or export PYTHONHASHSEED=0 for every process.

    Known limits: Programs for Python 2 work with HashName.
    """
    (method,), seeds = question.of
    if texts(method.value) != ("HashName",) or (seeds and "random" not in texts(seeds[0].value)):
        return None
    return failed(
        question.subject,
        f"{quoted(method)} assigns blocks by Python's hash, which differs in every process of Python 3.",
        at=method,
        remedy="Use RoundRobin, or export PYTHONHASHSEED=0 for every process.",
    )


#: The share of the trainers' cores below which servers are the bottleneck of every step. A rule of thumb: a server
#: unpacks, applies and packs the gradients of all trainers, which costs a fraction of computing them.
_MIN_CORE_SHARE = 1 / 50


@rule(
    "PPS031",
    "server-pods-short-of-cores",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no manifest limits the cores of parameter servers",
)
def server_pods_short_of_cores(job: Job) -> Iterator[Verdict]:
    """The parameter servers of a manifest have too few CPU cores for the trainers that they serve.

    What it checks: Each pod of a `ps` role may use at least one core, and all servers together a fiftieth of the
    trainers' cores.

    Why it matters: A server applies the gradients of all trainers and serializes the replies. With half a core it is
    throttled, every trainer waits for it at each step, and requests time out.

    Example: `ps: replicas: 2` with `cpu: 500m`, and 16 workers with `cpu: 16`.

    Fix: Give servers several cores each, or start more servers.

    Known limits: The required number depends on the model; this rule's limits catch only clear cases.
    """
    for workload in workloads(job):
        servers = [role for role in workload.roles if role.name.lower() in ("ps", "server", "parameterserver")]
        for role in servers:
            limits = role.setting("pod_cpus") or role.setting("pod_cpu_requests")
            if not limits or not workload.trainers:
                continue
            undecided_verdict = undecided(workload.id, (limits[0], role.count))
            yield undecided_verdict or _cores_verdict(workload, role, limits[0])


def _cores_verdict(workload: Workload, role: Role, limit: Claim) -> Verdict:
    cores, servers = _largest_number(limit), _largest_number(role.count)
    trainer_cores = 0.0
    for trainer in workload.trainers:
        limits = trainer.setting("pod_cpus") or trainer.setting("pod_cpu_requests")
        trainer_cores += _largest_number(trainer.count) * (_largest_number(limits[0]) if limits else 0)
    total = cores * servers
    if cores >= 1 and total >= trainer_cores * _MIN_CORE_SHARE:
        return passed(workload.id)
    trainers_text = f" and the trainers {trainer_cores:g}" if trainer_cores else ""
    return failed(
        workload.id,
        f"{quoted(limit)} gives the {servers:g} parameter servers {total:g} cores together{trainers_text}: the"
        " servers are the bottleneck of each step.",
        at=limit,
        remedy="Give servers several cores each, or start more servers.",
    )


def _largest_number(claim: Claim) -> float:
    """Return the largest number that a claim allows; 0 if it allows no number."""
    return max((float(item) for item in claim.alternatives if isinstance(item, (int, float))), default=0.0)
