"""What Ray workers request: placement groups, GPUs, and Ray Train's ScalingConfig."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import SECTION, items, known_number, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.sources.conditions import GIVEN, Section, UnknownValue, holds
from preflight_rules.data_tables import table
from preflight_rules.kubernetes.workloads import workloads
from preflight_rules.scripts.script_facts import runs_program, stated
from preflight_rules.settings.tables import in_range, pinned


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

    Why it matters: A bundle is never split over nodes. If no node of the cluster has all it requests, the group stays
    pending; only Ray's log reports it, and the job waits forever with whatever it already holds.

    Example: `pg = placement_group([{"CPU": 2}], strategy="SPREAD")`, `ray.get(pg.ready())`, on nodes of one CPU.

    Fix: `ray.get(pg.ready(), timeout=600)`, or `pg.wait(timeout_seconds=600)`, and stop with a message; compare the
    largest bundle with the nodes.

    Known limits: How large the nodes are is not known from the script; on an autoscaling cluster the wait may be
    intended. Bundles of at most one GPU and one CPU fit on any node with a GPU and are not reported.
    """
    for subject, waits in stated(job, "ray_wait_unbounded"):
        bundle = next((claim for claim in waits.because if claim.quantity == "ray_bundle"), None)
        if not runs_program(job) or bundle is None:
            yield unknown(subject, f"{quoted(waits)} waits for unknown bundles", at=waits)
            continue
        if all(_fits_anywhere(text) for text in texts(bundle.value)):
            yield passed(subject)
            continue
        yield failed(
            subject,
            f"{quoted(waits)} waits forever if no node of the cluster has {next(iter(texts(bundle.value)), 'that')}"
            f" for the bundle {quoted(bundle)} (line {bundle.span.line}), without an error.",
            at=waits,
            also=((bundle, "never split over nodes"),),
            remedy="Add a timeout, ray.get(pg.ready(), timeout=600), and compare the largest bundle with the nodes.",
        )


def _fits_anywhere(bundle: str) -> bool:
    """Whether a bundle such as `GPU 1, CPU 1` requests no more than the smallest node with a GPU has."""
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

    What it checks: `resources_per_worker` of a ScalingConfig has a `GPU` above 0 only where `use_gpu` is True; without
    `use_gpu` it is False. A `GPU` of 0 with `use_gpu=True` counts as 1, so Ray accepts it.

    Why it matters: Ray rejects such a ScalingConfig with ValueError, in the script that starts everything.

    Example: `ScalingConfig(num_workers=4, resources_per_worker={"GPU": 1})`.

    Fix: `use_gpu=True`, or no `GPU` among the resources.

    Known limits: Only resources that are written out are judged.
    """
    for subject, gpus in stated(job, "ray_train_worker_gpus"):
        uses = gpus.because[0] if gpus.because else None
        amounts = [item for item in gpus.alternatives if isinstance(item, (int, float))]
        given = uses.alternatives if uses is not None else (False,)
        flags = [bool(item) for item in given if item is None or isinstance(item, bool)]
        if len(amounts) != 1 or len(flags) != 1:
            yield unknown(subject, f"{quoted(gpus)} or `use_gpu` is known only at run time", at=gpus)
        elif flags[0] or amounts[0] <= 0:
            yield passed(subject)
        else:
            shown = placed(uses) if uses is not None else "`use_gpu`, which is False by default,"
            yield failed(
                subject,
                f"{quoted(gpus)} and {shown} contradict each other: Ray rejects the ScalingConfig with ValueError.",
                at=gpus,
                also=((uses, "whether GPUs are used"),) if uses is not None else (),
                remedy="Write `use_gpu=True`.",
                severity=None if gpus.condition == "" else Severity.WARNING,
            )


_PREFIX = "setting.ray."


@rule("RAY022", "scaling-config-refused", severity=Severity.ERROR, otherwise="no script creates a ScalingConfig")
def scaling_config_refused(job: Job) -> Iterator[Verdict]:
    """Ray rejects a ScalingConfig: an argument it does not have, a value, or two that contradict each other.

    What it checks: The arguments of each `ScalingConfig(...)` are compared with a table of what its constructor
    rejects.

    Why it matters: The driver stops with a TypeError or ValueError after the cluster was started.

    Example: `ScalingConfig(num_workers=8, resources_per_worker={"GPU": 1})` without `use_gpu=True`.

    Fix: The finding names the change for its condition.

    Known limits: Arguments that are known only at run time are not judged. What only Ray 2.51 and newer rejects is a
    warning unless the job's files pin a release.
    """
    calls = distinct(job.about("ray_scaling"))
    version = pinned(job, "ray")
    for call in calls:
        found = list(_judged(job.name, call, version))
        yield from found or [passed(job.name)]


def _judged(subject: str, call: Claim, version: str) -> Iterator[Verdict]:
    keys = {claim.quantity.removeprefix(_PREFIX): claim for claim in call.because}
    data = table("ray_scaling")
    for key, claim in keys.items():
        if "." not in key and key not in data["arguments"]:
            meant = data["meant"].get(key, "")
            yield failed(
                subject,
                f"{quoted(claim)}: ScalingConfig has no argument "
                f"`{key}`{f'; `{meant}` is probably meant' if meant else ''}.",
                at=claim,
                remedy=f"Use `{meant}`." if meant else "Remove it.",
            )
    for row in data["refusal"]:
        applies = in_range(version, row.get("since", ""), "")
        blamed = [keys[key] for key in row["at"] if key in keys]
        if applies is False or not blamed:
            continue
        try:
            if not holds(row["when"], lambda key: _value(keys, key)):
                continue
        except UnknownValue as error:
            yield unknown(subject, f"{error} is unknown, and {row['why']}", at=blamed[0])
            continue
        first, *rest = blamed
        yield failed(
            subject,
            f"{quoted(first)}{''.join(f' and {placed(claim)}' for claim in rest)}: {row['why']}, so Ray stops with an"
            f" error{'' if applies else ' (since Ray ' + row['since'] + ')'}.",
            at=first,
            also=tuple((claim, "with this") for claim in rest),
            remedy=row["remedy"],
            severity=None if applies else Severity.WARNING,
        )


def _value(keys: dict[str, Claim], key: str) -> Any:
    """The value of an argument, of a resource, or of a bound of the workers; None if it is not given."""
    if key.startswith(GIVEN):
        return key.removeprefix(GIVEN) in keys
    if key in ("workers.least", "workers.most"):
        return _bound(keys, 0 if key.endswith("least") else 1)
    claim = keys.get(key)
    if claim is None:
        return None
    if isinstance(claim.value, Unresolved) or len(claim.alternatives) != 1:
        raise UnknownValue(f"`{claim.spelling}`")
    found = claim.alternatives[0]
    return Section() if found == SECTION else found


def _bound(keys: dict[str, Claim], which: int) -> int | None:
    if "num_workers" not in keys:
        return 1
    value = _value(keys, "num_workers")
    if isinstance(value, int):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return int(str(value[which]))
    return None


#: Stands behind an argument whose value a settings file has.
_IN_SETTINGS = ".in_settings"


class _Offer(NamedTuple):
    """What the nodes of a cluster have together: an amount of a resource, and a claim for each kind of node."""

    amount: float
    because: tuple[Claim, ...]
    certain: bool
    #: What the largest node has alone, where that is known.
    largest: float | None = None


@rule(
    "RAY023",
    "workers-larger-than-cluster",
    severity=Severity.ERROR,
    otherwise="no ScalingConfig is used on a cluster of Ray that the files describe",
)
def workers_larger_than_cluster(job: Job) -> Iterator[Verdict]:
    """The workers of a Ray trainer ask for more GPUs or CPUs than the cluster in the files has.

    What it checks: The workers of a ScalingConfig, times what each of them uses (one GPU with `use_gpu`, otherwise one
    CPU, or what `resources_per_worker` says), are at most what all pods of the RayCluster or RayJob have, what the node
    types of the file for `ray up` give, or what the lines of `ray start` announce. For STRICT_PACK one node has it all.

    Why it matters: The placement group of the workers stays pending. The trainer waits forever, and only Ray's log says
    that the resources cannot be had.

    Example: `ScalingConfig(num_workers=8, use_gpu=True)` and two worker pods with two GPUs each.

    Fix: Fewer workers, or a larger cluster.

    Known limits: An object that autoscales is not judged. With `ray start` the finding is a warning, because other
    machines may join the cluster by hand; so it is with a number from a settings file beside the script.
    """
    calls = distinct(job.about("ray_scaling"))
    for resource, quantity in (("GPU", "pod_gpus"), ("CPU", "pod_cpus")) if len(calls) == 1 else ():
        keys = {claim.quantity.removeprefix(_PREFIX): claim for claim in calls[0].because}
        found = {key.removesuffix(_IN_SETTINGS): claim for key, claim in keys.items() if key.endswith(_IN_SETTINGS)}
        keys |= found
        offer = (
            _of_pods(job, quantity) or _of_node_types(job, resource) or _of_lines(job, f"ray_num_{resource.lower()}s")
        )
        if "num_workers" not in keys or offer is None:
            continue
        try:
            workers, each = _bound(keys, 0), _asked(keys, resource)
            on_one = offer.largest is not None and _value(keys, "placement_strategy") == "STRICT_PACK"
        except UnknownValue as error:
            yield unknown(job.name, f"{error} is unknown", at=calls[0])
            continue
        if workers is None or not each:
            continue
        amount = offer.largest if offer.largest is not None and on_one else offer.amount
        if workers * each <= amount:
            yield passed(job.name)
            continue
        first, *rest = offer.because
        wanted = f"{workers * each:g} {resource}s {'on one node, as STRICT_PACK demands' if on_one else 'in all'}"
        where = "its largest node" if on_one else "the cluster"
        yield failed(
            job.name,
            f"{quoted(keys['num_workers'])} asks for {wanted}, but {where} has {amount:g}"
            f" ({placed(first)}{' and more' if rest else ''}): Ray waits for the others forever.",
            at=keys["num_workers"],
            also=(
                *((claim, "in the settings") for each in found.values() for claim in each.because),
                *((claim, "a part of the cluster") for claim in offer.because),
            ),
            remedy="Start fewer workers, or a larger cluster.",
            severity=None if offer.certain and not found else Severity.WARNING,
        )


def _asked(keys: dict[str, Claim], resource: str) -> float:
    """How much of a resource one worker uses. Raises UnknownValue."""
    given = _value(keys, f"resources_per_worker.{resource}")
    if isinstance(given, (int, float)):
        return float(given)
    uses_gpu = _value(keys, "use_gpu")
    if resource == "GPU":
        return 1.0 if uses_gpu is True else 0.0
    # Without resources of its own a worker has one CPU, or a GPU.
    return 0.0 if uses_gpu is True or "resources_per_worker" in keys else 1.0


def _of_pods(job: Job, quantity: str) -> _Offer | None:
    """What the pods of the only Ray object have together; None where that is not known."""
    found = [workload for workload in workloads(job) if workload.kind in ("RayCluster", "RayJob")]
    if len(found) != 1 or any(claim.value != Known(False) for claim in found[0].in_force("ray_autoscales")):
        return None
    total, largest = 0.0, 0.0
    because: list[Claim] = []
    for role in found[0].roles:
        claims = role.in_force("ray_num_gpus" if quantity == "pod_gpus" else "ray_num_cpus") or role.in_force(quantity)
        count = known_number(role.count.value)
        amounts = [item for claim in claims for item in claim.alternatives if isinstance(item, (int, float))]
        if count is None or len(amounts) != len(claims) or (not claims and quantity == "pod_cpus"):
            return None
        total += count * sum(amounts)
        largest = max(largest, float(sum(amounts)) if count else 0.0)
        because += claims
    return _Offer(total, tuple(because), certain=True, largest=largest) if because else None


#: Machine types of AWS that have accelerators, of which Ray counts the GPUs itself where the file does not.
_WITH_GPUS = re.compile(r"(?:p|g|gr|dl|trn|inf|vt)\d")
#: Clusters with more nodes of a type are not counted.
_MAX_NODES = 10_000


def _of_node_types(job: Job, resource: str) -> _Offer | None:
    """What the node types of a file for `ray up` give at most; None where that is not known."""
    settings = dict(job.settings("ray_up"))
    prefix = "available_node_types."
    names = {key.removeprefix(prefix).partition(".")[0] for key in settings if key.startswith(prefix)}
    nodes: list[float] = []
    because: list[Claim] = []
    for name in sorted(names):

        def number(key: str, otherwise: int | None, node: str = f"{prefix}{name}") -> int | None:
            found = settings.get(f"{node}.{key}")
            return known_number(found.value) if found is not None else otherwise

        machine, given = (
            settings.get(f"{prefix}{name}.{key}") for key in ("node_config.InstanceType", f"resources.{resource}")
        )
        machines = texts(machine.value) if machine is not None else ()
        counted_by_ray = resource != "GPU" or not machines or any(map(_WITH_GPUS.match, machines))
        is_head = any(texts(claim.value) == (name,) for key, claim in settings.items() if key == "head_node_type")
        each = number(f"resources.{resource}", None if counted_by_ray else 0)
        count = number("max_workers", 0 if is_head else None)
        if each is None or count is None or count > _MAX_NODES:
            return None
        nodes += [float(each)] * (count + is_head)
        because += [given] if given is not None and each else []
    # The limit of the whole cluster leaves out the smaller nodes.
    limit = settings.get("max_workers")
    workers = known_number(limit.value) if limit is not None else len(nodes)
    taken = sorted(nodes, reverse=True)[: workers + 1] if workers is not None else nodes
    return _Offer(sum(taken), tuple(because), certain=True, largest=max(taken, default=0.0)) if because else None


def _of_lines(job: Job, quantity: str = "ray_num_gpus") -> _Offer | None:
    """What the lines of `ray start` announce; None where a line may start several nodes, or announces nothing."""
    lines = [launch for launch in job.launches if job.setting("ray_role", launch.scope) and launch.launcher == "ray"]
    roles = {line.id: texts(job_value(job.setting("ray_role", line.scope))) for line in lines}
    nodes = [line for line in lines if roles[line.id] != ("submit",)]
    if any(roles[line.id] != ("head",) for line in nodes):
        # A line for workers may be run on many machines.
        return None
    announced = [claim for line in nodes for claim in job.setting(quantity, line.scope)]
    numbers_of = [known_number(claim.value) for claim in announced]
    if not nodes or len(announced) != len(nodes) or any(line.wrappers or line.condition for line in nodes):
        return None
    known = [number for number in numbers_of if number is not None]
    return _Offer(sum(known), tuple(announced), certain=False) if len(known) == len(numbers_of) else None


@rule(
    "RAY025",
    "actors-larger-than-cluster",
    severity=Severity.ERROR,
    otherwise="no actors are made on a cluster of Ray whose size the files give",
)
def actors_larger_than_cluster(job: Job) -> Iterator[Verdict]:
    """The actors that a script of Ray keeps hold more CPUs or GPUs than the cluster has.

    What it checks: What actors with `num_cpus` or `num_gpus` hold together, each for as long as the script keeps it, is
    at most what `ray.init(num_cpus=...)` or `ray start --head --num-cpus` gives, or what the pods of the RayCluster
    have.

    Why it matters: An actor that does not fit stays pending. Its first method never returns, and `ray.get` waits
    forever; only Ray's log says that the resources cannot be had.

    Example: `ray start --head --num-cpus=4`, one actor and four workers with `num_cpus=1` each.

    Fix: Fewer actors, a smaller share for each, or a larger cluster.

    Known limits: Actors under a condition, in a loop or in a placement group are not counted, and a script that ends
    actors is not judged. With `ray start` the finding is a warning, because other machines may join by hand.
    """
    for resource in ("cpus", "gpus"):
        held = distinct(job.about(f"ray_held_{resource}"))
        offer = _of_script(job, resource) or _of_pods(job, f"pod_{resource}") or _of_lines(job, f"ray_num_{resource}")
        if not held or offer is None or len({claim.span.path for claim in held}) != 1:
            continue
        amounts = {claim: _held(job, claim) for claim in held}
        known = {claim: amount for claim, amount in amounts.items() if amount is not None}
        wanted = sum(known.values())
        verdict = undecided(job.name, [claim for claim in held if claim not in known])
        # What is not known only adds to it.
        if wanted > offer.amount:
            largest = max(known, key=lambda claim: known[claim])
            verdict = failed(
                job.name,
                f"{quoted(largest)}{' and the other actors' if len(held) > 1 else ''} hold {wanted:g}"
                f" {resource[:-1].upper()}s at once, but the cluster has {offer.amount:g} ({placed(offer.because[0])}):"
                " an actor stays pending, and what waits for it waits forever.",
                at=largest,
                also=(
                    *((claim, "holds some too") for claim in held if claim is not largest),
                    *((claim, "a part of the cluster") for claim in offer.because),
                ),
                remedy="Make fewer actors, give each a smaller share, or start a larger cluster.",
                severity=None if offer.certain else Severity.WARNING,
            )
        yield verdict or passed(job.name)


#: Why the number of actors is not known in the script: an option gives it.
_OPTION = re.compile(r"the value of `(--[\w-]+)`")


def _held(job: Job, claim: Claim) -> float | None:
    """What the actors of a call hold, with the option of the line that starts the script; None if it is not known."""
    if claim.condition:
        return None
    if numbers(claim.value):
        return float(min(numbers(claim.value)))
    option = _OPTION.fullmatch(claim.value.why) if isinstance(claim.value, Unresolved) else None
    lines = [items(line.value) for line in job.about("plain_arguments")]
    if option is None or len(lines) != 1 or not claim.because:
        return None
    words = [word for each in lines[0] for word in each.split("=", 1)] if option is not None else []
    given = [after for word, after in itertools.pairwise(words) if word == option[1] and after.isdecimal()]
    each = numbers(claim.because[0].value)
    return float(given[0]) * min(each) if len(given) == 1 and each else None


def _of_script(job: Job, resource: str) -> _Offer | None:
    """What a script gives the cluster that it starts itself."""
    own = distinct(job.about(f"ray_own_{resource}"))
    amount = known_number(own[0].value) if len(own) == 1 and not own[0].condition else None
    return _Offer(amount, tuple(own), certain=True) if amount is not None else None


#: An image of the Ray project: the release, and the release of Python, which is the oldest one if it is left out.
_IMAGE = re.compile(r"(?:\S+/)?rayproject/ray(?:-\w+)*:(?P<ray>\d+\.\d+\.\d+)(?:[.-]\S*?)?(?:-?py(?P<python>3\d+)\S*)?")


@rule(
    "RAY024",
    "ray-releases-differ-in-cluster",
    severity=Severity.ERROR,
    otherwise="no cluster of Ray has several kinds of pods with images of the Ray project",
)
def ray_releases_differ_in_cluster(job: Job) -> Iterator[Verdict]:
    """The head and the workers of a Ray cluster have different releases of Ray or Python.

    What it checks: The images `rayproject/ray:RELEASE-pyVERSION` of the pods of one RayCluster or RayJob have the same
    release of Ray, and the same of Python where both tags name it.

    Why it matters: A worker of another release stops with "Version mismatch" when it joins, and its pod is started
    again and again.

    Example: `rayproject/ray:2.46.0` for the head and `rayproject/ray:2.40.0` for the workers.

    Fix: Use one image for all pods.

    Known limits: Images of other names are not judged.
    """
    for workload in workloads(job):
        # The first container of a pod is Ray's.
        roles = [role for role in workload.roles if known_number(role.count.value) != 0]
        images = [(role, claim) for role in roles for claim in role.in_force("pod_image")[:1]]
        if not workload.kind.startswith("Ray") or len(images) < 2:
            continue
        tags = [(claim, match) for _, claim in images for match in [_IMAGE.fullmatch("".join(texts(claim.value)))]]
        known = [(claim, match) for claim, match in tags if match is not None]
        if undecided_verdict := undecided(workload.id, [claim for _, claim in images]):
            yield undecided_verdict
            continue
        if len(known) < 2:
            continue
        first, head = known[0]
        other = next(((claim, match) for claim, match in known[1:] if _differ(head, match)), None)
        if other is None:
            yield passed(workload.id)
            continue
        yield failed(
            workload.id,
            f"{quoted(other[0])} and {placed(first)} are in one cluster: a node of another release of Ray or Python"
            " stops with 'Version mismatch' when it joins.",
            at=other[0],
            also=((first, "the other release"),),
            remedy="Use one image for all pods of the cluster.",
        )


def _differ(one: re.Match[str], other: re.Match[str]) -> bool:
    pythons = {match["python"] for match in (one, other)} - {None}
    return one["ray"] != other["ray"] or len(pythons) > 1
