"""PaddlePaddle 0.x: servers and trainers started by `paddle pserver`, `paddle train` or cluster_train."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Relation, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.fleet import once
from preflight_rules.reading import (
    deciding,
    is_loopback,
    numbers,
    placed,
    quoted,
    subjects,
    texts,
    undecided,
    where,
)

_DOCUMENT = "https://github.com/PaddlePaddle/Paddle/blob/v0.11.0/doc/howto/usage/cluster/cluster_train_en.md"
_TOOL = "https://github.com/PaddlePaddle/Paddle/blob/v0.11.0/paddle/scripts/cluster_train/paddle.py"
_HIGHEST_PORT = 65535
_RANGE = ("pserver_port", "pserver_ports", "pserver_sparse_ports")
_NAMES = {
    "pserver_port": "--port",
    "pserver_ports": "--ports_num",
    "pserver_sparse_ports": "--ports_num_for_sparse",
    "ps_workers": "--num_gradient_servers",
}
#: Interfaces that other hosts cannot reach.
_LOCAL_NICS = ("lo", "docker0", "virbr0", "lxcbr0")


def _setting(job: Job, quantity: str, scope: Scope) -> Claim | None:
    """What sets a quantity in a scope, where exactly one claim does."""
    found = job.setting(quantity, scope)
    return found[0] if len(found) == 1 else None


def _range(job: Job, scope: Scope) -> tuple[tuple[Claim, ...], tuple[int, int] | None]:
    """The claims about a server's ports, and the first and last of them where all are known."""
    claims = tuple(claim for name in _RANGE if (claim := _setting(job, name, scope)) is not None)
    known = {claim.quantity: numbers(claim.value) for claim in claims}
    if len(claims) < 2 or not all(len(found) == 1 for found in known.values()) or "pserver_port" not in known:
        return claims, None
    first = known["pserver_port"][0]
    count = sum(found[0] for name, found in known.items() if name != "pserver_port")
    return claims, (first, first + max(1, count) - 1)


@rule(
    "CLT001",
    "server-ports-out-of-range",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 0.12",
    evidence=(_DOCUMENT, "PaddlePaddle/Paddle#2224"),
)
def server_ports_out_of_range(job: Job) -> Iterator[Verdict]:
    """The ports of a server run past the last port, or into those of another server on the same host.

    What it checks:
        port + ports_num + ports_num_for_sparse - 1 is at most 65535, each number is positive, and two servers that one
        script starts have ports of their own.

    Why it matters:
        A server listens on that many consecutive ports. One that cannot be bound stops it, and all trainers wait.
        A firewall has to let the whole range through.

    Example:
        `PADDLE_PORT = 65534` with `PADDLE_PORTS_NUM = 2` and `PADDLE_PORTS_NUM_FOR_SPARSE = 2`.

    Fix:
        Choose a first port with room behind it.

    Known limits:
        Which ports are free on the hosts is not known.

    Evidence:
        Cluster training document of 0.11; PaddlePaddle/Paddle#2224.
    """
    met = False
    seen: list[tuple[Launch, tuple[int, int], Claim]] = []
    judged: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        claims, ports = _range(job, scope)
        if len(claims) < 2 or (claims[0].span.path, claims[0].span.line) in judged:
            continue
        judged.add((claims[0].span.path, claims[0].span.line))
        met = True
        open_end = undecided(subject, claims, launch)
        if open_end is not None or ports is None:
            yield open_end or unknown(subject, f"{quoted(claims[0])}: not all of its ports are known", at=claims[0])
            continue
        first, last = ports
        together = " + ".join(quoted(claim) for claim in claims)
        if first < 1 or last > _HIGHEST_PORT or any(min(numbers(claim.value)) < 0 for claim in claims):
            yield failed(
                subject,
                f"{together} are the ports {first} to {last}; there are ports 1 to {_HIGHEST_PORT} only.",
                at=claims[0],
                also=tuple((claim, "counts") for claim in claims[1:]),
                remedy=f"Choose a first port of at most {_HIGHEST_PORT - (last - first)}.",
            )
            continue
        role = {text for c in job.setting("ps_role", scope) for text in texts(c.value)}
        if launch is not None and role == {"PSERVER"}:
            clash = next((other for other in seen if other[1][0] <= last and first <= other[1][1]), None)
            beside = clash is not None and clash[0].span.path == launch.span.path and not launch.wrappers
            seen.append((launch, ports, claims[0]))
            if clash is not None and beside:
                yield failed(
                    subject,
                    f"{together} are the ports {first} to {last}, but the server of {where(clash[2])} listens on"
                    f" {clash[1][0]} to {clash[1][1]}.",
                    at=claims[0],
                    also=((clash[2], "the other server"),),
                    remedy=f"Start this server's ports behind {clash[1][1]}.",
                )
                continue
        yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no server of PaddlePaddle 0.x names its ports")


@rule(
    "CLT002",
    "trainer-dials-other-ports",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 0.12",
    evidence=(_TOOL, "PaddlePaddle/Paddle#7465"),
)
def trainer_dials_other_ports(job: Job) -> Iterator[Verdict]:
    """Trainers are told other ports, or another number of trainers, than the servers.

    What it checks:
        --port, --ports_num, --ports_num_for_sparse and --num_gradient_servers of `paddle train` are those of
        `paddle pserver`; and what `paddle.py` hands to trainers is what conf.py gives the servers.

    Why it matters:
        Each port is a server of its own to the trainer: with more of them it dials ports where nobody listens and
        retries for ever, with fewer some servers wait for ever. paddle.py passes options from its command line to
        trainers only.

    Example:
        `PADDLE_PORTS_NUM_FOR_SPARSE = 4` in conf.py and `python paddle.py --ports_num_for_sparse=2`.

    Fix:
        Say the numbers once, in conf.py or in variables of the script.

    Known limits:
        Trainers and servers of different scripts are compared only where the scripts belong to one job.

    Evidence:
        paddle/scripts/cluster_train/paddle.py of 0.11; PaddlePaddle/Paddle#7465.
    """
    met = False
    for launch in job.launches:
        for quantity, name in _NAMES.items():
            ours, theirs = _told(job, launch, quantity)
            if ours is None or theirs is None:
                continue
            met = True
            open_end = undecided(launch.id, (ours, theirs), launch)
            one, other = numbers(ours.value), numbers(theirs.value)
            if open_end is not None:
                yield open_end
            elif one and other and not set(one) & set(other):
                yield failed(
                    launch.id,
                    f"{quoted(ours)} tells trainers {one[0]}, but {placed(theirs)} tells the servers {other[0]}.",
                    at=ours,
                    also=((theirs, "the servers"),),
                    remedy=f"Make {name} the same for servers and trainers.",
                )
            else:
                yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no trainer of PaddlePaddle 0.x is started beside its servers")


def _told(job: Job, launch: Launch, quantity: str) -> tuple[Claim | None, Claim | None]:
    """What the trainers of a launch and their servers are told."""
    if launch.launcher == "cluster_train":
        asked = [c for c in job.about(quantity, launch.scope) if c.relation is Relation.REQUIRES]
        return (asked[0] if asked else None), _setting(job, quantity, launch.scope)
    if launch.launcher != "paddle-v2" or _role(job, launch) != "TRAINER":
        return None, None
    servers = [other for other in job.launches if other.launcher == "paddle-v2" and _role(job, other) == "PSERVER"]
    if len(servers) != 1:
        return None, None
    return _setting(job, quantity, launch.scope), _setting(job, quantity, servers[0].scope)


def _role(job: Job, launch: Launch) -> str:
    return "".join(text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value))


@rule(
    "CLT003",
    "cluster-host-twice-or-local",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 0.12",
    evidence=(_TOOL, "PaddlePaddle/Paddle#4281"),
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
    evidence=(_DOCUMENT,),
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
    evidence=(_DOCUMENT,),
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
    "CLT006",
    "trainer-left-local",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 0.12",
    evidence=(
        "https://github.com/PaddlePaddle/Paddle/blob/v0.11.0/doc/howto/usage/cmd_parameter/detail_introduction_en.md",
    ),
)
def trainer_left_local(job: Job) -> Iterator[Verdict]:
    """A trainer is given servers and trains without them.

    What it checks:
        `paddle train` with `--pservers`, and `paddle.py`, are given `--local=0`.

    Why it matters:
        `--local` is on unless it is switched off. Every trainer then trains a model of its own, and the servers wait
        for gradients that never come.

    Example:
        `paddle train --pservers=10.0.0.1 --trainer_id=0 --config=conf.py`.

    Fix:
        Add `--local=0`.

    Known limits:
        A configuration may set it too.

    Evidence:
        Command-line document of 0.11 (`--local`, default 1).
    """
    met = False
    for launch in job.launches:
        claims = job.setting("trains_locally", launch.scope)
        if not claims or not job.setting("ps_mode", launch.scope):
            continue
        met = True
        open_end = undecided(launch.id, claims, launch)
        if open_end is not None:
            yield open_end
        elif claims[0].alternatives == (True,):
            yield failed(
                launch.id,
                f"{quoted(claims[0])} makes the trainer train by itself, without the servers it is given.",
                at=claims[0],
                remedy="Add `--local=0`.",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no trainer of PaddlePaddle 0.x is given servers")


@rule(
    "CLT007",
    "workspace-and-package",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 0.12",
    evidence=(_TOOL,),
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
