"""Legacy Fluid: arguments and configuration of the transpiler."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Scope, Unresolved
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import subjects
from preflight_rules.paddle.roles_played import endpoints
from preflight_rules.scripts.script_facts import stated


def transpilers(job: Job, scope: Scope) -> Iterator[tuple[Claim, str]]:
    """Each transpiler of a scope with its mode; the mode is empty if unknown."""
    for claim in job.about("transpiler", scope):
        modes = set(texts(claim.value))
        yield claim, modes.pop() if len(modes) == 1 else ""


def claims_of(job: Job, quantity: str, scope: Scope, owner: Claim) -> tuple[Claim, ...]:
    """The claims about a quantity that belong to one object, such as one transpiler."""
    return tuple(
        claim
        for claim in job.about(quantity, scope)
        if any(reason.span == owner.span and reason.quantity == owner.quantity for reason in claim.because)
    )


def transpiling_scopes(job: Job) -> Iterator[tuple[str, Scope]]:
    """Each subject and scope with a transpiler; a script that two launches start occurs once."""
    seen: set[tuple[object, ...]] = set()
    for subject, scope, _ in subjects(job):
        key = tuple(sorted({(c.span.path, c.span.line) for c in job.about("transpiler", scope)}))
        if key and key not in seen:
            seen.add(key)
            yield subject, scope


@rule(
    "FLU001",
    "transpile-given-text-for-number",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="nothing uses the transpiler",
)
def transpile_given_text_for_number(job: Job) -> Iterator[Verdict]:
    """The transpiler gets trainer_id or the number of trainers as a string.

    What it checks: In pserver mode `trainer_id` and `trainers` are not strings, as `os.getenv(...)` without `int(...)`
    returns them. In nccl2 mode `trainers` is a string, the list of endpoints, not a number.

    Why it matters: Both become integer attributes of operators. With a string the server's program is not built or
    waits for a number of trainers that never comes; in nccl2 mode an assertion without a message stops the program.

    Example: `t.transpile(int(os.getenv("TRAINER_ID")), pservers=eps, trainers=os.getenv("TRAINERS"))`.

    Fix: Convert: `trainers=int(os.getenv("TRAINERS"))`.

    Known limits: Only a literal argument, or one taken directly from the environment, is judged.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, mode in transpilers(job, scope):
            wrong = claims_of(job, "text_argument", scope, transpiler)
            counts = claims_of(job, "number_argument", scope, transpiler) if mode == "nccl2" else ()
            if mode in ("nccl2", "collective"):
                wrong = tuple(claim for claim in wrong if texts(claim.value) == ("trainer_id",))
            if not mode and wrong:
                yield unknown(subject, f"{quoted(transpiler)}: its mode is known only at run time", at=transpiler)
            elif wrong:
                name = texts(wrong[0].value)[0]
                yield failed(
                    subject,
                    f"{quoted(wrong[0])} is text where the transpiler needs a number.",
                    at=wrong[0],
                    also=((transpiler, "the transpiler"),),
                    remedy=f"Convert it: `{name}=int(...)`.",
                )
            elif counts:
                yield failed(
                    subject,
                    f"{quoted(counts[0])} is a number, but {placed(transpiler)} is in nccl2 mode, where `trainers` is "
                    "the list of the trainers' endpoints as one string.",
                    at=counts[0],
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
    otherwise="no server's program is requested",
)
def server_program_of_unlisted_endpoint(job: Job) -> Iterator[Verdict]:
    """A server's program is requested for an endpoint that the transpiler was not given.

    What it checks: The endpoint of `get_pserver_program` is one of `pservers`, where both are literals in the script.

    Why it matters: Parameters are assigned to endpoints by their text. For any other endpoint the program is empty or
    fails with a KeyError, and the trainers wait for a server that holds nothing.

    Example: `t.transpile(0, pservers="10.0.0.1:6174", trainers=2)` and `t.get_pserver_program("127.0.0.1:6174")`.

    Fix: Take the endpoint from the list itself.

    Known limits: Endpoints from the environment are judged where the environment is known, by PPS004.
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
            own, listed = texts(endpoint.value), {entry for claim in lists for entry in endpoints((claim,))}
            if own and listed and not set(own) & listed:
                yield failed(
                    subject,
                    f"{quoted(endpoint)} is not one of the servers of {placed(lists[0])}: {', '.join(sorted(listed))}.",
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

    What it checks: `current_endpoint` of `transpile` is one of the endpoints in `trainers`, where both are known.

    Why it matters: The transpiler removes its own endpoint from the list to find the others. An endpoint that is not in
    the list raises ValueError, and the other trainers wait for this one.

    Example: `t.transpile(0, trainers="10.0.0.1:6174,10.0.0.2:6174", current_endpoint="10.0.0.3:6174")`.

    Fix: Write the endpoint exactly as it is in `trainers`, with its port.

    Known limits: Endpoints that the script takes from the environment are not known. Where one of several branches is
    wrong, it is a warning.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, _ in transpilers(job, scope):
            listed = claims_of(job, "nccl2_endpoints", scope, transpiler)
            for own in claims_of(job, "nccl2_own_endpoint", scope, transpiler):
                # All are arguments of one call, so that its branch does not matter.
                opened = next((c for c in (own, *listed) if isinstance(c.value, Unresolved)), None)
                if opened is not None or not listed:
                    why = f"{quoted(own)} and the trainers are known only at run time"
                    yield unknown(subject, why if opened is not None else "the trainers are not given", at=own)
                    continue
                known = {entry for claim in listed for text in texts(claim.value) for entry in text.split(",")}
                outside = [text for text in texts(own.value) if text not in known]
                if known and outside and len(outside) < len(texts(own.value)):
                    yield failed(
                        subject,
                        f"{quoted(own)} is {outside[0]} in one branch, which is not one of the trainers of"
                        f" {placed(listed[0])}: the transpiler raises ValueError there.",
                        at=own,
                        also=((listed[0], "the trainers"),),
                        remedy=f'Use an endpoint as it is written in `trainers`: "{min(known)}".',
                        severity=Severity.WARNING,
                    )
                elif known and outside:
                    yield failed(
                        subject,
                        f"{quoted(own)} is not one of the trainers of {placed(listed[0])}: the transpiler raises"
                        " ValueError.",
                        at=own,
                        also=((listed[0], "the trainers"),),
                        remedy=f'Use an endpoint as it is written in `trainers`: `current_endpoint="{min(known)}"`.',
                    )
                else:
                    yield passed(subject)


@rule(
    "FLU007",
    "update-settings-exclude-each-other",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no transpiler has a setting of asynchronous updates",
)
def update_settings_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """A transpiler setting for asynchronous updates is used with synchronous ones.

    What it checks: `runtime_split_send_recv` and `enable_dc_asgd` are not switched on while `sync_mode` is on, which it
    is unless it is set to False before.

    Why it matters: The configuration raises ValueError, or the transpiler stops at an assertion when the server's
    program is made.

    Example: `config.runtime_split_send_recv = True` without `config.sync_mode = False` before it.

    Fix: Set `sync_mode = False` first, or leave the setting out.

    Known limits: Only settings of a configuration that the script makes itself are known.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, _ in transpilers(job, scope):
            for quantity in ("runtime_split_send_recv", "dc_asgd"):
                for claim in claims_of(job, quantity, scope, transpiler):
                    yield _excluded(job, subject, scope, transpiler, claim)


def _excluded(job: Job, subject: str, scope: Scope, transpiler: Claim, claim: Claim) -> Verdict:
    modes = claims_of(job, "ps_update_mode", scope, transpiler)
    if undecided_verdict := undecided(subject, (claim, *modes)):
        return undecided_verdict
    if set(claim.alternatives) != {True}:
        return passed(subject)
    found = {text for mode in modes for text in texts(mode.value)}
    early = [m for m in modes if texts(m.value) == ("async",) and m.span.line < claim.span.line]
    asynchronous = bool(early) or (claim.quantity == "dc_asgd" and bool(found - {"sync"}))
    if asynchronous or "geo" in found:
        return passed(subject)
    sync = next((m for m in modes if texts(m.value) == ("sync",)), transpiler)
    return failed(
        subject,
        f"{quoted(claim)} needs asynchronous updates, but sync_mode is on ({placed(sync)}).",
        at=claim,
        also=((sync, "synchronous"),),
        remedy="Set `sync_mode = False` on the configuration before it.",
    )


#: What becomes of a startup program that transpile is not given, by its mode.
_LOST = {
    "pserver": "the servers take a default program, which is empty",
    "nccl2": "the exchange of the communicator's id is added to the default startup program, which is not run",
}


@rule(
    "FLU024",
    "own-startup-program-not-passed",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no transpiled program has a startup program of its own",
)
def own_startup_program_not_passed(job: Job) -> Iterator[Verdict]:
    """A script builds programs of its own and does not pass them to the transpiler.

    What it checks: Where `program_guard(main, startup)` builds the program, `transpile` in pserver or nccl2 mode gets
    `program` and `startup_program`.

    Why it matters: The transpiler takes the default programs instead, which are empty. The servers' startup
    program then initialises no parameter and stops at the first one, and the trainers wait for the servers.

    Example: `with fluid.program_guard(main, startup): ...` and `t.transpile(0, program=main, pservers=eps,
    trainers=2)`.

    Fix: `t.transpile(..., program=main, startup_program=startup)`.

    Known limits: Only where both calls are in one script.
    """
    for subject, scope in transpiling_scopes(job):
        for transpiler, mode in transpilers(job, scope):
            for given in claims_of(job, "startup_program_given", scope, transpiler):
                built = given.because[-1]
                if given.alternatives == (True,):
                    yield passed(subject)
                elif mode not in _LOST:
                    yield unknown(subject, f"{quoted(transpiler)}: its mode is known only at run time", at=transpiler)
                else:
                    yield failed(
                        subject,
                        f"{quoted(given)} does not get `{texts(built.value)[0]}`, which {placed(built)} builds:"
                        f" {_LOST[mode]}.",
                        at=given,
                        also=((built, "built here"),),
                        remedy=f"Pass it: `{texts(built.value)[0]}`.",
                    )


@rule(
    "FLU025",
    "server-runs-on-gpu",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 2.0 (Fluid)",
    otherwise="no script runs a server's program",
)
def server_runs_on_gpu(job: Job) -> Iterator[Verdict]:
    """A parameter server's program runs on an executor with a GPU.

    What it checks: The executor that runs the program of `get_pserver_program` has a CPUPlace.

    Why it matters: A server keeps parameters and sends them over the network from host memory. On a host without a GPU
    it stops at once; beside trainers it takes memory of their GPU, and each update is copied there and back.

    Example: `exe = fluid.Executor(fluid.CUDAPlace(0))` for trainers and servers alike.

    Fix: `place = fluid.CPUPlace()` for servers, and the GPU for trainers only.

    Known limits: Only executors that the same script makes.
    """
    for subject, device in stated(job, "server_executor_device"):
        if isinstance(device.value, Unresolved):
            yield unknown(subject, f"{quoted(device)} is unknown: {device.value.why}", at=device)
        elif "gpu" in device.alternatives:
            yield failed(
                subject,
                f"The executor of {quoted(device)} runs a server's program, which belongs on the CPU.",
                at=device,
                remedy="Give servers an executor of their own: `fluid.Executor(fluid.CPUPlace())`.",
                severity=None if len(device.alternatives) == 1 else Severity.INFO,
            )
        else:
            yield passed(subject)
