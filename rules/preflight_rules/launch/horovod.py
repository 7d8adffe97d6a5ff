"""Options and hosts of horovodrun."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import LaunchQuestion, launches_with

#: horovod/runner/common/util/hosts.py, parse_hosts_and_slots.
_HOST = re.compile(r"[\w.-]+:[0-9]+")
#: The same, parse_host_files.
_LINE = re.compile(r"\S+\s+slots=[0-9]+")


#: The options of an elastic job.
_ELASTIC = ("min_tasks", "max_tasks", "host_discovery")


def _is_horovod(launch: Launch) -> bool:
    return "horovodrun" in launch.wrappers


def _horovod_launches(job: Job) -> Iterator[Launch]:
    for launch in job.launches:
        if _is_horovod(launch):
            yield launch


@rule("HVD001", "horovod-hosts-without-slots", severity=Severity.ERROR, otherwise="horovodrun is given no hosts")
def horovod_hosts_without_slots(job: Job) -> Iterator[Verdict]:
    """horovodrun is given a host without its number of slots.

    What it checks: Every host of `-H` is written `host:slots`, and every line of the hostfile of horovodrun `host
    slots=N`.

    Why it matters: horovodrun stops with "Invalid host input", or with "list index out of range" on the line of the
    hostfile.

    Example: `horovodrun -np 8 -H server1,server2 python train.py`.

    Fix: `-H server1:4,server2:4`; in a hostfile, `server1 slots=4`.

    Known limits: A hostfile that is written when the job starts cannot be read in advance.
    """
    for launch in _horovod_launches(job):
        for claim in job.setting("hosts", launch.scope):
            verdict = undecided(launch.id, (claim,), launch)
            in_file = claim.source == "hostfile"
            bad = _bad_lines(claim) if in_file else _bad_hosts(claim)
            if verdict is None and bad:
                verdict = failed(
                    launch.id,
                    f"{quoted(claim)} has `{bad[0]}`, and of a hostfile horovodrun reads `HOST slots=N` only: it stops."
                    if in_file
                    else f"{quoted(claim)} gives {bad[0]} no number of slots, which horovodrun requires for every host:"
                    " it stops with 'Invalid host input'.",
                    at=claim,
                    also=((launch, "started here"),),
                    remedy=f"Write `{bad[0].split()[0].partition(':')[0]} slots=N`."
                    if in_file
                    else f"Write `{bad[0]}:N`, with its slots.",
                )
            yield verdict or passed(launch.id)


def _bad_hosts(claim: Claim) -> list[str]:
    """Hosts of `-H` without slots, as written; empty where the value contains a variable."""
    if "$" in claim.spelling:
        return []
    written = re.sub(r"^-+\S*?[\s=]+", "", claim.spelling).strip("\"'")
    return [part.strip() for part in written.split(",") if part.strip() and not _HOST.fullmatch(part.strip())]


def _bad_lines(claim: Claim) -> list[str]:
    with_slots = {line.scope.node for line in claim.because}
    other = [line.spelling for line in claim.because if _LINE.fullmatch(line.spelling.strip()) is None]
    return other or [
        str(host)
        for value in claim.alternatives
        if isinstance(value, tuple)
        for host in value
        if host not in with_slots
    ]


@rule(
    "HVD002",
    "horovod-elastic-options-conflict",
    severity=Severity.WARNING,
    otherwise="no launch of horovodrun is elastic",
    each=launches_with(also=_ELASTIC, where=lambda stated: any(stated) and _is_horovod(stated.launch)),
)
def horovod_elastic_options_conflict(question: LaunchQuestion) -> Verdict | None:
    """The elastic options of horovodrun contradict each other.

    What it checks: `--min-np` is not above `-np`, nor `-np` above `--max-np`; `--max-np` is not given without
    `--min-np` or a discovery script; `--mpi` is not combined with elastic options; `-H` lists at least two hosts.

    Why it matters: Elastic Horovod runs over Gloo and starts only with a discovery script or with `--min-np` and a list
    of two hosts. Otherwise it stops ("Cannot run in fault tolerance mode with fewer than 2 hosts"), waits for slots
    that may not come, or runs with a fixed size although a range was given.

    Example: `horovodrun -np 8 --max-np 12 -H a:4,b:4 python train.py`: nothing makes this run elastic.

    Fix: `horovodrun -np 8 --min-np 4 --max-np 12 --host-discovery-script ./discover.sh python train.py`.

    Known limits: What the discovery script prints is not known.
    """
    options = dict(zip(_ELASTIC, question.of, strict=True))
    return _conflict(question.of.job, question.of.launch, options)


def _conflict(job: Job, launch: Launch, options: dict[str, tuple[Claim, ...]]) -> Verdict | None:
    least, most, script = options["min_tasks"], options["max_tasks"], options["host_discovery"]
    tasks, hosts = job.setting("tasks", launch.scope), job.setting("hosts", launch.scope)
    controller = job.setting("controller", launch.scope)
    if not least and not script:
        return failed(
            launch.id,
            f"{quoted(most[0])} has no effect: without --min-np or --host-discovery-script the run is not elastic.",
            at=most[0],
            remedy="Add --min-np, and a --host-discovery-script if hosts may come and go.",
        )
    if controller and texts(job_value(controller)) == ("mpi",):
        return failed(
            launch.id,
            f"{quoted(controller[0])} has no effect on an elastic run ({quoted((least or script)[0])}), which always"
            " uses Gloo.",
            at=controller[0],
            also=(((least or script)[0], "makes it elastic"),),
            remedy="Drop --mpi, and build Horovod with Gloo.",
        )
    for smaller, larger in ((least, tasks), (tasks, most), (least, most)):
        low, high = numbers(job_value(smaller)), numbers(job_value(larger))
        if low and high and min(low) > max(high):
            return failed(
                launch.id,
                f"{quoted(smaller[0])} is more than {quoted(larger[0])}: the run waits for slots, or stops.",
                at=smaller[0],
                also=((larger[0], "smaller"),),
                remedy="Give --min-np <= -np <= --max-np.",
            )
    lists = [value for claim in hosts for value in claim.alternatives if isinstance(value, tuple)]
    if hosts and not script and lists and all(len(found) < 2 for found in lists):
        return failed(
            launch.id,
            f"{quoted(hosts[0])} names one host, and an elastic run without a discovery script needs two: horovodrun"
            " stops with 'Cannot run in fault tolerance mode with fewer than 2 hosts'.",
            at=hosts[0],
            also=((least[0], "makes it elastic"),),
            remedy="Name a --host-discovery-script, or drop the elastic options.",
        )
    return None


@rule("HVD015", "elastic-horovod-without-state", severity=Severity.WARNING, otherwise="no horovodrun is elastic")
def elastic_horovod_without_state(job: Job) -> Iterator[Verdict]:
    """horovodrun may change the number of ranks, but the script keeps no elastic state.

    What it checks: A script that horovodrun starts with `--min-np`, `--max-np` or `--host-discovery-script` wraps its
    training in `hvd.elastic.run`, with a State.

    Why it matters: When a host leaves or joins, Horovod interrupts the collective. Without a State nobody restores the
    last step: the workers fail, their hosts are blacklisted, and the job ends as if it were not elastic.

    Example: `horovodrun -np 8 --min-np 4 --host-discovery-script ./discover.sh python train.py` with plain
    `hvd.init()`.

    Fix: Put model, optimizer and epoch into `hvd.elastic.TorchState(...)`, and decorate the training function with
    `@hvd.elastic.run`.

    Known limits: A State in a library that the script imports is not seen.
    """
    for launch in job.launches:
        elastic = [
            claim
            for quantity in ("host_discovery", "min_tasks", "max_tasks")
            for claim in job.setting(quantity, launch.scope)
            if claim.source == "horovodrun"
        ]
        if not elastic:
            continue
        started = [c for c in job.about("horovod_started", launch.scope) if c.span.path == launch.program]
        if job.about("elastic_state", launch.scope):
            yield passed(launch.id)
        elif not started or len(job.files) > _FEW_FILES:
            yield unknown(launch.id, f"whether {launch.program} keeps an elastic state is not known", at=elastic[0])
        else:
            yield failed(
                launch.id,
                f"{quoted(elastic[0])} lets hosts leave and join, but {placed(started[0])} starts Horovod without an"
                " elastic State: the first change ends the training.",
                at=elastic[0],
                also=((started[0], "no State"),),
                remedy="Keep model and optimizer in hvd.elastic.TorchState and train in a function with"
                " @hvd.elastic.run, or leave the elastic options out.",
            )


#: With more files than this, another one may keep the state.
_FEW_FILES = 6
