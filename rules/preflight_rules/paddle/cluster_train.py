"""PaddlePaddle 0.x: `paddle pserver`, `paddle train` and cluster_train, with its conf.py, workspace and index files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Relation, Scope
from preflight.model.job.claim import distinct
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, SubjectQuestion, claims_about, launches_with, subjects
from preflight_rules.paddle.fleet import distinct_claims

_MAX_PORT = 65535
_PORT_QUANTITIES = ("pserver_port", "pserver_ports", "pserver_sparse_ports")
_OPTION_BY_QUANTITY = {
    "pserver_port": "--port",
    "pserver_ports": "--ports_num",
    "pserver_sparse_ports": "--ports_num_for_sparse",
    "ps_workers": "--num_gradient_servers",
}


def _setting(job: Job, quantity: str, scope: Scope) -> Claim | None:
    """Return the claim that sets a quantity in a scope; None unless there is exactly one."""
    claims = job.setting(quantity, scope)
    return claims[0] if len(claims) == 1 else None


def _port_range(job: Job, scope: Scope) -> tuple[tuple[Claim, ...], tuple[int, int] | None]:
    """Return the claims about a server's ports, and the first and last port (None if unknown)."""
    claims = tuple(claim for name in _PORT_QUANTITIES if (claim := _setting(job, name, scope)) is not None)
    numbers_by_name = {claim.quantity: numbers(claim.value) for claim in claims}
    if (
        len(claims) < 2
        or not all(len(values) == 1 for values in numbers_by_name.values())
        or "pserver_port" not in numbers_by_name
    ):
        return claims, None
    first = numbers_by_name["pserver_port"][0]
    count = sum(values[0] for name, values in numbers_by_name.items() if name != "pserver_port")
    return claims, (first, first + max(1, count) - 1)


@rule(
    "CLT001",
    "server-ports-out-of-range",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="no PaddlePaddle 0.x server is given ports",
)
def server_ports_out_of_range(job: Job) -> Iterator[Verdict]:
    """The ports of a server exceed port 65535, or overlap with the ports of another server on the same host.

    What it checks: port + ports_num + ports_num_for_sparse - 1 is at most 65535, each number is positive, and the port
    ranges of two servers in one script do not overlap.

    Why it matters: A server listens on that many consecutive ports. A port that cannot be bound stops the server, and
    all trainers wait. A firewall must open the whole range.

    Example: `PADDLE_PORT = 65534` with `PADDLE_PORTS_NUM = 2` and `PADDLE_PORTS_NUM_FOR_SPARSE = 2`.

    Fix: Choose a lower first port.

    Known limits: Which ports are free on the hosts is unknown.
    """
    servers: list[tuple[Launch, tuple[int, int], Claim]] = []
    judged_lines: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        claims, ports = _port_range(job, scope)
        if len(claims) < 2 or (claims[0].span.path, claims[0].span.line) in judged_lines:
            continue
        judged_lines.add((claims[0].span.path, claims[0].span.line))
        undecided_verdict = undecided(subject, claims, launch)
        if undecided_verdict is not None or ports is None:
            yield undecided_verdict or unknown(
                subject, f"{quoted(claims[0])}: not all of its ports are known", at=claims[0]
            )
            continue
        first, last = ports
        claims_text = " + ".join(quoted(claim) for claim in claims)
        if first < 1 or last > _MAX_PORT or any(min(numbers(claim.value)) < 0 for claim in claims):
            yield failed(
                subject,
                f"{claims_text} use ports {first} to {last}, but the highest port is {_MAX_PORT}.",
                at=claims[0],
                also=tuple((claim, "counts") for claim in claims[1:]),
                remedy=f"Choose a first port no higher than {_MAX_PORT - (last - first)}.",
            )
            continue
        role = {text for c in job.setting("ps_role", scope) for text in texts(c.value)}
        if launch is not None and role == {"PSERVER"}:
            other_server = next((other for other in servers if other[1][0] <= last and first <= other[1][1]), None)
            runs_here = (
                other_server is not None and other_server[0].span.path == launch.span.path and not launch.wrappers
            )
            servers.append((launch, ports, claims[0]))
            if other_server is not None and runs_here:
                yield failed(
                    subject,
                    f"{claims_text} use ports {first} to {last}, but the server in {where(other_server[2])} listens "
                    f"on {other_server[1][0]} to {other_server[1][1]}.",
                    at=claims[0],
                    also=((other_server[2], "the other server"),),
                    remedy=f"Start this server's ports after {other_server[1][1]}.",
                )
                continue
        yield passed(subject)


@rule(
    "CLT002",
    "trainer-dials-other-ports",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="no PaddlePaddle 0.x trainer is started together with its servers",
)
def trainer_dials_other_ports(job: Job) -> Iterator[Verdict]:
    """Trainers and servers are given different ports or different numbers of trainers.

    What it checks: --port, --ports_num, --ports_num_for_sparse and --num_gradient_servers of `paddle train`, and the
    arguments of `paddle.init()` in a program of the v2 API, equal those of `paddle pserver`, and `paddle.py` passes the
    same numbers to trainers as conf.py does to servers.

    Why it matters: A trainer treats each port as a separate server: with more ports it connects to unused ports and
    retries forever, with fewer ports some servers wait forever. paddle.py passes options from its command line only to
    trainers.

    Example: `PADDLE_PORTS_NUM_FOR_SPARSE = 4` in conf.py and `python paddle.py --ports_num_for_sparse=2`.

    Fix: Write the numbers once, in conf.py or in variables of the script.

    Known limits: Trainers and servers of different scripts are compared only if the scripts belong to one job.
    """
    for subject, launch, name, trainer_claim, server_claim in _shared_settings(job):
        verdict = undecided(subject, (trainer_claim, server_claim), launch)
        trainers, servers = numbers(trainer_claim.value), numbers(server_claim.value)
        if verdict is None and trainers and servers and not set(trainers) & set(servers):
            verdict = failed(
                subject,
                f"{quoted(trainer_claim)} gives the trainers {trainers[0]}, but {placed(server_claim)} gives the "
                f"servers {servers[0]}.",
                at=trainer_claim,
                also=((server_claim, "the servers"),),
                remedy=f"Set {name} to the same value for servers and trainers.",
            )
        yield verdict or passed(subject)


class _SharedSetting(NamedTuple):
    """A setting that trainers and servers share: its option, and the claims of both."""

    subject: str
    launch: Launch | None
    option: str
    trainers: Claim
    servers: Claim


def _shared_settings(job: Job) -> Iterator[_SharedSetting]:
    servers = [launch for launch in job.launches if launch.launcher == "paddle-v2" and _role(job, launch) == "PSERVER"]
    only_server = servers[0] if len(servers) == 1 else None
    for quantity, option in _OPTION_BY_QUANTITY.items():
        server_claim = _setting(job, quantity, only_server.scope) if only_server is not None else None
        for launch in job.launches:
            if launch.launcher == "cluster_train":
                required = [c for c in job.about(quantity, launch.scope) if c.relation is Relation.REQUIRES]
                trainer_claim, own_server_claim = (
                    (required[0] if required else None),
                    _setting(job, quantity, launch.scope),
                )
            elif launch.launcher == "paddle-v2" and _role(job, launch) == "TRAINER":
                trainer_claim, own_server_claim = _setting(job, quantity, launch.scope), server_claim
            else:
                continue
            if trainer_claim is not None and own_server_claim is not None:
                yield _SharedSetting(launch.id, launch, option, trainer_claim, own_server_claim)
        # A program of the v2 API is started by python and passes the numbers to `paddle.init()`.
        for claim in distinct(job.about(f"setting.paddle_v2.{option.removeprefix('--')}")):
            if server_claim is not None:
                yield _SharedSetting(claim.span.path, None, option, claim, server_claim)


def _role(job: Job, launch: Launch) -> str:
    return "".join(text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value))


@rule(
    "CLT006",
    "trainer-left-local",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 0.12",
    otherwise="no PaddlePaddle 0.x trainer is given servers",
    profile="pedantic",
    each=launches_with("trains_locally", where=lambda stated: bool(stated.job.setting("ps_mode", stated.scope))),
)
def trainer_left_local(question: LaunchQuestion) -> Verdict | None:
    """A trainer is given servers but trains without them.

    What it checks: `paddle train` with `--pservers`, and `paddle.py`, are given `--local=0`.

    Why it matters: `--local` is on by default. Every trainer then trains its own model, and the servers wait for
    gradients that never arrive.

    Example: `paddle train --pservers=10.0.0.1 --trainer_id=0 --config=conf.py`.

    Fix: Add `--local=0`.

    Known limits: A configuration may also set `local`, which is not seen.
    """
    claims = question.claims
    if claims[0].alternatives == (True,):
        return failed(
            question.subject,
            f"{quoted(claims[0])} makes the trainer train locally, without the servers that it is given.",
            at=claims[0],
            remedy="Add `--local=0`.",
        )
    return None


#: Interfaces that other hosts cannot reach.
_LOCAL_INTERFACES = ("lo", "docker0", "virbr0", "lxcbr0")


@rule(
    "CLT003",
    "cluster-host-twice-or-local",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="the job has no conf.py of cluster_train",
    each=claims_about("cluster_hosts"),
)
def cluster_host_twice_or_local(question: SubjectQuestion) -> Verdict | None:
    """HOSTS of cluster_train is empty, names a host twice, or names loopback in addition to other hosts.

    What it checks: HOSTS names at least one host, and each host once, regardless of user and ssh port. If HOSTS names
    127.x.x.x or localhost, it names no other host.

    Why it matters: paddle.py starts one server and one trainer for each entry, all with the same ports: the second
    server on a host cannot bind them. Loopback means a different host on each host. Without an entry, nothing is
    started.

    Example: `HOSTS = ["root@10.0.0.1", "root@10.0.0.1"]`.

    Fix: Name each host once, by the address that the others can reach.

    Known limits: A host that is listed under two names is not recognized.
    """
    (claim,) = question.claims
    entries = [str(host) for value in claim.alternatives if isinstance(value, tuple) for host in value]
    hosts = [host.rpartition("@")[2].partition(":")[0] for host in entries]
    duplicate = next((host for host in hosts if hosts.count(host) > 1), None)
    loopback = next((host for host in hosts if is_loopback(host)), None)
    if not entries:
        return failed(
            question.subject,
            f"{quoted(claim)} names no host: paddle.py starts no server and no trainer.",
            at=claim,
            remedy='Name the hosts: `HOSTS = ["root@10.0.0.1", "root@10.0.0.2"]`.',
        )
    if duplicate is not None:
        return failed(
            question.subject,
            f"{quoted(claim)} names {duplicate} {hosts.count(duplicate)} times: two servers on one host cannot share"
            f" their ports.",
            at=claim,
            remedy="Name each host once.",
        )
    if loopback is not None and len(hosts) > 1:
        return failed(
            question.subject,
            f"{quoted(claim)} names {loopback} in addition to other hosts: on each host it means that host.",
            at=claim,
            remedy="Write the address that the other hosts can reach.",
        )
    return None


@rule(
    "CLT004",
    "index-file-empty-or-double",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 0.12",
    otherwise="the job has no index file",
)
def index_file_empty_or_double(job: Job) -> Iterator[Verdict]:
    """An index file of a trainer names no data file, or names a data file twice.

    What it checks: train.list and test.list name at least one file, and none twice.

    Why it matters: With an empty list the trainer has no batch: it ends its pass immediately, and in synchronous mode
    the others wait for it. A file that is named twice is used twice.

    Example: A train.list that is empty because the data was not split first.

    Fix: Write one line for each data file of this node.

    Known limits: Whether the files exist on the nodes is unknown.
    """
    for subject, _, claim in distinct_claims(job, "index_files"):
        names = [str(name) for value in claim.alternatives if isinstance(value, tuple) for name in value]
        index_reference = next((r for r in job.references if r.role == "index" and r.target == claim.span.path), None)
        duplicate = next(
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
                at=claim if index_reference is None else index_reference.span,
                remedy="Write one line for each data file.",
            )
        elif duplicate is not None:
            yield failed(
                subject,
                f"{quoted(duplicate)} is in {duplicate.span.path} twice: its data are used twice in each pass.",
                at=duplicate,
                remedy="Remove one of the two lines.",
            )
        else:
            yield passed(subject)
    read_paths = {claim.span.path for claim in job.about("index_files")}
    for reference in job.references:
        if reference.role == "index" and reference.target not in read_paths:
            yield unknown(job.name, f"{reference.target} is not one of the job's files", at=reference.span)


@rule(
    "CLT005",
    "server-interface-unreachable",
    severity=Severity.WARNING,
    applies_to="paddlepaddle < 0.12",
    otherwise="no PaddlePaddle 0.x server on several hosts names its interface",
)
def server_interface_unreachable(job: Job) -> Iterator[Verdict]:
    """Servers listen on an interface that other hosts cannot reach.

    What it checks: If the job has several hosts, PADDLE_NIC or `--nics` is neither loopback nor a container bridge.

    Why it matters: A server binds only the address of that interface. Trainers on other hosts connect to the host's
    address, and their connections are refused.

    Example: `PADDLE_NIC = "lo"` with two HOSTS.

    Fix: Name the interface with the address in HOSTS, such as eth0.

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
        if count > 1 and names and all(name in _LOCAL_INTERFACES for name in names):
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
    claims = [c for name in ("cluster_package", "cluster_workspace") for c in job.about(name, scope)]
    return [claim for claim in claims if claim.source == "cluster_train" and claim.spelling.startswith("-")]


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

    Known limits: Whether the folder exists on the hosts is unknown.
    """
    claims = question.claims
    if len({claim.quantity for claim in claims}) < 2:
        return None
    return failed(
        question.subject,
        f"{quoted(claims[0])} and {quoted(claims[1])} are mutually exclusive.",
        at=claims[1],
        also=((claims[0], "the other option"),),
        remedy="Pass --job_dispatch_package or --job_workspace, not both.",
    )


@rule(
    "CLT008",
    "same-data-on-every-host",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 0.12",
    otherwise="no cluster_train package has an index of training data",
    each=launches_with("sent_index", "cluster_hosts"),
)
def same_data_on_every_host(question: LaunchQuestion) -> Verdict | None:
    """cluster_train sends one package with all training data to several hosts.

    What it checks: A package of `--job_dispatch_package` with a train.list is sent to only one host, or a program in it
    determines which host it is on.

    Why it matters: Every trainer reads the train.list of its own host. With the same list on all hosts, every sample is
    used once per host in each pass, and more hosts do not make a pass shorter.

    Example: `--job_dispatch_package=../demo` with `./data/ratings.dat.train` in its train.list, and two HOSTS.

    Fix: Put each host's part of the data on it, with its own train.list, and start with `--job_workspace`.

    Known limits: Whether the hosts get other files afterwards is unknown.
    """
    sent, hosts = question.of
    count = len({host for claim in hosts for value in claim.alternatives if isinstance(value, tuple) for host in value})
    if count < 2:
        return None
    return failed(
        question.subject,
        f"`{sent[0].spelling}` sends {joined(texts(sent[0].value))} to all {count} hosts of {placed(hosts[0])}: "
        "every trainer trains on all of the data.",
        at=sent[0],
        also=((hosts[0], "the hosts"),),
        remedy="Put a different part of the data, with its own train.list, on each host, and use --job_workspace.",
    )


@rule(
    "CLT020",
    "sparse-update-without-ports",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="no PaddlePaddle 0.x model updates rows on servers",
)
def sparse_update_without_ports(job: Job) -> Iterator[Verdict]:
    """A model updates a parameter row by row, but its servers have no ports for sparse updates.

    What it checks: With `sparse_update=True` in the model, `ports_num_for_sparse` of servers and trainers is above 0.

    Why it matters: Rows travel over separate ports. Without them the trainer's check `ports_num_for_sparse > 0` stops
    the trainer at startup, and the servers wait for it.

    Example: `ParamAttr(sparse_update=True)` and `paddle train --local=0 --pservers=...` without
    `--ports_num_for_sparse`.

    Fix: `--ports_num_for_sparse=1` (conf.py: `PADDLE_PORTS_NUM_FOR_SPARSE = 1`) on servers and trainers.

    Known limits: Only a literal `sparse_update=True` counts. Local training needs no ports.
    """
    for subject, scope, sparse in distinct_claims(job, "sparse_update"):
        if any(claim.alternatives == (True,) for claim in job.about("trains_locally", scope)):
            continue
        ports = [*job.requirement_claims("pserver_sparse_ports", scope), *job.setting("pserver_sparse_ports", scope)]
        if not ports:
            continue
        zero_ports = next((claim for claim in ports if claim.alternatives == (0,)), None)
        if zero_ports is not None:
            yield failed(
                subject,
                f"{quoted(sparse)} sends rows over separate ports, but {placed(zero_ports)} provides none.",
                at=zero_ports,
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
    otherwise="the job has no conf.py of cluster_train",
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
            f"{quoted(claim)} is relative, so its meaning depends on the working directory of each command on each "
            "host.",
            at=claim,
            remedy='Write an absolute path, such as `ROOT_DIR = "/home/paddle"`.',
        )
    return None
