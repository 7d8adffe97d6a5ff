"""Ray: clusters started with `ray start`, jobs submitted to them, and what Ray workers request."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import SECTION, items, known_number, numbers, texts
from preflight.plugins.authoring import Verdict, delete_word, failed, make_fix, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, why_unresolved
from preflight.sources.conditions import GIVEN, Section, UnknownValue, holds
from preflight_rules.data_tables import table
from preflight_rules.kubernetes.workloads import workloads
from preflight_rules.launches import certainly_several, runs_program, subject_claims
from preflight_rules.settings.tables import in_range, pinned

#: Default ports of worker processes (ray start --help, 2.60).
_FIRST, _LAST = 10002, 19999
#: Default port of the Ray Client server.
CLIENT_PORT = 10001


def starts_of(job: Job, role: str = "") -> Iterator[tuple[Launch, str]]:
    """Yield the launches of `ray` (only those with `role`, if given), each with its role; the role is empty if
    unknown.
    """
    for launch in job.launches:
        if launch.launcher != "ray":
            continue
        roles = texts(job_value(job.setting("ray_role", launch.scope)))
        kind = roles[0] if len(roles) == 1 else ""
        if not role or kind == role:
            yield launch, kind


@rule("RAY001", "ray-port-used-twice", severity=Severity.ERROR, otherwise="no `ray start` sets a port")
def ray_port_used_twice(job: Job) -> Iterator[Verdict]:
    """Two components of one Ray node are given the same port.

    What it checks: The ports on a `ray start` line differ from each other and are outside the range of worker ports
    (10002 to 19999, unless --min-worker-port and --max-worker-port change it).

    Why it matters: `ray start` stops with "Ray component ... is trying to use a port number ... that is used by other
    components".

    Example: `ray start --head --port=10005`, which is one of the worker ports.

    Fix: Use different ports outside 10002 to 19999, or move the range.

    Known limits: `preflight check` checks for ports that other programs use.
    """
    for launch, kind in starts_of(job):
        if kind == "submit":
            continue
        port_claims = [c for c in job.about("ray_port", launch.scope) if c.scope.launch == launch.id]
        if kind == "head":
            port_claims.extend(job.setting("master_port", launch.scope))
        if not port_claims:
            continue
        undecided_verdict = undecided(launch.id, port_claims, launch)
        yield undecided_verdict if undecided_verdict is not None else _port_verdict(job, launch, port_claims)


def _port_verdict(job: Job, launch: Launch, port_claims: list[Claim]) -> Verdict:
    ranges = [c for c in job.about("ray_worker_ports", launch.scope) if c.scope.launch == launch.id]
    low, high, range_claim = _FIRST, _LAST, None
    if ranges:
        bounds = ranges[0].alternatives
        if len(bounds) != 1 or not isinstance(bounds[0], tuple) or len(bounds[0]) != 2:
            return unknown(launch.id, f"the range of {quoted(ranges[0])} is unknown", at=ranges[0])
        low, high, range_claim = int(str(bounds[0][0])), int(str(bounds[0][1])), ranges[0]
    claim_by_port: dict[int, Claim] = {}
    for claim in port_claims:
        claim_ports = numbers(claim.value)
        if len(claim_ports) != 1 or not claim_ports[0]:
            continue
        port = claim_ports[0]
        if port in claim_by_port:
            return failed(
                launch.id,
                f"{quoted(claim)} is also the port of {quoted(claim_by_port[port])}: `ray start` stops when a port is"
                f" used twice.",
                at=claim,
                also=((claim_by_port[port], "same port"),),
                remedy="Give each component its own port.",
            )
        if low <= port <= high and low > 0:
            return failed(
                launch.id,
                f"{quoted(claim)} is in Ray's range of worker ports, {low} to {high}: `ray start` stops when a port"
                f" is used twice.",
                at=claim,
                also=((range_claim, "the range"),) if range_claim is not None else (),
                remedy=f"Use a port outside {low} to {high}, or move the range with --min-worker-port and"
                " --max-worker-port.",
            )
        claim_by_port[port] = claim
    return passed(launch.id)


@rule(
    "RAY002",
    "ray-worker-dials-another-port",
    severity=Severity.ERROR,
    otherwise="no worker joins a head of the same job",
)
def ray_worker_dials_another_port(job: Job) -> Iterator[Verdict]:
    """A worker joins at a port on which the head does not listen.

    What it checks: The port in `ray start --address=HOST:PORT` is the `--port` of the `ray start --head` in the same
    job (6379 by default).

    Why it matters: The worker retries for a while and stops; the head waits with too few nodes, and the program hangs
    at its first placement group.

    Example: `ray start --head --port=6379` and `ray start --address=$HEAD:6380`.

    Fix: Keep the port in one variable and use it on both lines.

    Known limits: A job with several heads is not judged.
    """
    heads = list(starts_of(job, "head"))
    for launch, _ in starts_of(job, "worker"):
        claims = job.setting("master_port", launch.scope)
        if len(heads) != 1 or not claims:
            continue
        head_port_claims = job.setting("master_port", heads[0][0].scope)
        verdict = undecided(launch.id, (*claims, *head_port_claims), launch)
        worker_ports, head_ports = numbers(job_value(claims)), numbers(job_value(head_port_claims))
        if verdict is None and worker_ports and head_ports and not set(worker_ports) & set(head_ports):
            verdict = failed(
                launch.id,
                f"{quoted(claims[0])} connects to port {joined(worker_ports)}, but the head listens on"
                f" {joined(head_ports)} ({placed(head_port_claims[0])}).",
                at=claims[0],
                also=((head_port_claims[0], "the head's port"),),
                remedy=f"Use port {joined(head_ports)} here, or give the head --port={joined(worker_ports)}.",
            )
        yield verdict or passed(launch.id)


@rule(
    "RAY003",
    "ray-head-on-every-node",
    severity=Severity.ERROR,
    otherwise="no launch starts a Ray head on several nodes",
)
def ray_head_on_every_node(job: Job) -> Iterator[Verdict]:
    """`ray start --head` is started on several nodes.

    What it checks: srun, mpirun or pdsh starts the head on only one node.

    Why it matters: Each node becomes its own cluster. The workers join one of them, and the program sees only some
    of the GPUs, or waits for the rest.

    Example: `#SBATCH --nodes=4` and `srun ray start --head --block &`.

    Fix: `srun --nodes=1 --ntasks=1 -w "$head_node" ray start --head --block &`.

    Known limits: A head under a condition on the node's rank is not recognized.
    """
    for launch, _ in starts_of(job, "head"):
        spreading_wrappers = {"srun", "mpirun", "pdsh", "clush"} & set(launch.wrappers)
        nodes = job.setting("nodes", launch.scope)
        if not spreading_wrappers or not nodes:
            continue
        undecided_verdict = undecided(launch.id, nodes, launch)
        if job.setting("single_node_step", launch.scope):
            yield passed(launch.id)
        elif undecided_verdict is not None:
            yield undecided_verdict
        elif certainly_several(job_value(nodes)):
            yield failed(
                launch.id,
                f"`ray start --head` is started on each of {joined(numbers(job_value(nodes)))} nodes"
                f" ({placed(nodes[0])}): each starts a separate cluster.",
                at=launch,
                also=((nodes[0], "nodes"),),
                remedy='Start it on one node: `srun --nodes=1 --ntasks=1 -w "$head_node" ray start --head --block &`.',
            )
        else:
            yield passed(launch.id)


@rule(
    "RAY004",
    "ray-start-returns-at-once",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="srun does not start `ray start`",
)
def ray_start_returns_at_once(job: Job) -> Iterator[Verdict]:
    """`ray start` under srun lacks `--block`, so the step ends and Slurm kills the daemons.

    What it checks: A `ray start` line directly under srun has `--block`.

    Why it matters: Without it the command starts its daemons and returns. The step ends, Slurm cleans up after it, and
    the node leaves the cluster right after joining.

    Example: `srun -N1 -n1 -w "$node" ray start --address="$head:6379"`.

    Fix: Add `--block`, and `&` after the line so that the script continues.

    Known limits: If Slurm does not track processes, the daemons survive.
    """
    for launch, kind in starts_of(job):
        if kind not in ("head", "worker") or "srun" not in launch.wrappers:
            continue
        block_claims = job.setting("ray_block", launch.scope)
        # In a shell of the step, a later command may keep the step alive.
        steps = [c for c in job.about("step", launch.scope) if c.scope.launch == launch.id]
        in_shell = not steps or any(re.search(r"(?:^|[\s/])(?:ba|z|k|da)?sh\s", c.spelling) for c in steps)
        if not block_claims or why_unresolved(block_claims, launch) is not None or in_shell:
            yield unknown(launch.id, "cannot determine whether the step continues after `ray start`", at=launch)
        elif all(claim.alternatives == (False,) for claim in block_claims):
            yield failed(
                launch.id,
                "`ray start` without `--block` returns immediately; then the srun step ends, and Slurm kills the "
                "daemons.",
                at=launch,
                remedy="Add --block, and `&` after the line so that the script continues.",
            )
        else:
            yield passed(launch.id)


@rule(
    "RAY005",
    "ray-start-options-conflict",
    severity=Severity.ERROR,
    fix="safe",
    otherwise="no `ray start` joins a worker",
)
def ray_start_options_conflict(job: Job) -> Iterator[Verdict]:
    """A worker's `ray start` lacks the head's address, or has an option that only the head accepts.

    What it checks: Without `--head`, a `ray start` line has `--address` and no `--port`.

    Why it matters: `ray start` stops: "--address is a required flag unless starting a head node", or "--port should
    only be specified when starting head node".

    Example: `ray start --address=$HEAD:6379 --port=6379`.

    Fix: Pass only `--address=HEAD:PORT` to workers.

    Known limits: An address in RAY_ADDRESS does not count for `ray start`.
    """
    for launch, _ in starts_of(job, "worker"):
        address = job.setting("rendezvous_endpoint", launch.scope)
        port = next((c for c in job.about("ray_port", launch.scope) if re.match(r"--port\b", c.spelling)), None)
        undecided_verdict = undecided(launch.id, address, launch)
        if not address:
            yield failed(
                launch.id,
                "`ray start` is given neither --head nor --address, and stops.",
                at=launch,
                remedy="Add --head, or --address=HOST:PORT of the head.",
            )
        elif port is not None:
            yield failed(
                launch.id,
                f"{quoted(port)} may only be given together with --head; this line joins {quoted(address[0])}.",
                at=port,
                also=((address[0], "a worker's line"),),
                remedy="Remove --port; --address contains the port of the head.",
                fix=make_fix(f"drop {port.spelling}", delete_word(port), safe=True),
            )
        else:
            yield undecided_verdict if undecided_verdict is not None else passed(launch.id)


@rule(
    "RAY006", "ray-job-sent-to-wrong-address", severity=Severity.ERROR, otherwise="no `ray job submit` names an address"
)
def ray_job_sent_to_wrong_address(job: Job) -> Iterator[Verdict]:
    """`ray job submit` is given an address that accepts no jobs.

    What it checks: The address of `ray job submit`, or RAY_ADDRESS in its environment, is the dashboard's
    (`http://HOST:8265`), not that of Ray Client (`ray://`, port 10001) or the head's own port (6379).

    Why it matters: The dashboard accepts jobs over HTTP. With `ray://` the command stops; the other ports do not serve
    HTTP, and it fails or hangs.

    Example: `ray job submit --address ray://head:10001 -- python train.py`.

    Fix: `--address http://head:8265`.

    Known limits: The dashboard may be configured to use one of those ports, so a port is only a warning.
    """
    for launch, _ in starts_of(job, "submit"):
        claims = job.setting("ray_submit_address", launch.scope) or job.setting("env.RAY_ADDRESS", launch.scope)
        if not claims:
            continue
        verdict = undecided(launch.id, claims, launch)
        addresses = texts(job_value(claims))
        if verdict is None and addresses and all(text.startswith("ray://") for text in addresses):
            verdict = _wrong_address(
                launch, claims[0], "is an address for Ray Client, which does not accept jobs", None
            )
        elif (
            verdict is None and addresses and all(re.search(rf":(?:{CLIENT_PORT}|6379)/?$", text) for text in addresses)
        ):
            verdict = _wrong_address(
                launch, claims[0], "is not the port of the dashboard, where jobs are submitted", Severity.WARNING
            )
        yield verdict or passed(launch.id)


def _wrong_address(launch: Launch, claim: Claim, fault: str, severity: Severity | None) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(claim)} {fault}.",
        at=claim,
        also=((launch, "submitted here"),),
        remedy="Use the dashboard: --address http://HOST:8265.",
        severity=severity,
    )


# What Ray workers request: placement groups, GPUs, and Ray Train's ScalingConfig.


@rule(
    "RAY020",
    "placement-group-waited-for-without-end",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script waits for a placement group",
    passes_with=("ray_bundle",),
)
def placement_group_waited_for_without_end(job: Job) -> Iterator[Verdict]:
    """A script waits without a timeout for a placement group that may not fit on any node.

    What it checks: `ray.get(pg.ready())` of a placement group with known bundles has a timeout.

    Why it matters: A bundle is never split across nodes. If no node of the cluster has all requested resources, the
    group stays pending; only Ray's log reports it, and the job waits forever while it holds its resources.

    Example: `pg = placement_group([{"CPU": 2}], strategy="SPREAD")`, `ray.get(pg.ready())`, on nodes with one CPU.

    Fix: `ray.get(pg.ready(), timeout=600)`, or `pg.wait(timeout_seconds=600)`, and stop with a message; compare the
    largest bundle with the nodes.

    Known limits: The script does not show the size of the nodes; on an autoscaling cluster the wait may be intended.
    Bundles of at most one GPU and one CPU fit on any node with a GPU and are not reported.
    """
    for subject, waits in subject_claims(job, "ray_wait_unbounded"):
        bundle = next((claim for claim in waits.because if claim.quantity == "ray_bundle"), None)
        if not runs_program(job) or bundle is None:
            yield unknown(subject, f"{quoted(waits)} waits for unknown bundles", at=waits)
            continue
        if all(_fits_anywhere(text) for text in texts(bundle.value)):
            yield passed(subject)
            continue
        yield failed(
            subject,
            f"{quoted(waits)} waits forever, without an error, if no node of the cluster has "
            f"{next(iter(texts(bundle.value)), 'room')} for the bundle {quoted(bundle)} (line {bundle.span.line}).",
            at=waits,
            also=((bundle, "never split across nodes"),),
            remedy="Add a timeout, ray.get(pg.ready(), timeout=600), and compare the largest bundle with the nodes.",
        )


def _fits_anywhere(bundle: str) -> bool:
    """Return whether a bundle such as `GPU 1, CPU 1` requests no more than the smallest node with a GPU has."""
    parts = [part.split() for part in bundle.split(", ")]
    return "GPU" in bundle and all(
        len(part) == 2 and part[0] in ("GPU", "CPU") and part[1] in ("0", "1", "1.0") for part in parts
    )


@rule(
    "RAY021",
    "worker-gpus-not-used",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no ScalingConfig has GPUs in resources_per_worker",
)
def worker_gpus_not_used(job: Job) -> Iterator[Verdict]:
    """`resources_per_worker` and `use_gpu` of a Ray trainer contradict each other.

    What it checks: `resources_per_worker` of a ScalingConfig has a `GPU` above 0 only if `use_gpu` is True; the default
    of `use_gpu` is False. A `GPU` of 0 with `use_gpu=True` counts as 1, so Ray accepts it.

    Why it matters: Ray rejects such a ScalingConfig with ValueError, in the script that starts everything.

    Example: `ScalingConfig(num_workers=4, resources_per_worker={"GPU": 1})`.

    Fix: `use_gpu=True`, or no `GPU` among the resources.

    Known limits: Only literal resources are judged.
    """
    for subject, gpu_claim in subject_claims(job, "ray_train_worker_gpus"):
        flag_claim = gpu_claim.because[0] if gpu_claim.because else None
        amounts = [item for item in gpu_claim.alternatives if isinstance(item, (int, float))]
        use_gpu_values = flag_claim.alternatives if flag_claim is not None else (False,)
        flags = [bool(item) for item in use_gpu_values if item is None or isinstance(item, bool)]
        if len(amounts) != 1 or len(flags) != 1:
            yield unknown(subject, f"{quoted(gpu_claim)} or `use_gpu` is known only at run time", at=gpu_claim)
        elif flags[0] or amounts[0] <= 0:
            yield passed(subject)
        else:
            use_gpu = placed(flag_claim) if flag_claim is not None else "`use_gpu`, which is False by default,"
            yield failed(
                subject,
                f"{quoted(gpu_claim)} and {use_gpu} contradict each other: Ray rejects the ScalingConfig with"
                " ValueError.",
                at=gpu_claim,
                also=((flag_claim, "whether GPUs are used"),) if flag_claim is not None else (),
                remedy="Set `use_gpu=True`.",
                severity=None if gpu_claim.condition == "" else Severity.WARNING,
            )


_PREFIX = "setting.ray."


@rule("RAY022", "scaling-config-refused", severity=Severity.ERROR, otherwise="no script creates a ScalingConfig")
def scaling_config_refused(job: Job) -> Iterator[Verdict]:
    """Ray rejects a ScalingConfig: an unknown argument, an invalid value, or two arguments that contradict each other.

    What it checks: The arguments of each `ScalingConfig(...)` are checked against a table of what its constructor
    rejects.

    Why it matters: The driver stops with a TypeError or ValueError after the cluster was started.

    Example: `ScalingConfig(num_workers=8, resources_per_worker={"GPU": 1})` without `use_gpu=True`.

    Fix: The finding names the change for its condition.

    Known limits: Arguments that are known only at run time are not judged. Arguments that only Ray 2.51 and newer
    rejects are a warning unless the job's files pin a release.
    """
    calls = distinct(job.about("ray_scaling"))
    version = pinned(job, "ray")
    for call in calls:
        verdicts = list(_scaling_verdicts(job.name, call, version))
        yield from verdicts or [passed(job.name)]


def _scaling_verdicts(subject: str, call: Claim, version: str) -> Iterator[Verdict]:
    arguments = {claim.quantity.removeprefix(_PREFIX): claim for claim in call.because}
    data = table("ray_scaling")
    for key, claim in arguments.items():
        if "." not in key and key not in data["arguments"]:
            suggestion = data["meant"].get(key, "")
            yield failed(
                subject,
                f"{quoted(claim)}: ScalingConfig has no argument "
                f"`{key}`{f'; `{suggestion}` is probably meant' if suggestion else ''}.",
                at=claim,
                remedy=f"Use `{suggestion}`." if suggestion else "Remove it.",
            )
    for row in data["refusal"]:
        applies = in_range(version, row.get("since", ""), "")
        at_claims = [arguments[key] for key in row["at"] if key in arguments]
        if applies is False or not at_claims:
            continue
        try:
            if not holds(row["when"], lambda key: _argument_value(arguments, key)):
                continue
        except UnknownValue as error:
            yield unknown(subject, f"{error} is unknown, and {row['why']}", at=at_claims[0])
            continue
        first, *others = at_claims
        yield failed(
            subject,
            f"{quoted(first)}{''.join(f' and {placed(claim)}' for claim in others)}: {row['why']}, so Ray stops with an"
            f" error{'' if applies else ' (since Ray ' + row['since'] + ')'}.",
            at=first,
            also=tuple((claim, "with this") for claim in others),
            remedy=row["remedy"],
            severity=None if applies else Severity.WARNING,
        )


def _argument_value(arguments: dict[str, Claim], key: str) -> Any:
    """Return the value of an argument, a resource, or a bound of the workers; None if it is not given."""
    if key.startswith(GIVEN):
        return key.removeprefix(GIVEN) in arguments
    if key in ("workers.least", "workers.most"):
        return _worker_bound(arguments, 0 if key.endswith("least") else 1)
    claim = arguments.get(key)
    if claim is None:
        return None
    if isinstance(claim.value, Unresolved) or len(claim.alternatives) != 1:
        raise UnknownValue(f"`{claim.spelling}`")
    value = claim.alternatives[0]
    return Section() if value == SECTION else value


def _worker_bound(arguments: dict[str, Claim], index: int) -> int | None:
    if "num_workers" not in arguments:
        return 1
    value = _argument_value(arguments, "num_workers")
    if isinstance(value, int):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return int(str(value[index]))
    return None


#: Suffix of an argument whose value comes from a settings file.
_SETTINGS_SUFFIX = ".in_settings"


class _Offer(NamedTuple):
    """The nodes' total amount of a resource, with one claim per kind of node."""

    amount: float
    because: tuple[Claim, ...]
    certain: bool
    #: The amount on the largest node, if known.
    largest: float | None = None


@rule(
    "RAY023",
    "workers-larger-than-cluster",
    severity=Severity.ERROR,
    otherwise="no ScalingConfig is used on a Ray cluster that the files describe",
)
def workers_larger_than_cluster(job: Job) -> Iterator[Verdict]:
    """The workers of a Ray trainer request more GPUs or CPUs than the cluster in the files has.

    What it checks: The total request of a ScalingConfig is at most the resources of `ray.init(num_cpus=...)`, of all
    pods of the RayCluster or RayJob, of the node types in the file for `ray up`, or of the `ray start` lines. Each
    worker uses one GPU with `use_gpu`, otherwise one CPU, or its `resources_per_worker`. For STRICT_PACK, one node has
    all resources. If a function that Ray Tune runs as a trial creates the trainer, the resources of the trial are
    added, because its workers get a separate placement group.

    Why it matters: The placement group of the workers stays pending. The trainer waits forever, and only Ray's log
    reports the missing resources.

    Example: `ScalingConfig(num_workers=8, use_gpu=True)` and two worker pods with two GPUs each.

    Fix: Fewer workers, or a larger cluster.

    Known limits: An object that autoscales is not judged. With `ray start` the finding is a warning, because other
    machines may join the cluster manually. A number from a settings file next to the script also gives a warning.
    """
    calls = distinct(job.about("ray_scaling"))
    for resource, quantity in (("GPU", "pod_gpus"), ("CPU", "pod_cpus")) if len(calls) == 1 else ():
        arguments = {claim.quantity.removeprefix(_PREFIX): claim for claim in calls[0].because}
        settings_claims = {
            key.removesuffix(_SETTINGS_SUFFIX): claim
            for key, claim in arguments.items()
            if key.endswith(_SETTINGS_SUFFIX)
        }
        arguments |= settings_claims
        offer = (
            _script_offer(job, f"{resource.lower()}s")
            or _pods_offer(job, quantity)
            or _node_types_offer(job, resource)
            or _start_lines_offer(job, f"ray_num_{resource.lower()}s")
        )
        if "num_workers" not in arguments or offer is None:
            continue
        try:
            workers, per_worker = _worker_bound(arguments, 0), _requested_amount(arguments, resource)
            held_by_trial = _argument_value(arguments, f"trial.{resource}") or 0
            on_one_node = (
                offer.largest is not None and _argument_value(arguments, "placement_strategy") == "STRICT_PACK"
            )
        except UnknownValue as error:
            yield unknown(job.name, f"{error} is unknown", at=calls[0])
            continue
        if workers is None or not per_worker:
            continue
        amount = offer.largest if offer.largest is not None and on_one_node else offer.amount
        if workers * per_worker <= amount:
            yield _trial_verdict(job, arguments, resource, workers * per_worker, held_by_trial, offer)
            continue
        first, *rest = offer.because
        need = (
            f"{workers * per_worker:g} {resource}s {'on one node, as STRICT_PACK demands' if on_one_node else 'in all'}"
        )
        place = "its largest node" if on_one_node else "the cluster"
        yield failed(
            job.name,
            f"{quoted(arguments['num_workers'])} requests {need}, but {place} has only {amount:g} "
            f"({placed(first)}{' and more' if rest else ''}): Ray waits forever for the rest.",
            at=arguments["num_workers"],
            also=(
                *(
                    (claim, "in the settings")
                    for per_worker in settings_claims.values()
                    for claim in per_worker.because
                ),
                *((claim, "a part of the cluster") for claim in offer.because),
            ),
            remedy="Start fewer workers, or a larger cluster.",
            severity=None if offer.certain and not settings_claims else Severity.WARNING,
        )


def _trial_verdict(
    job: Job, arguments: dict[str, Claim], resource: str, request: float, held_by_trial: float, offer: _Offer
) -> Verdict:
    """Return the verdict on workers that fit into the cluster, next to the trial of Ray Tune that starts them."""
    if request + held_by_trial <= offer.amount:
        return passed(job.name)
    trial = arguments[f"trial.{resource}"]
    held_text = f"{held_by_trial:g} {resource}{'' if held_by_trial == 1 else 's'}"
    return failed(
        job.name,
        f"{quoted(trial)} reserves {held_text} for a trial, and its trainer requests {request:g} more for the "
        f"workers, but the cluster has only {offer.amount:g} ({placed(offer.because[0])}): Ray waits forever for the "
        "rest.",
        at=trial,
        also=(
            (arguments["num_workers"], "the workers"),
            *((claim, "a part of the cluster") for claim in offer.because),
        ),
        remedy='Reserve only what the function itself needs for the trial (`{"CPU": 1}`), or start a larger cluster.',
        severity=Severity.WARNING,
    )


def _requested_amount(arguments: dict[str, Claim], resource: str) -> float:
    """Return the amount of a resource that one worker uses. Raises UnknownValue."""
    stated_amount = _argument_value(arguments, f"resources_per_worker.{resource}")
    if isinstance(stated_amount, (int, float)):
        return float(stated_amount)
    uses_gpu = _argument_value(arguments, "use_gpu")
    if resource == "GPU":
        return 1.0 if uses_gpu is True else 0.0
    # Without resources of its own a worker has one CPU, or a GPU.
    return 0.0 if uses_gpu is True or "resources_per_worker" in arguments else 1.0


def _pods_offer(job: Job, quantity: str) -> _Offer | None:
    """Return the resources of all pods of the only Ray object; None if unknown or if there are several objects."""
    ray_workloads = [workload for workload in workloads(job) if workload.kind in ("RayCluster", "RayJob")]
    if len(ray_workloads) != 1 or any(
        claim.value != Known(False) for claim in ray_workloads[0].setting("ray_autoscales")
    ):
        return None
    total, largest = 0.0, 0.0
    because: list[Claim] = []
    for role in ray_workloads[0].roles:
        claims = role.setting("ray_num_gpus" if quantity == "pod_gpus" else "ray_num_cpus") or role.setting(quantity)
        count = known_number(role.count.value)
        amounts = [item for claim in claims for item in claim.alternatives if isinstance(item, (int, float))]
        if count is None or len(amounts) != len(claims) or (not claims and quantity == "pod_cpus"):
            return None
        total += count * sum(amounts)
        largest = max(largest, float(sum(amounts)) if count else 0.0)
        because += claims
    return _Offer(total, tuple(because), certain=True, largest=largest) if because else None


#: AWS machine types with accelerators. Ray counts their GPUs itself if the file does not.
_GPU_MACHINE_TYPES = re.compile(r"(?:p|g|gr|dl|trn|inf|vt)\d")
#: Clusters with more nodes of a type are not counted.
_MAX_NODES = 10_000


def _node_types_offer(job: Job, resource: str) -> _Offer | None:
    """Return the most resources that the node types in a file for `ray up` can provide; None if unknown."""
    settings = dict(job.settings("ray_up"))
    prefix = "available_node_types."
    names = {key.removeprefix(prefix).partition(".")[0] for key in settings if key.startswith(prefix)}
    nodes: list[float] = []
    because: list[Claim] = []
    for name in sorted(names):

        def node_setting(key: str, otherwise: int | None, node: str = f"{prefix}{name}") -> int | None:
            setting = settings.get(f"{node}.{key}")
            return known_number(setting.value) if setting is not None else otherwise

        machine_claim, resource_claim = (
            settings.get(f"{prefix}{name}.{key}") for key in ("node_config.InstanceType", f"resources.{resource}")
        )
        machines = texts(machine_claim.value) if machine_claim is not None else ()
        counted_by_ray = resource != "GPU" or not machines or any(map(_GPU_MACHINE_TYPES.match, machines))
        is_head = any(texts(claim.value) == (name,) for key, claim in settings.items() if key == "head_node_type")
        per_node = node_setting(f"resources.{resource}", None if counted_by_ray else 0)
        count = node_setting("max_workers", 0 if is_head else None)
        if per_node is None or count is None or count > _MAX_NODES:
            return None
        nodes += [float(per_node)] * (count + is_head)
        because += [resource_claim] if resource_claim is not None and per_node else []
    # Under the limit of the whole cluster, the largest nodes are counted.
    limit = settings.get("max_workers")
    workers = known_number(limit.value) if limit is not None else len(nodes)
    counted_nodes = sorted(nodes, reverse=True)[: workers + 1] if workers is not None else nodes
    return (
        _Offer(sum(counted_nodes), tuple(because), certain=True, largest=max(counted_nodes, default=0.0))
        if because
        else None
    )


def _start_lines_offer(job: Job, quantity: str = "ray_num_gpus") -> _Offer | None:
    """Return the resources of all `ray start` lines; None if a line may start several nodes or gives no amount."""
    lines = [launch for launch in job.launches if job.setting("ray_role", launch.scope) and launch.launcher == "ray"]
    roles = {line.id: texts(job_value(job.setting("ray_role", line.scope))) for line in lines}
    node_lines = [line for line in lines if roles[line.id] != ("submit",)]
    if any(roles[line.id] != ("head",) for line in node_lines):
        # A line for workers may be run on many machines.
        return None
    resource_claims = [claim for line in node_lines for claim in job.setting(quantity, line.scope)]
    amounts = [known_number(claim.value) for claim in resource_claims]
    if (
        not node_lines
        or len(resource_claims) != len(node_lines)
        or any(line.wrappers or line.condition for line in node_lines)
    ):
        return None
    known = [number for number in amounts if number is not None]
    return _Offer(sum(known), tuple(resource_claims), certain=False) if len(known) == len(amounts) else None


@rule(
    "RAY025",
    "actors-larger-than-cluster",
    severity=Severity.ERROR,
    otherwise="no actors are created on a Ray cluster whose size the files give",
)
def actors_larger_than_cluster(job: Job) -> Iterator[Verdict]:
    """The actors of a Ray script hold more CPUs or GPUs than the cluster has.

    What it checks: The total `num_cpus` and `num_gpus` of all actors that the script keeps are at most the resources of
    `ray.init(num_cpus=...)`, of `ray start --head --num-cpus`, or of the RayCluster's pods.

    Why it matters: An actor that does not fit stays pending. Its first method never returns, and `ray.get` waits
    forever; only Ray's log reports the missing resources.

    Example: `ray start --head --num-cpus=4`, one actor and four workers with `num_cpus=1` each.

    Fix: Fewer actors, a smaller share for each, or a larger cluster.

    Known limits: Actors under a condition, in a loop or in a placement group are not counted, and a script that ends
    actors is not judged. With `ray start` the finding is a warning, because other machines may join manually.
    """
    for resource in ("cpus", "gpus"):
        held_claims = distinct(job.about(f"ray_held_{resource}"))
        offer = (
            _script_offer(job, resource)
            or _pods_offer(job, f"pod_{resource}")
            or _start_lines_offer(job, f"ray_num_{resource}")
        )
        if not held_claims or offer is None or len({claim.span.path for claim in held_claims}) != 1:
            continue
        amounts = {claim: _held_amount(job, claim) for claim in held_claims}
        known = {claim: amount for claim, amount in amounts.items() if amount is not None}
        total = sum(known.values())
        verdict = undecided(job.name, [claim for claim in held_claims if claim not in known])
        # Unknown amounts only add to the total.
        if total > offer.amount:
            largest = max(known, key=lambda claim: known[claim])
            verdict = failed(
                job.name,
                f"{quoted(largest)}{' and the other actors' if len(held_claims) > 1 else ''} hold {total:g} "
                f"{resource[:-1].upper()}s at once, but the cluster has only {offer.amount:g} "
                f"({placed(offer.because[0])}): an actor stays pending, and its callers wait forever.",
                at=largest,
                also=(
                    *((claim, "also holds some") for claim in held_claims if claim is not largest),
                    *((claim, "a part of the cluster") for claim in offer.because),
                ),
                remedy="Create fewer actors, give each a smaller share, or start a larger cluster.",
                severity=None if offer.certain else Severity.WARNING,
            )
        yield verdict or passed(job.name)


#: The reason of a claim whose value is an option of the script.
_OPTION = re.compile(r"the value of `(--[\w-]+)`")


def _held_amount(job: Job, claim: Claim) -> float | None:
    """Return the amount that the actors of a call hold; None if unknown.

    If an option of the script gives the number of actors, the value is taken from the line that starts the script.
    """
    if claim.condition:
        return None
    if numbers(claim.value):
        return float(min(numbers(claim.value)))
    option = _OPTION.fullmatch(claim.value.why) if isinstance(claim.value, Unresolved) else None
    lines = [items(line.value) for line in job.about("plain_arguments")]
    if option is None or len(lines) != 1 or not claim.because:
        return None
    words = [word for per_actor in lines[0] for word in per_actor.split("=", 1)] if option is not None else []
    counts = [value for word, value in itertools.pairwise(words) if word == option[1] and value.isdecimal()]
    per_actor = numbers(claim.because[0].value)
    return float(counts[0]) * min(per_actor) if len(counts) == 1 and per_actor else None


def _script_offer(job: Job, resource: str) -> _Offer | None:
    """Return the amount that a script gives the cluster that it starts itself."""
    own_claims = distinct(job.about(f"ray_own_{resource}"))
    amount = known_number(own_claims[0].value) if len(own_claims) == 1 and not own_claims[0].condition else None
    return _Offer(amount, tuple(own_claims), certain=True) if amount is not None else None


#: An image of the Ray project: the release of Ray, and that of Python (the oldest if left out).
_IMAGE = re.compile(r"(?:\S+/)?rayproject/ray(?:-\w+)*:(?P<ray>\d+\.\d+\.\d+)(?:[.-]\S*?)?(?:-?py(?P<python>3\d+)\S*)?")


@rule(
    "RAY024",
    "ray-releases-differ-in-cluster",
    severity=Severity.ERROR,
    otherwise="no Ray cluster has several kinds of pods with images of the Ray project",
)
def ray_releases_differ_in_cluster(job: Job) -> Iterator[Verdict]:
    """The head and the workers of a Ray cluster have different releases of Ray or Python.

    What it checks: The images `rayproject/ray:RELEASE-pyVERSION` of the pods of one RayCluster or RayJob have the same
    release of Ray, and the same release of Python if both tags name it.

    Why it matters: A worker with another release stops with "Version mismatch" when it joins, and its pod is restarted
    again and again.

    Example: `rayproject/ray:2.46.0` for the head and `rayproject/ray:2.40.0` for the workers.

    Fix: Use one image for all pods.

    Known limits: Images with other names are not judged.
    """
    for workload in workloads(job):
        # The first container of a pod is Ray's.
        roles = [role for role in workload.roles if known_number(role.count.value) != 0]
        images = [(role, claim) for role in roles for claim in role.setting("pod_image")[:1]]
        if not workload.kind.startswith("Ray") or len(images) < 2:
            continue
        tags = [(claim, match) for _, claim in images for match in [_IMAGE.fullmatch("".join(texts(claim.value)))]]
        tagged = [(claim, match) for claim, match in tags if match is not None]
        if undecided_verdict := undecided(workload.id, [claim for _, claim in images]):
            yield undecided_verdict
            continue
        if len(tagged) < 2:
            continue
        first, head = tagged[0]
        other = next(((claim, match) for claim, match in tagged[1:] if _releases_differ(head, match)), None)
        if other is None:
            yield passed(workload.id)
            continue
        yield failed(
            workload.id,
            f"{quoted(other[0])} and {placed(first)} are in one cluster: a node with another release of Ray or "
            "Python stops with 'Version mismatch' when it joins.",
            at=other[0],
            also=((first, "the other release"),),
            remedy="Use one image for all pods of the cluster.",
        )


def _releases_differ(first: re.Match[str], second: re.Match[str]) -> bool:
    pythons = {match["python"] for match in (first, second)} - {None}
    return first["ray"] != second["ray"] or len(pythons) > 1
