"""PaddlePaddle 0.x: cluster_train's conf.py, its workspace, and index files."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Scope
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import LaunchQuestion, SubjectQuestion, claims_about, launches_with
from preflight_rules.paddle.fleet import distinct_claims

#: Interfaces that other hosts cannot reach.
_LOCAL_NICS = ("lo", "docker0", "virbr0", "lxcbr0")


@rule(
    "CLT003",
    "cluster-host-twice-or-local",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="no conf.py of cluster_train is among the files",
    each=claims_about("cluster_hosts"),
)
def cluster_host_twice_or_local(question: SubjectQuestion) -> Verdict | None:
    """HOSTS of cluster_train is empty, names a host twice, or names loopback beside other hosts.

    What it checks: HOSTS names at least one host, and each host once, whatever user or ssh port is given with it.
    127.x.x.x or localhost is the only host.

    Why it matters: paddle.py starts one server and one trainer for each entry, all with the same ports: the second
    server on a host cannot bind them. Loopback means a different host on each of them. Without an entry nothing is
    started.

    Example: `HOSTS = ["root@10.0.0.1", "root@10.0.0.1"]`.

    Fix: Name each host once, by the address that the others can reach.

    Known limits: One host listed under two names is not recognised.
    """
    (claim,) = question.claims
    listed = [str(host) for value in claim.alternatives if isinstance(value, tuple) for host in value]
    bare = [host.rpartition("@")[2].partition(":")[0] for host in listed]
    twice = next((host for host in bare if bare.count(host) > 1), None)
    local = next((host for host in bare if is_loopback(host)), None)
    if not listed:
        return failed(
            question.subject,
            f"{quoted(claim)} names no host: paddle.py starts no server and no trainer.",
            at=claim,
            remedy='Name the hosts: `HOSTS = ["root@10.0.0.1", "root@10.0.0.2"]`.',
        )
    if twice is not None:
        return failed(
            question.subject,
            f"{quoted(claim)} names {twice} {bare.count(twice)} times: two servers on one host cannot share their"
            f" ports.",
            at=claim,
            remedy="Name each host once.",
        )
    if local is not None and len(bare) > 1:
        return failed(
            question.subject,
            f"{quoted(claim)} names {local} in addition to other hosts: on each host, it is that host itself.",
            at=claim,
            remedy="Write the address that the other hosts can reach.",
        )
    return None


@rule(
    "CLT004",
    "index-file-empty-or-double",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 0.12",
    otherwise="no index file is among the files",
)
def index_file_empty_or_double(job: Job) -> Iterator[Verdict]:
    """An index file of a trainer names no data file, or names one twice.

    What it checks: train.list and test.list name at least one file, and none twice.

    Why it matters: With an empty list the trainer has no batch: it ends its pass at once, and in synchronous mode the
    others wait for it. A file named twice is trained twice.

    Example: A train.list that is empty because the data were not split before.

    Fix: Write one line for each data file of this node.

    Known limits: Whether the files exist on the nodes is not known.
    """
    for subject, _, claim in distinct_claims(job, "index_files"):
        names = [str(name) for value in claim.alternatives if isinstance(value, tuple) for name in value]
        named = next((r for r in job.references if r.role == "index" and r.target == claim.span.path), None)
        twice = next(
            (
                other
                for index, (name, other) in enumerate(zip(names, claim.because, strict=False))
                if name in names[:index]
            ),
            None,
        )
        if not names:
            yield failed(
                subject,
                f"{claim.span.path} lists no data file: its trainer has nothing to train on.",
                at=claim if named is None else named.span,
                remedy="Write one line for each data file.",
            )
        elif twice is not None:
            yield failed(
                subject,
                f"{quoted(twice)} is in {twice.span.path} twice: its data are used twice in each pass.",
                at=twice,
                remedy="Remove one of the two lines.",
            )
        else:
            yield passed(subject)
    read = {claim.span.path for claim in job.about("index_files")}
    for reference in job.references:
        if reference.role == "index" and reference.target not in read:
            yield unknown(job.name, f"{reference.target} is not among the files", at=reference.span)


@rule(
    "CLT005",
    "server-interface-unreachable",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 0.12",
    otherwise="no server of PaddlePaddle 0.x on several hosts names its interface",
)
def server_interface_unreachable(job: Job) -> Iterator[Verdict]:
    """Servers listen on an interface that other hosts cannot reach.

    What it checks: PADDLE_NIC, or `--nics`, is not the loopback or a container bridge where the job has several hosts.

    Why it matters: A server binds the address of that interface only. Trainers on other hosts dial the host's address,
    and their connections are refused.

    Example: `PADDLE_NIC = "lo"` with two HOSTS.

    Fix: Name the interface that has the address of HOSTS, such as eth0.

    Known limits: Which interfaces the hosts have is checked by `preflight check`.
    """
    for subject, scope, claim in distinct_claims(job, "pserver_nics"):
        hosts = job.value_claims("cluster_hosts", scope) or job.value_claims("pserver_hosts", scope)
        if not hosts:
            continue
        if undecided_verdict := undecided(subject, (claim, *hosts)):
            yield undecided_verdict
            continue
        count = max((len(value) for value in hosts[0].alternatives if isinstance(value, tuple)), default=0)
        names = [str(name) for value in claim.alternatives if isinstance(value, tuple) for name in value]
        if count > 1 and names and all(name in _LOCAL_NICS for name in names):
            yield failed(
                subject,
                f"{quoted(claim)} can be reached only on its own host, but {placed(hosts[0])} names {count} hosts.",
                at=claim,
                also=((hosts[0], "the hosts"),),
                remedy="Name the interface that the hosts share.",
            )
        else:
            yield passed(subject)


def _packages(job: Job, scope: Scope) -> list[Claim]:
    found = [c for name in ("cluster_package", "cluster_workspace") for c in job.about(name, scope)]
    return [claim for claim in found if claim.source == "cluster_train" and claim.spelling.startswith("-")]


@rule(
    "CLT007",
    "workspace-and-package",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="cluster_train is not used",
    each=launches_with(also=(_packages,), where=lambda stated: stated.launch.launcher == "cluster_train"),
)
def workspace_and_package(question: LaunchQuestion) -> Verdict | None:
    """cluster_train is given options both for sending a workspace and for using an existing one.

    What it checks: `python paddle.py` is given only one of `--job_dispatch_package` and `--job_workspace`.

    Why it matters: With both it stops at an assertion before it starts anything.

    Example: `python paddle.py --job_dispatch_package=ws --job_workspace=/home/paddle/JOB1`.

    Fix: `--job_dispatch_package` the first time, `--job_workspace` with the folder that it created for later runs.

    Known limits: Whether the folder exists on the hosts is not known.
    """
    given = question.claims
    if len({claim.quantity for claim in given}) < 2:
        return None
    return failed(
        question.subject,
        f"{quoted(given[0])} and {quoted(given[1])} exclude each other.",
        at=given[1],
        also=((given[0], "the other one"),),
        remedy="Give one of the two.",
    )


@rule(
    "CLT020",
    "sparse-update-without-ports",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="no model of PaddlePaddle 0.x updates rows on servers",
)
def sparse_update_without_ports(job: Job) -> Iterator[Verdict]:
    """A model updates a parameter row by row, but its servers have no ports for that.

    What it checks: With `sparse_update=True` in the model, `ports_num_for_sparse` of servers and trainers is above 0.

    Why it matters: Rows travel over ports of their own. Without one the trainer's check `ports_num_for_sparse > 0`
    stops it at start, and the servers wait for it.

    Example: `ParamAttr(sparse_update=True)` and `paddle train --local=0 --pservers=...` without
    `--ports_num_for_sparse`.

    Fix: `--ports_num_for_sparse=1` (conf.py: `PADDLE_PORTS_NUM_FOR_SPARSE = 1`) on servers and trainers.

    Known limits: Only a literal `sparse_update=True` counts. A local training needs no ports.
    """
    for subject, scope, sparse in distinct_claims(job, "sparse_update"):
        if any(claim.alternatives == (True,) for claim in job.about("trains_locally", scope)):
            continue
        ports = [*job.requiring("pserver_sparse_ports", scope), *job.setting("pserver_sparse_ports", scope)]
        if not ports:
            continue
        none = next((claim for claim in ports if claim.alternatives == (0,)), None)
        if none is not None:
            yield failed(
                subject,
                f"{quoted(sparse)} sends rows over ports of their own, but {placed(none)} leaves none for that.",
                at=none,
                also=((sparse, "sparse parameter"),),
                remedy="Give servers and trainers the same number of sparse ports, such as 1.",
            )
        else:
            yield undecided(subject, ports) or passed(subject)


@rule(
    "CLT021",
    "cluster-workspace-relative",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 0.12",
    otherwise="no conf.py of cluster_train is among the files",
    each=claims_about("cluster_workspace"),
)
def cluster_workspace_relative(question: SubjectQuestion) -> Verdict | None:
    """ROOT_DIR or the workspace of cluster_train is a relative path.

    What it checks: ROOT_DIR in conf.py and `--job_workspace` are absolute.

    Why it matters: paddle.py uses the path in commands over ssh, in different directories: it creates the workspace in
    the home directory of each host, changes into it, and then looks for the same relative path inside.

    Example: `ROOT_DIR = "paddle_job"`.

    Fix: `ROOT_DIR = "/home/paddle"`.

    Known limits: A path that starts with `~` or a variable is expanded on the host, and is not reported.
    """
    (claim,) = question.claims
    if all(not str(path).startswith(("/", "~", "$")) for path in claim.alternatives):
        return failed(
            question.subject,
            f"{quoted(claim)} is relative: on each host it depends on the directory of every single command.",
            at=claim,
            remedy='Write an absolute path, such as `ROOT_DIR = "/home/paddle"`.',
        )
    return None
