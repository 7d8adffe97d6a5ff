"""What horovodrun asks of its own options."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Severity
from preflight_rules.reading import job_value, numbers, quoted, texts, undecided

#: horovod/runner/common/util/hosts.py, parse_hosts_and_slots.
_HOST = lazy_pattern(r"[\w.-]+:[0-9]+")


def _horovod_launches(job: Job) -> Iterator[Launch]:
    for launch in job.launches:
        if "horovodrun" in launch.wrappers:
            yield launch


@rule(
    "HVD001",
    "horovod-hosts-without-slots",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "https://github.com/horovod/horovod/blob/master/horovod/runner/common/util/hosts.py",
        "https://horovod.readthedocs.io/en/stable/running_include.html",
    ),
)
def horovod_hosts_without_slots(job: Job) -> Iterator[Verdict]:
    """horovodrun is given a host without its number of slots.

    What it checks:
        Every host of `-H` is written `host:slots`, and every line of the hostfile of horovodrun `host slots=N`.

    Why it matters:
        horovodrun stops with "Invalid host input", or with "list index out of range" on the line of the hostfile.

    Example:
        `horovodrun -np 8 -H server1,server2 python train.py`.

    Fix:
        `-H server1:4,server2:4`; in a hostfile, `server1 slots=4`.

    Known limits:
        A hostfile that is written when the job starts is not there to be read.

    Evidence:
        Horovod, runner/common/util/hosts.py (parse_hosts_and_slots, parse_host_files); Horovod documentation, running.
    """
    met = False
    for launch in _horovod_launches(job):
        for claim in job.setting("hosts", launch.scope):
            met = True
            open_end = undecided(launch.id, (claim,), launch)
            in_file = claim.source == "hostfile"
            bad = _bad_lines(job, claim) if in_file else _bad_hosts(claim)
            if open_end is not None:
                yield open_end
            elif not bad:
                yield passed(launch.id)
            else:
                yield failed(
                    launch.id,
                    f"{quoted(claim)} gives {bad[0]} no number of slots, which horovodrun needs of every host: it stops"
                    + (" on that line of the hostfile." if in_file else " with 'Invalid host input'."),
                    at=claim,
                    also=((launch, "started here"),),
                    remedy=f"Write `{bad[0]} slots=N`." if in_file else f"Write `{bad[0]}:N`, with its slots.",
                )
    if not met:
        yield not_applicable(job.name, "horovodrun is given no hosts")


def _bad_hosts(claim: Claim) -> list[str]:
    """Hosts of `-H` without slots, as they stand in the spelling; none where that names a variable."""
    if "$" in claim.spelling:
        return []
    written = re.sub(r"^-+\S*?[\s=]+", "", claim.spelling).strip("\"'")
    return [part.strip() for part in written.split(",") if part.strip() and not _HOST.fullmatch(part.strip())]


def _bad_lines(job: Job, claim: Claim) -> list[str]:
    with_slots = {line.scope.node for line in claim.because}
    return [
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
    evidence=(
        "https://github.com/horovod/horovod/blob/master/horovod/runner/launch.py",
        "https://horovod.readthedocs.io/en/stable/elastic_include.html",
    ),
)
def horovod_elastic_options_conflict(job: Job) -> Iterator[Verdict]:
    """The elastic options of horovodrun contradict each other.

    What it checks:
        `--min-np` is not above `-np`, nor `-np` above `--max-np`; `--max-np` does not stand without `--min-np` or a
        discovery script; `--mpi` does not stand beside elastic options; `-H` lists two hosts at least.

    Why it matters:
        Elastic Horovod runs over Gloo and starts only with a discovery script or with `--min-np` and a list of two
        hosts. Otherwise it stops ("Cannot run in fault tolerance mode with fewer than 2 hosts"), waits for slots
        that may not come, or runs with a fixed size although a range was given.

    Example:
        `horovodrun -np 8 --max-np 12 -H a:4,b:4 python train.py`: nothing makes this run elastic.

    Fix:
        `horovodrun -np 8 --min-np 4 --max-np 12 --host-discovery-script ./discover.sh python train.py`.

    Known limits:
        What the discovery script prints is not known.

    Evidence:
        Horovod, runner/launch.py (_is_elastic, _run_elastic); Horovod documentation, elastic.
    """
    met = False
    for launch in _horovod_launches(job):
        names = ("min_tasks", "max_tasks", "host_discovery")
        options = {name: job.setting(name, launch.scope) for name in names}
        given = tuple(claim for found in options.values() for claim in found)
        if not given:
            continue
        met = True
        open_end = undecided(launch.id, given, launch)
        if open_end is not None:
            yield open_end
            continue
        conflict = _conflict(job, launch, options)
        yield conflict if conflict is not None else passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch of horovodrun is elastic")


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
