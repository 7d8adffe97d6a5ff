"""Checks that a launcher reaches the job's nodes, and that its ranks get the job's variables and account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from preflight._util.hostnames import is_hostname
from preflight._util.sequences import grouped
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known, Launch
from preflight.model.recording import Facts, Fleet, Node, Observed, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.context.environment import bare_environments, plan_logins, set_by_job, unknown_bare_environments
from preflight_checks.plans import (
    all_of,
    combine_plans,
    has_launches,
    missing_facts,
    only_if,
    runs_on_several_machines,
    split,
    warning_check,
)
from preflight_checks.probes.environment import Login, Tool, logins, tools
from preflight_checks.requirements import find_node, fold, known_int, known_text, nodes_share_machine

#: At most this many logins are tried from the first node; in larger fleets they are spread evenly.
MAX_LOGINS = 64
#: Launchers that run on every node, each a program of that name.
_PER_NODE_LAUNCHERS = ("torchrun", "accelerate", "composer", "colossalai", "llamafactory-cli", "fleetrun")


def first_node(job: Job, fleet: Fleet, facts: Facts) -> tuple[Node | None, bool]:
    """Return the launcher's node, and whether that is certain (a batch script runs on the first node)."""
    master = fleet.master
    if master is None:
        return None, False
    inside = bare_environments(facts).get(master.name)
    return master, in_batch(job) or (inside is not None and "SLURM_JOB_ID" in inside.variables)


def applying_links(job: Job, fleet: Fleet) -> tuple[RemoteLaunch, ...]:
    return tuple(remote_launches(job)) if len(fleet.nodes) > 1 and not nodes_share_machine(fleet) else ()


def _targets(job: Job, fleet: Fleet, first: Node) -> dict[str, str]:
    """Return the other nodes under the names that the launcher uses; in a very large fleet, an even sample."""
    address_by_node: dict[str, str] = {}
    for claim in job.about("hosts"):
        for value in claim.alternatives:
            for host in value if isinstance(value, tuple) else ():
                node = find_node(fleet, str(host))
                if node is not None and is_hostname(str(host)):
                    address_by_node.setdefault(node.name, str(host))
    # NOD001 reports nodes without an agent.
    others = [node for node in fleet.reached if node.name != first.name]
    step = max(1, -(-len(others) // MAX_LOGINS))
    return {address_by_node.get(node.name, node.name): node.name for node in others[::step] if is_hostname(node.name)}


def _plan_logins(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    logging_in = [link for link in applying_links(job, fleet) if link.logs_in]
    first, _ = first_node(job, fleet, facts)
    if not logging_in or first is None or first.name not in {node.name for node in fleet.reached}:
        return
    params = {"targets": tuple(_targets(job, fleet, first)), "options": logging_in[0].ssh_options}
    claims = claims_of(job, logging_in[0])
    yield Request(probe_name(logins), first.name, params, because=claims, deadline_s=9.0)


@check("RMT001", "launcher-cannot-log-in", plan=_plan_logins, probes=(logins,), severity=Severity.ERROR)
def launcher_cannot_log_in(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A launcher that starts ranks over ssh can log in from the first node to all others without a prompt.

    What it checks: if deepspeed, mpirun, horovodrun or pdsh starts the ranks, `ssh -o BatchMode=yes` from the job's
    first node to every other node, with the launcher's own options for host keys.

    Why it matters: one host that requests a password or does not know the key blocks the launcher, or is missing from
    the job.

    Example: the key of node1 is missing from ~/.ssh/authorized_keys on node3.

    Fix: make `ssh -o BatchMode=yes node3 true` work on the first node.

    Known limits: a warning if the job may be started from another machine, such as the one that preflight runs on,
    where logins are known to work. With more than 64 other nodes, an even sample of them is tried.
    """
    applying = [link for link in applying_links(job, fleet) if link.logs_in]
    first, certain = first_node(job, fleet, facts)
    if not applying or first is None:
        yield not_applicable("logins between nodes", "no launcher of the job logs in to other nodes")
        return
    login_fact = facts.of(logins, first.name)
    if isinstance(login_fact, Unavailable):
        reason = (
            "blocked by NOD001" if login_fact.kind == "blocked" and first not in fleet.reached else login_fact.reason
        )
        yield unknown(f"logins from {first.name}", reason)
        return
    by = applying[0].by
    targets = _targets(job, fleet, first)
    failures = grouped((_login_problem(login), login) for login in login_fact.value.logins if login.exit_code != 0)
    for why, failing in failures.items():
        nodes = tuple(targets.get(login.target, login.target) for login in failing)
        yield _login_finding(first, by, why, failing, nodes, claims_of(job, applying[0]), certain=certain)
    if login_fact.value.untried:
        yield unknown(f"logins to {fold(login_fact.value.untried)}", "not tried before the deadline")
    if len(targets) < len(fleet.nodes) - 1:
        yield unknown("logins to all nodes", f"{len(targets)} of {len(fleet.nodes) - 1} nodes were tried")
    if not failures and login_fact.value.logins:
        yield passed(f"logins from {first.name} to {len(login_fact.value.logins)} nodes")


def _login_problem(login: Login) -> str:
    """Return ssh's error without the host name, so that one fault on many hosts is one finding."""
    lines = [line for line in login.said.splitlines() if line.strip()]
    if login.exit_code is None:
        return lines[-1] if lines else "no answer in time"
    message = lines[-1] if lines else f"ssh exited with {login.exit_code}"
    return re.sub(r"\S*@?" + re.escape(login.target) + r"\S*", "HOST", message)


def _login_finding(
    first: Node,
    by: str,
    problem: str,
    failing: list[Login],
    nodes: tuple[str, ...],
    claims: tuple[Claim, ...],
    *,
    certain: bool,
) -> Verdict:
    target = failing[0].target
    known_hosts = "known_hosts" in problem or "host key" in problem.lower()
    remedy = (
        f"On {first.name}, log in to {fold(nodes)} once manually and accept or reject the host key."
        if known_hosts
        else f"On {first.name}, make `ssh -o BatchMode=yes {target} true` work: put its public key into "
        f"~/.ssh/authorized_keys on {fold(nodes)}."
    )
    elsewhere = "" if certain else f" If {by} is started on another machine, that machine needs these logins."
    return failed(
        f"logins from {first.name} to {fold(nodes)}",
        f"{by} must log in from {first.name} to {fold(nodes)} without a password prompt, and that fails: {problem}."
        f"{elsewhere}",
        at=Evidence(
            "ssh", failing[0].said or problem, "`true` runs", f"ssh -o BatchMode=yes {target} true", first.name
        ),
        also=claims,
        nodes=nodes,
        remedy=remedy,
        certain=certain,
    )


def _wanted_tools(job: Job, fleet: Fleet, facts: Facts) -> Iterator[tuple[Node, tuple[str, ...], bool, str]]:
    """Yield each tool that the nodes need, whether the ranks' context must have it, and the program that needs it."""
    first, _ = first_node(job, fleet, facts)
    for link in applying_links(job, fleet):
        for node in fleet.reached:
            names = link.first if first is not None and node.name == first.name else link.others
            if names:
                yield node, names, False, link.by
    each = tuple(
        dict.fromkeys(
            launch.launcher
            for launch in job.launches
            if launch.launcher in _PER_NODE_LAUNCHERS
            and re.search(rf"(^|[\s\"'=]){launch.launcher}\b", launch.span.snippet)
        )
    )
    for node in fleet.reached if each else ():
        yield node, each, True, "the job's start script"


def _plan_tools(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node, names, context, _ in _wanted_tools(job, fleet, facts):
        yield Request(
            probe_name(tools), node.name, {"names": names, "beside": context}, context=context, deadline_s=8.0
        )


@check("RMT002", "launcher-tool-missing", plan=_plan_tools, probes=(tools,), severity=Severity.ERROR)
def launcher_tool_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The programs that start the ranks exist on the nodes that need them, and run.

    What it checks: pdsh, mpirun, horovodrun and ssh on the node where the job is started, Open MPI's daemon on the
    others in a non-interactive shell, and torchrun and the like on every node if each node starts its own.

    Why it matters: the launcher stops with "command not found" on one node, after it has started the others.

    Example: `orted` is only on the PATH of a login shell, because ~/.bashrc returns early without a terminal.

    Fix: install the tool, or use mpirun with `--prefix` or its full path.

    Known limits: tools that a module or a container provides are seen only in the ranks' context. The finding is only a
    warning if a tool is missing on all nodes, because setup lines may provide it, or on the first node if the job may
    be started from another machine.
    """
    wanted_tools = list(_wanted_tools(job, fleet, facts))
    if not wanted_tools:
        yield not_applicable("launcher tools", "the job uses no program that starts ranks")
        return
    yield from missing_facts(facts, tools, "launcher tools")
    tools_by_node: dict[tuple[str, str], dict[str, Tool]] = {}
    paths: dict[str, str] = {}
    purposes = {(name, context): by for _, names, context, by in wanted_tools for name in names}
    for row in facts.each(tools):
        if not isinstance(row.fact, Observed):
            continue
        paths[row.node] = row.fact.value.search_path
        for tool in row.fact.value.tools:
            by = purposes.get((tool.name, row.asked.context))
            if by is not None:
                tools_by_node.setdefault((tool.name, by), {})[row.node] = tool
    _, certain = first_node(job, fleet, facts)
    wrong = False
    for (name, by), node_tools in tools_by_node.items():
        missing = tuple(node for node, tool in node_tools.items() if not tool.path)
        if missing:
            wrong = True
            yield _missing_tools_verdict(name, by, missing, node_tools, paths, certain=certain)
        late = {node: tool for node, tool in node_tools.items() if tool.problem}
        for problem in dict.fromkeys(tool.problem for tool in late.values()):
            nodes = [node for node, tool in late.items() if tool.problem == problem]
            yield unknown(f"{name} on {fold(nodes)}", problem)
        versions = split({node: tool.version for node, tool in node_tools.items() if tool.version})
        if versions is not None and versions.odd:
            wrong = True
            node, version = versions.first_odd
            yield failed(
                f"{name}: version",
                f"{name} has different versions: {versions.description}",
                at=Evidence("launcher tool", version, versions.common, f"{node_tools[node].path} --version", node),
                nodes=tuple(versions.odd),
                remedy=f"Install one version of {name} on all nodes.",
                certain=False,
            )
    if tools_by_node and not wrong:
        yield passed(f"launcher tools: {fold(sorted({name for name, _ in tools_by_node}))}")


def _missing_tools_verdict(
    name: str, by: str, nodes: tuple[str, ...], node_tools: dict[str, Tool], paths: dict[str, str], *, certain: bool
) -> Verdict:
    everywhere = len(nodes) == len(node_tools)
    describe = " or ".join(name.split("|"))
    has = [node for node, tool in node_tools.items() if tool.path]
    sure = bool(has) or certain
    return failed(
        f"{name} on {fold(nodes)}",
        f"{describe}, which {by} needs, is missing on {fold(nodes)}"
        + (f", and is {node_tools[has[0]].path} on {fold(has, 4)}" if has else "")
        + ("" if sure else "; setup commands may add it, or the machine that starts the job may have it"),
        at=Evidence("launcher tool", f"PATH={paths[nodes[0]]}", name, f"command -v {name.split('|')[0]}", nodes[0]),
        nodes=nodes,
        remedy=f"Install {describe} on {fold(nodes)}, or add its folder to the PATH of non-interactive shells.",
        certain=sure and not (everywhere and not certain),
    )


#: Batch systems whose own daemons start mpirun's ranks, and whose batch script runs on the first node.
_SCHEDULERS = ("slurm", "pbs", "lsf", "sge", "cobalt", "flux", "kubernetes")
_OVER_SSH = ("pdsh", "clush", "ssh", "pssh")
#: Prefixes of the variables that DeepSpeed's launcher forwards: EXPORT_ENVS of deepspeed/launcher/runner.py (with NCCL
#: before 0.9) and what its CUDA accelerator adds (accelerator/cuda_accelerator.py, export_envs).
DEEPSPEED_EXPORTS = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "DLTS_")


@dataclass(frozen=True, slots=True)
class RemoteLaunch:
    """A launch that starts ranks on all nodes from one of them.

    Args:
        launch: the launch.
        by: the programs it uses, for messages: `deepspeed (pdsh)`, `mpirun`.
        first: tools needed on the node where it starts; `a|b` means either.
        others: tools needed on every other node, in a non-interactive shell.
        logs_in: whether it logs in to the other nodes by ssh.
        ssh_options: the arguments it passes to ssh that affect the login.
        exports: prefixes of the variables it forwards; None if it forwards all.
    """

    launch: Launch
    by: str
    first: tuple[str, ...]
    others: tuple[str, ...] = ()
    logs_in: bool = True
    ssh_options: tuple[str, ...] = ()
    exports: tuple[str, ...] | None = ()


def in_batch(job: Job) -> bool:
    """Return whether a batch system runs the start script, on the first node."""
    return any(claim.source in _SCHEDULERS and not claim.scope.launch for claim in job.claims)


def remote_launches(job: Job) -> Iterator[RemoteLaunch]:
    """Yield every launch of the job that starts ranks on other nodes."""
    for launch in job.launches:
        found_launch = _remote_launch(job, launch)
        if found_launch is not None and (known_int(job, "nodes", launch.scope) or 2) > 1:
            yield found_launch


def _remote_launch(job: Job, launch: Launch) -> RemoteLaunch | None:
    programs = (launch.launcher, *launch.wrappers)
    over = next((name for name in programs if name in _OVER_SSH), None)
    if over is not None:
        tools = (over,) if over in ("ssh", "pdsh", "clush") else ("pssh|parallel-ssh",)
        return RemoteLaunch(launch, over, tuple(dict.fromkeys((*tools, "ssh"))))
    if "srun" in programs:
        return None
    if launch.launcher == "deepspeed":
        return _deepspeed(job, launch, _selected_launcher(job, launch) or "pdsh")
    if launch.launcher == "accelerate":
        chosen = _selected_launcher(job, launch)
        return _deepspeed(job, launch, chosen) if chosen and chosen != "standard" else None
    if "horovodrun" in programs:
        return RemoteLaunch(
            launch,
            "horovodrun",
            ("horovodrun", "ssh"),
            # horovod/runner/util/remote.py; the null file keeps ssh from writing the user's known_hosts.
            ssh_options=("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            exports=None,
        )
    if "mpirun" in programs and not in_batch(job):
        open_mpi = job.value("mpi_implementation", launch.scope) == Known("openmpi")
        if open_mpi:
            return RemoteLaunch(
                launch,
                "mpirun",
                ("mpirun", "ssh"),
                ("orted|prted",),
                exports=("OMPI_", *_passed_variables(job, launch)),
            )
        return RemoteLaunch(launch, "mpirun", ("mpirun|mpiexec", "ssh"), exports=None)
    return None


def _deepspeed(job: Job, launch: Launch, by: str) -> RemoteLaunch | None:
    if job.value("each_node_itself", launch.scope) == Known(True) or by == "slurm":
        return None
    if by == "pdsh":
        return RemoteLaunch(launch, "deepspeed (pdsh)", ("pdsh", "ssh"), exports=DEEPSPEED_EXPORTS)
    if by == "openmpi":
        return RemoteLaunch(
            launch, "deepspeed (mpirun)", ("mpirun", "ssh"), ("orted|prted",), exports=DEEPSPEED_EXPORTS
        )
    return RemoteLaunch(launch, f"deepspeed ({by})", ("mpirun|mpiexec", "ssh"), exports=None)


def _selected_launcher(job: Job, launch: Launch) -> str:
    """Return the launcher that the job selects for DeepSpeed; empty if it selects none."""
    stated = job.value("multinode_launcher", launch.scope)
    return str(stated.value).lower() if isinstance(stated, Known) else ""


def _passed_variables(job: Job, launch: Launch) -> tuple[str, ...]:
    return tuple(
        str(name)
        for claim in job.setting("passed_variables", launch.scope)
        for value in claim.alternatives
        if isinstance(value, tuple)
        for name in value
    )


def claims_of(job: Job, found_launch: RemoteLaunch) -> tuple[Claim, ...]:
    """Return the claims which show that the launch has several nodes."""
    scope = found_launch.launch.scope
    return tuple(dict.fromkeys((*job.setting("hosts", scope), *job.setting("nodes", scope))))


#: Variables whose absence on other nodes changes how ranks communicate or compute.
_RELEVANT_VARIABLES = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|UCC|FI|TP|HOROVOD|TORCH|PYTORCH|CUDA|CUBLAS|OMP|MKL|PADDLE|FLAGS|DMLC|MASTER|WORLD|HF|TRANSFORMERS)_"
    r"|LD_LIBRARY_PATH$|LD_PRELOAD$|PYTHONPATH$|PYTHONHASHSEED$|WORLD_SIZE$|XLA_FLAGS$"
)


@warning_check("RMT003", "variables-not-handed-on", plan=combine_plans(plan_logins, when=applying_links))
def variables_not_handed_on(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Variables that the job's script exports reach the ranks that its launcher starts on other nodes.

    What it checks: for launchers that start ranks over ssh, each exported variable of a communication or computing
    library is one that the launcher forwards (including through DeepSpeed's .deepspeed_env on the first node), or that
    a non-interactive login sets on each other node.

    Why it matters: only the ranks on the launcher's node see the setting. The others use another interface, transport
    or number of threads, and the first collective hangs or is slow.

    Example: `export GLOO_SOCKET_IFNAME=eth0` and `deepspeed --hostfile hosts train.py`: DeepSpeed forwards only NCCL_,
    UCX_ and PYTHON variables.

    Fix: write the variable to .deepspeed_env, pass `-x NAME` to mpirun, or set it in ~/.bashrc on every node.

    Known limits: variables that the program sets itself are not seen. If the files list mpirun's hosts, MPI003 reports
    this from the files alone.
    """
    applying = [link for link in applying_links(job, fleet) if link.exports is not None]
    first, _ = first_node(job, fleet, facts)
    if not applying or first is None:
        yield not_applicable("variables", "no launcher of the job starts ranks over ssh without forwarding variables")
        return
    blind = tuple(unknown_bare_environments(facts, "variables"))
    yield from blind
    observed = bare_environments(facts)
    others = {node: environment for node, environment in observed.items() if node != first.name}
    if not others:
        if not blind:
            yield unknown("variables", "the environments of all other nodes are unknown")
        return
    exported = {
        name for file in (observed[first.name].export_files if first.name in observed else []) for name in file.settings
    }
    lost: dict[tuple[str, tuple[str, ...]], list[Claim]] = {}
    for link in applying:
        for name, claims in set_by_job(job, known=False).items():
            own = [claim for claim in claims if claim.scope.covers(link.launch.scope) and claim.source == "environment"]
            handed = name in exported or name.startswith(link.exports or ())
            if (
                not own
                or handed
                or not _RELEVANT_VARIABLES.match(name)
                or known_text(job, f"env.{name}", link.launch.scope) == ""
            ):
                continue
            missing = tuple(
                node
                for node, environment in others.items()
                if not _is_held(name, environment.variables, environment.digests)
            )
            if missing:
                lost.setdefault((link.by, missing), []).append(own[0])
    for (by, nodes), dropped in lost.items():
        names = [claim.quantity.removeprefix("env.") for claim in dropped]
        yield _not_forwarded_finding(by, nodes, names, dropped)
    if not lost:
        yield passed(f"variables on {len(others)} nodes")


def _is_held(name: str, *held: dict[str, str]) -> bool:
    return any(name in some for some in held)


def _not_forwarded_finding(by: str, nodes: tuple[str, ...], names: list[str], claims: list[Claim]) -> Verdict:
    how = {
        "mpirun": "add " + " ".join(f"-x {name}" for name in names[:4]) + " to the mpirun command",
        "pdsh": "set them in the command that pdsh runs",
        "clush": "set them in the command that clush runs",
        "ssh": "set them in the command that ssh runs",
    }.get(by, "write them to .deepspeed_env next to the start script, one NAME=value per line")
    return failed(
        f"{fold(names)} on {fold(nodes)}",
        f"{by} does not forward {fold(names)}, and a non-interactive login on {fold(nodes)} does not set "
        f"{'it' if len(names) == 1 else 'them'}: ranks there run without what the job's script exports",
        at=claims[0],
        also=[
            *claims[1:4],
            Evidence("environment", "not set", names[0], f"ssh {nodes[0]} printenv {names[0]}", nodes[0]),
        ],
        nodes=nodes,
        remedy=f"{how[0].upper()}{how[1:]}.",
    )


@warning_check(
    "RMT004", "accounts-differ", plan=combine_plans(plan_logins, when=all_of(runs_on_several_machines, has_launches))
)
@only_if(all_of(runs_on_several_machines, has_launches), "accounts", "the job has one node, or starts no ranks")
def accounts_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The job's user is the same account with the same id on every node.

    What it checks: name and id of the user that runs preflight's processes, and therefore the job's, on each node.

    Why it matters: files on a shared file system belong to a user id. A rank with a different id cannot read the data
    or write the checkpoint, and launchers that do not pass a user name log in as another user.

    Example: on node3 `alice` is 1003, on the others 1001.

    Fix: give the account the same id everywhere, or name the user in ~/.ssh/config.

    Known limits: a container may map ids.
    """
    blind = tuple(unknown_bare_environments(facts, "accounts"))
    yield from blind
    observed = bare_environments(facts)
    accounts = split({node: f"{seen.user or '?'} ({seen.uid})" for node, seen in observed.items() if seen.uid >= 0})
    if accounts is None:
        if not blind:
            yield unknown("accounts", "the user is unknown on every node")
    elif accounts.odd:
        node, account = accounts.first_odd
        yield failed(
            "accounts",
            f"the job's user differs: {accounts.description}",
            at=Evidence("account", account, accounts.common, "id", node),
            nodes=tuple(accounts.odd),
            remedy=f"Run the job under an account with the same id on every node; check {fold(accounts.odd)}.",
        )
    else:
        yield passed(f"account {accounts.common} on {len(accounts.agreeing)} nodes")
