"""Host names of the rendezvous, compared with the nodes' own names."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.hostnames import is_loopback
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.symbols import Symbol, affixes_of, symbols_in
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import certainly_several, host_of, nodes_spanned, placed, quoted, undecided


@rule(
    "RDV008",
    "rendezvous-host-is-no-nodes-own-name",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no torchrun launch names a host for c10d",
    evidence=(
        "pytorch/pytorch#73656",
        (
            "torch.distributed.elastic.rendezvous.utils, _matches_machine_hostname",
            "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/utils.py",
        ),
    ),
)
def rendezvous_host_is_no_nodes_own_name(job: Job) -> Iterator[Verdict]:
    """The c10d endpoint uses a name that is not the node's own host name.

    What it checks: With `--rdzv_backend=c10d` on several nodes, that the endpoint's host is the name of a node as the
    scheduler gives it, not that name with a prefix or suffix (`${HEAD}i`, `ib-$HEAD`), and is in the job's own list of
    hosts.

    Why it matters: Every torchrun compares the endpoint with its own host name, and the one that finds itself opens the
    store. With an alias (of the InfiniBand interface, for example) no node does: all dial, and the rendezvous never
    forms.

    Example: `HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)i` and `--rdzv_endpoint=$HEAD:6000`.

    Fix: Give the name that `hostname` prints on that node, or its address; or choose the node that opens the store with
    `--rdzv_conf=is_host=1` on that node and `is_host=0` on the others.

    Known limits: An alias that resolves to the address of the node's own name is accepted by torch; `preflight check`
    resolves the names. A domain after the name (`$HEAD.cluster.local`) is assumed to be correct.
    """
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        nodes, because = nodes_spanned(job, launch)
        hosts = [c for c in job.setting("master_addr", launch.scope) if c.source == "torchrun"]
        if not hosts or not because or texts(job_value(backend)) != ("c10d",):
            continue
        undecided_verdict = undecided(launch.id, (*because, *backend), launch)
        if undecided_verdict is not None:
            yield undecided_verdict
        elif not certainly_several(nodes) or _names_host(job, launch):
            yield passed(launch.id)
        else:
            yield _host(job, launch, hosts[0])


def _names_host(job: Job, launch: Launch) -> bool:
    claims = job.setting("rendezvous_conf", launch.scope)
    return any(not texts(claim.value) or "is_host" in texts(claim.value)[0] for claim in claims)


def _host(job: Job, launch: Launch, claim: Claim) -> Verdict:
    remedy = "Give the name that `hostname` prints there, or the node's address, or --rdzv_conf=is_host=1 on that node."
    symbols = symbols_in(claim.value)
    prefix, suffix = affixes_of(claim.value)
    if Symbol.FIRST_ALLOCATED_HOST in symbols and (prefix or (suffix and not suffix.startswith("."))):
        return failed(
            launch.id,
            f"{quoted(claim)} is the first host's name with `{prefix or suffix}` {'before' if prefix else 'after'}"
            f" it: torchrun compares the endpoint with the node's own host name to decide which node opens the"
            f" store, and no"
            " node has this name.",
            at=claim,
            remedy=remedy,
        )
    if Symbol.FIRST_ALLOCATED_HOST in symbols or Symbol.FIRST_ALLOCATED_ADDRESS in symbols:
        return passed(launch.id)
    names = texts(claim.value)
    if not names:
        return unknown(launch.id, f"cannot determine which host {quoted(claim)} names", at=claim)
    listed = [c for c in job.setting("hosts", launch.scope) if c.alternatives]
    known = {str(host) for c in listed for value in c.alternatives if isinstance(value, tuple) for host in value}
    if known and not any(_is_among(host_of(name), known) for name in names):
        return failed(
            launch.id,
            f"{quoted(claim)} names {host_of(names[0])}, which is not one of the hosts of {placed(listed[0])}: no"
            " torchrun matches it, so no node opens the store.",
            at=claim,
            also=((listed[0], "the job's hosts"),),
            remedy=remedy,
        )
    return passed(launch.id)


def _is_among(host: str, known: set[str]) -> bool:
    """Whether a host is in the list, by name or first label; an address may be any of them."""
    if is_loopback(host) or host.replace(".", "").isdecimal() or ":" in host:
        return True
    short = host.partition(".")[0].lower()
    return short in {name.partition(".")[0].lower() for name in known}


@rule(
    "RDV009",
    "node-names-may-not-resolve",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no launch names a c10d endpoint",
    evidence=(
        "pytorch/pytorch#150532",
        ("torchrun documentation (--local-addr)", "https://docs.pytorch.org/docs/stable/elastic/run.html"),
    ),
)
def node_names_may_not_resolve(job: Job) -> Iterator[Verdict]:
    """The nodes meet at an IP address, but the ranks connect to a host name that may not resolve.

    What it checks: If several nodes meet by c10d at an endpoint that is written as an address, that `--local-addr` (or
    PET_LOCAL_ADDR) sets the address that each node advertises.

    Why it matters: Without it torchrun hands the ranks the host name of the node of rank 0, as that node itself knows
    it. Where names do not resolve between nodes, as an endpoint by address suggests, the rendezvous forms and the
    process group then hangs.

    Example: `PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=10.2.0.7:36123 PET_NNODES=2` without PET_LOCAL_ADDR.

    Fix: `--local-addr=$(hostname -I | cut -d" " -f1)` on each node, or names that all nodes resolve.

    Known limits: Whether the names resolve is checked by `preflight check`; where they do, nothing is wrong.
    """
    for launch in job.launches:
        backend, hosts = job.setting("rendezvous_backend", launch.scope), job.setting("master_addr", launch.scope)
        if launch.launcher != "torchrun" or texts(job_value(backend)) != ("c10d",) or not hosts:
            continue
        nodes, because = nodes_spanned(job, launch)
        undecided_verdict = undecided(launch.id, (*because, *hosts), launch)
        if undecided_verdict is not None:
            yield undecided_verdict
        elif certainly_several(nodes) and _is_address(hosts[0]) and not job.setting("local_addr", launch.scope):
            yield _by_address(launch.id, hosts[0])
        else:
            yield passed(launch.id)
    if not job.launches:
        variables = {name: job.setting(f"env.PET_{name}") for name in ("RDZV_BACKEND", "RDZV_ENDPOINT", "NNODES")}
        if all(variables.values()):
            several = certainly_several(job_value(variables["NNODES"]))
            c10d = texts(job_value(variables["RDZV_BACKEND"])) == ("c10d",)
            endpoint = variables["RDZV_ENDPOINT"][0]
            if several and c10d and _is_address(endpoint) and not job.setting("env.PET_LOCAL_ADDR"):
                yield _by_address(job.name, endpoint)
            else:
                yield passed(job.name)


def _is_address(claim: Claim) -> bool:
    found = [host_of(text) for text in texts(claim.value)]
    return bool(found) and all(
        host.count(".") == 3 and host.replace(".", "").isdecimal() and not is_loopback(host) and host != "0.0.0.0"
        for host in found
    )


def _by_address(subject: str, claim: Claim) -> Verdict:
    return failed(
        subject,
        f"{quoted(claim)} gives an address, but the ranks connect to the host name of the node of rank 0: if it"
        " does not resolve on other nodes, they hang after the rendezvous.",
        at=claim,
        remedy="Give each node's own address with --local-addr (PET_LOCAL_ADDR), or make sure that names resolve.",
    )
