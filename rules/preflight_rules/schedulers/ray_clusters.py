"""Ray clusters started with `ray start` on the head and on the workers, and jobs submitted to them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, delete_word, failed, make_fix, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, why_unresolved
from preflight_rules.launches import certainly_several

#: Default ports of worker processes (ray start --help, 2.60).
_FIRST, _LAST = 10002, 19999
#: Default port of the Ray Client server.
CLIENT_PORT = 10001


def starts_of(job: Job, role: str = "") -> Iterator[tuple[Launch, str]]:
    """The `ray` commands, each with its subcommand; empty if unknown."""
    for launch in job.launches:
        if launch.launcher != "ray":
            continue
        found = texts(job_value(job.setting("ray_role", launch.scope)))
        kind = found[0] if len(found) == 1 else ""
        if not role or kind == role:
            yield launch, kind


@rule("RAY001", "ray-port-used-twice", severity=Severity.ERROR, otherwise="no `ray start` sets a port")
def ray_port_used_twice(job: Job) -> Iterator[Verdict]:
    """Two components of one Ray node are given the same port.

    What it checks: The ports on a line of `ray start` differ from each other and lie outside the range of worker ports
    (10002 to 19999 unless --min-worker-port and --max-worker-port say otherwise).

    Why it matters: `ray start` stops with "Ray component ... is trying to use a port number ... that is used by other
    components".

    Example: `ray start --head --port=10005`, which lies among the worker ports.

    Fix: Use different ports outside 10002 to 19999, or move the range.

    Known limits: Ports that other programs use are checked by `preflight check`.
    """
    for launch, kind in starts_of(job):
        if kind == "submit":
            continue
        own = [c for c in job.about("ray_port", launch.scope) if c.scope.launch == launch.id]
        if kind == "head":
            own.extend(job.setting("master_port", launch.scope))
        if not own:
            continue
        undecided_verdict = undecided(launch.id, own, launch)
        yield undecided_verdict if undecided_verdict is not None else _ports(job, launch, own)


def _ports(job: Job, launch: Launch, own: list[Claim]) -> Verdict:
    ranges = [c for c in job.about("ray_worker_ports", launch.scope) if c.scope.launch == launch.id]
    low, high, place = _FIRST, _LAST, None
    if ranges:
        pair = ranges[0].alternatives
        if len(pair) != 1 or not isinstance(pair[0], tuple) or len(pair[0]) != 2:
            return unknown(launch.id, f"the range of {quoted(ranges[0])} is not known", at=ranges[0])
        low, high, place = int(str(pair[0][0])), int(str(pair[0][1])), ranges[0]
    seen: dict[int, Claim] = {}
    for claim in own:
        found = numbers(claim.value)
        if len(found) != 1 or not found[0]:
            continue
        port = found[0]
        if port in seen:
            return failed(
                launch.id,
                f"{quoted(claim)} is also the port of {quoted(seen[port])}: `ray start` stops when a port is used"
                f" twice.",
                at=claim,
                also=((seen[port], "same port"),),
                remedy="Give each component its own port.",
            )
        if low <= port <= high and low > 0:
            return failed(
                launch.id,
                f"{quoted(claim)} is in Ray's range of worker ports, {low} to {high}: `ray start` stops when a port"
                f" is used twice.",
                at=claim,
                also=((place, "the range"),) if place is not None else (),
                remedy=f"Use a port outside {low} to {high}, or move the range with --min-worker-port and"
                " --max-worker-port.",
            )
        seen[port] = claim
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
    job (6379 where none is given).

    Why it matters: The worker retries for a while and stops; the head waits with too few nodes, and the program hangs
    at its first placement group.

    Example: `ray start --head --port=6379` and `ray start --address=$HEAD:6380`.

    Fix: Keep the port in one variable and use it on both lines.

    Known limits: With several heads in one job nothing is reported.
    """
    heads = list(starts_of(job, "head"))
    for launch, _ in starts_of(job, "worker"):
        claims = job.setting("master_port", launch.scope)
        if len(heads) != 1 or not claims:
            continue
        ports = job.setting("master_port", heads[0][0].scope)
        verdict = undecided(launch.id, (*claims, *ports), launch)
        ours, theirs = numbers(job_value(claims)), numbers(job_value(ports))
        if verdict is None and ours and theirs and not set(ours) & set(theirs):
            verdict = failed(
                launch.id,
                f"{quoted(claims[0])} dials port {joined(ours)}, but the head listens on {joined(theirs)}"
                f" ({placed(ports[0])}).",
                at=claims[0],
                also=((ports[0], "the head's port"),),
                remedy=f"Use port {joined(theirs)} here, or give the head --port={joined(ours)}.",
            )
        yield verdict or passed(launch.id)


@rule(
    "RAY003", "ray-head-on-every-node", severity=Severity.ERROR, otherwise="nothing starts a Ray head on several nodes"
)
def ray_head_on_every_node(job: Job) -> Iterator[Verdict]:
    """`ray start --head` is started on several nodes.

    What it checks: srun, mpirun or pdsh starts the head on one node only.

    Why it matters: Each node becomes a cluster of its own. The workers join one of them, and the program sees only some
    of the GPUs, or waits for the rest.

    Example: `#SBATCH --nodes=4` and `srun ray start --head --block &`.

    Fix: `srun --nodes=1 --ntasks=1 -w "$head_node" ray start --head --block &`.

    Known limits: A head under a condition on the node's rank is not recognized.
    """
    for launch, _ in starts_of(job, "head"):
        spread = {"srun", "mpirun", "pdsh", "clush"} & set(launch.wrappers)
        nodes = job.setting("nodes", launch.scope)
        if not spread or not nodes:
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
                remedy='Start it on one: `srun --nodes=1 --ntasks=1 -w "$head_node" ray start --head --block &`.',
            )
        else:
            yield passed(launch.id)


@rule(
    "RAY004",
    "ray-start-returns-at-once",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="srun starts no `ray start`",
)
def ray_start_returns_at_once(job: Job) -> Iterator[Verdict]:
    """`ray start` under srun lacks `--block`, so the step ends and Slurm kills the daemons.

    What it checks: A line of `ray start` directly under srun has `--block`.

    Why it matters: Without it the command starts its daemons and returns. The step ends, Slurm cleans up after it, and
    the node leaves the cluster right after it joined.

    Example: `srun -N1 -n1 -w "$node" ray start --address="$head:6379"`.

    Fix: Add `--block`, and `&` after the line so that the script continues.

    Known limits: Where Slurm does not track processes, the daemons survive.
    """
    for launch, kind in starts_of(job):
        if kind not in ("head", "worker") or "srun" not in launch.wrappers:
            continue
        block = job.setting("ray_block", launch.scope)
        # In a shell of the step, a later command may keep the step alive.
        steps = [c for c in job.about("step", launch.scope) if c.scope.launch == launch.id]
        inner = not steps or any(re.search(r"(?:^|[\s/])(?:ba|z|k|da)?sh\s", c.spelling) for c in steps)
        if not block or why_unresolved(block, launch) is not None or inner:
            yield unknown(launch.id, "cannot determine whether the step continues after `ray start`", at=launch)
        elif all(claim.alternatives == (False,) for claim in block):
            yield failed(
                launch.id,
                "`ray start` without `--block` returns at once; the srun step ends with it, and Slurm kills the"
                " daemons.",
                at=launch,
                remedy="Add --block, and `&` after the line so that the script continues.",
            )
        else:
            yield passed(launch.id)


@rule(
    "RAY005", "ray-start-options-conflict", severity=Severity.ERROR, fix="safe", otherwise="no `ray start` of a worker"
)
def ray_start_options_conflict(job: Job) -> Iterator[Verdict]:
    """A worker's `ray start` lacks the head's address, or has an option that only the head accepts.

    What it checks: Without `--head`, a line of `ray start` has `--address` and has no `--port`.

    Why it matters: `ray start` stops: "--address is a required flag unless starting a head node", or "--port should
    only be specified when starting head node".

    Example: `ray start --address=$HEAD:6379 --port=6379`.

    Fix: Give workers `--address=HEAD:PORT` alone.

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
                remedy="Drop --port; the port of the head is in --address.",
                fix=make_fix(f"drop {port.spelling}", delete_word(port), safe=True),
            )
        else:
            yield undecided_verdict if undecided_verdict is not None else passed(launch.id)


@rule(
    "RAY006", "ray-job-sent-to-wrong-address", severity=Severity.ERROR, otherwise="no `ray job submit` names an address"
)
def ray_job_sent_to_wrong_address(job: Job) -> Iterator[Verdict]:
    """`ray job submit` is given an address that accepts no jobs.

    What it checks: The address of `ray job submit`, or RAY_ADDRESS in its environment, is that of the dashboard
    (`http://HOST:8265`), not of Ray Client (`ray://`, port 10001) and not the head's own port (6379).

    Why it matters: The dashboard accepts jobs over HTTP. With `ray://` the command stops; the other ports do not serve
    HTTP, and it fails or hangs.

    Example: `ray job submit --address ray://head:10001 -- python train.py`.

    Fix: `--address http://head:8265`.

    Known limits: A dashboard that was moved to one of those ports is not known; a port is therefore only a warning.
    """
    for launch, _ in starts_of(job, "submit"):
        given = job.setting("ray_submit_address", launch.scope) or job.setting("env.RAY_ADDRESS", launch.scope)
        if not given:
            continue
        verdict = undecided(launch.id, given, launch)
        found = texts(job_value(given))
        if verdict is None and found and all(text.startswith("ray://") for text in found):
            verdict = _wrong_address(launch, given[0], "is an address for Ray Client, which does not accept jobs", None)
        elif verdict is None and found and all(re.search(rf":(?:{CLIENT_PORT}|6379)/?$", text) for text in found):
            verdict = _wrong_address(
                launch, given[0], "is not the port of the dashboard, which accepts jobs", Severity.WARNING
            )
        yield verdict or passed(launch.id)


def _wrong_address(launch: Launch, claim: Claim, fault: str, severity: Severity | None) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(claim)} {fault}.",
        at=claim,
        also=((launch, "sent from here"),),
        remedy="Use the dashboard: --address http://HOST:8265.",
        severity=severity,
    )
