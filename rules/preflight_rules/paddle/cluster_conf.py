"""PaddlePaddle 0.x: cluster_train's conf.py, its workspace, and index files."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.paddle.cluster_train import DOCUMENT, TOOL
from preflight_rules.paddle.fleet import once
from preflight_rules.reading import (
    deciding,
    is_loopback,
    placed,
    quoted,
    undecided,
)

#: Interfaces that other hosts cannot reach.
_LOCAL_NICS = ("lo", "docker0", "virbr0", "lxcbr0")


@rule(
    "CLT003",
    "cluster-host-twice-or-local",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 0.12",
    evidence=(TOOL, "PaddlePaddle/Paddle#4281"),
)
def cluster_host_twice_or_local(job: Job) -> Iterator[Verdict]:
    """HOSTS of cluster_train names a host twice, or loopback beside other hosts.

    What it checks:
        Every host of HOSTS occurs once, whatever user or ssh port stands with it, and 127.x.x.x or localhost stands
        alone only.

    Why it matters:
        paddle.py starts one server and one trainer for each entry, all with the same ports: the second server on a
        host cannot bind them. Loopback means another host on each of them.

    Example:
        `HOSTS = ["root@10.0.0.1", "root@10.0.0.1"]`.

    Fix:
        Name each host once, by the address that the others can reach.

    Known limits:
        One host under two names is not recognised.

    Evidence:
        paddle/scripts/cluster_train/paddle.py of 0.11; PaddlePaddle/Paddle#4281.
    """
    met = False
    for subject, _, claim in once(job, "cluster_hosts"):
        met = True
        open_end = undecided(subject, (claim,))
        if open_end is not None:
            yield open_end
            continue
        listed = [str(host) for value in claim.alternatives if isinstance(value, tuple) for host in value]
        bare = [host.rpartition("@")[2].partition(":")[0] for host in listed]
        twice = next((host for host in bare if bare.count(host) > 1), None)
        local = next((host for host in bare if is_loopback(host)), None)
        if twice is not None:
            yield failed(
                subject,
                f"{quoted(claim)} names {twice} {bare.count(twice)} times: two servers there cannot share their ports.",
                at=claim,
                remedy="Name each host once.",
            )
        elif local is not None and len(bare) > 1:
            yield failed(
                subject,
                f"{quoted(claim)} names {local} beside other hosts: on each of them it is that host itself.",
                at=claim,
                remedy="Write the address that the other hosts can reach.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no conf.py of cluster_train is among the files")


@rule(
    "CLT004",
    "index-file-empty-or-double",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 0.12",
    evidence=(DOCUMENT,),
)
def index_file_empty_or_double(job: Job) -> Iterator[Verdict]:
    """An index file of a trainer names no data file, or one twice.

    What it checks:
        train.list and test.list name at least one file, and none twice.

    Why it matters:
        With an empty list the trainer has no batch: it ends its pass at once, and in step with the servers the others
        wait for it. A file named twice is trained twice.

    Example:
        A train.list that is empty because the data were not split before.

    Fix:
        Write one line for each data file of this node.

    Known limits:
        Whether the files exist on the nodes is not known.

    Evidence:
        Cluster training document of 0.11 (train.list, test.list).
    """
    met = False
    for subject, _, claim in once(job, "index_files"):
        met = True
        names = [str(name) for value in claim.alternatives if isinstance(value, tuple) for name in value]
        named = next((r for r in job.references if r.role == "index" and r.target == claim.span.path), None)
        twice = next((other for index, other in enumerate(claim.because) if names[index] in names[:index]), None)
        if not names:
            yield failed(
                subject,
                f"{claim.span.path} names no data file: its trainer has nothing to train.",
                at=claim if named is None else named.span,
                remedy="Write one line for each data file.",
            )
        elif twice is not None:
            yield failed(
                subject,
                f"{quoted(twice)} stands in {twice.span.path} twice: it is trained twice in each pass.",
                at=twice,
                remedy="Leave one of the two lines out.",
            )
        else:
            yield passed(subject)
    read = {claim.span.path for claim in job.about("index_files")}
    for reference in job.references:
        if reference.role == "index" and reference.target not in read:
            met = True
            yield unknown(job.name, f"{reference.target} is not among the files", at=reference.span)
    if not met:
        yield not_applicable(job.name, "no index file is among the files")


@rule(
    "CLT005",
    "server-interface-unreachable",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 0.12",
    evidence=(DOCUMENT,),
)
def server_interface_unreachable(job: Job) -> Iterator[Verdict]:
    """Servers listen on an interface that other hosts cannot reach.

    What it checks:
        PADDLE_NIC, or `--nics`, is not the loopback or a container bridge where the job has several hosts.

    Why it matters:
        A server binds the address of that interface only. Trainers of other hosts dial the host's address and are
        refused.

    Example:
        `PADDLE_NIC = "lo"` with two HOSTS.

    Fix:
        Name the interface that has the address of HOSTS, such as eth0.

    Known limits:
        Which interfaces the hosts have is a matter for `preflight check`.

    Evidence:
        Cluster training document of 0.11 (PADDLE_NIC).
    """
    met = False
    for subject, scope, claim in once(job, "pserver_nics"):
        hosts = deciding(job, "cluster_hosts", scope) or deciding(job, "pserver_hosts", scope)
        if not hosts:
            continue
        met = True
        open_end = undecided(subject, (claim, *hosts))
        if open_end is not None:
            yield open_end
            continue
        count = max((len(value) for value in hosts[0].alternatives if isinstance(value, tuple)), default=0)
        names = [str(name) for value in claim.alternatives if isinstance(value, tuple) for name in value]
        if count > 1 and names and all(name in _LOCAL_NICS for name in names):
            yield failed(
                subject,
                f"{quoted(claim)} can be reached on its own host only, but {placed(hosts[0])} names {count} hosts.",
                at=claim,
                also=((hosts[0], "the hosts"),),
                remedy="Name the interface that the hosts reach each other by.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no server of PaddlePaddle 0.x on several hosts names its interface")


@rule(
    "CLT007",
    "workspace-and-package",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 0.12",
    evidence=(TOOL,),
)
def workspace_and_package(job: Job) -> Iterator[Verdict]:
    """cluster_train is told both to send a workspace and to use one that is there.

    What it checks:
        `python paddle.py` is given only one of `--job_dispatch_package` and `--job_workspace`.

    Why it matters:
        With both it stops at an assertion before anything is started.

    Example:
        `python paddle.py --job_dispatch_package=ws --job_workspace=/home/paddle/JOB1`.

    Fix:
        `--job_dispatch_package` the first time, `--job_workspace` with the folder it made afterwards.

    Known limits:
        Whether the folder exists on the hosts is not known.

    Evidence:
        paddle/scripts/cluster_train/paddle.py of 0.11.
    """
    met = False
    for launch in job.launches:
        if launch.launcher != "cluster_train":
            continue
        met = True
        given = [c for name in ("cluster_package", "cluster_workspace") for c in job.about(name, launch.scope)]
        given = [claim for claim in given if claim.source == "cluster_train" and claim.spelling.startswith("-")]
        open_end = undecided(launch.id, given, launch)
        if open_end is not None:
            yield open_end
        elif len({claim.quantity for claim in given}) == 2:
            yield failed(
                launch.id,
                f"{quoted(given[0])} and {quoted(given[1])} exclude each other.",
                at=given[1],
                also=((given[0], "the other one"),),
                remedy="Give one of the two.",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "cluster_train is not used")
