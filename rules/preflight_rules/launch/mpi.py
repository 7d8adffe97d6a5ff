"""mpirun (slots, network interfaces, variables that do not reach other hosts), and options and hosts of horovodrun."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, joined, placed, quoted
from preflight.plugins.questions import Asked, LaunchQuestion, Stated, launches_with
from preflight_rules.launches import SCHEDULERS, certainly_several

#: Variables of communication libraries, which must be the same on all ranks.
_LIBRARY_VARIABLES = re.compile(
    r"env\.(?:(?:NCCL|GLOO|UCX|FI|RCCL|HOROVOD|TORCH|PYTORCH|CUBLAS|NVTE|PADDLE|FLAGS|OMP|MKL|XLA|TF|HF|TRANSFORMERS|WANDB)_\w+"
    r"|CUDA_(?!HOME|PATH|ROOT)\w+|MASTER_ADDR|MASTER_PORT|LD_LIBRARY_PATH|PYTHONPATH)"
)


def _is_mpirun(launch: Launch) -> bool:
    """Return whether mpirun itself starts the ranks, not horovodrun."""
    return "mpirun" in launch.wrappers


def _chooses_hosts_itself(stated: Stated[Launch]) -> bool:
    """Return whether the launcher may be Open MPI's mpirun, without a scheduler that provides the hosts."""
    is_mpich = _implementation(stated.job, stated.launch) == ("mpich",)
    return _is_mpirun(stated.launch) and not _has_scheduler(stated.job) and not is_mpich


def _all_hosts(job: Job, scope: Scope) -> tuple[Claim, ...]:
    return job.value_claims("hosts", scope)


def _interfaces(job: Job, scope: Scope) -> tuple[Claim, ...]:
    names = ("env.OMPI_MCA_btl_tcp_if_include", "env.OMPI_MCA_oob_tcp_if_include")
    return tuple(claim for name in names for claim in job.setting(name, scope))


def _mpi_launches(job: Job) -> Iterator[Launch]:
    for launch in job.launches:
        if _is_mpirun(launch):
            yield launch


def _has_scheduler(job: Job) -> bool:
    return any(claim.source in SCHEDULERS and not claim.scope.launch for claim in job.claims)


def _implementation(job: Job, launch: Launch) -> tuple[str, ...]:
    implementations = texts(job_value(job.setting("mpi_implementation", launch.scope)))
    variables_read = {text for claim in job.about("variable_read", launch.scope) for text in texts(claim.value)}
    # A program that reads OMPI_COMM_WORLD_RANK is written for Open MPI.
    return implementations or (
        ("openmpi",) if any(name.startswith("OMPI_COMM_WORLD") for name in variables_read) else ()
    )


@rule(
    "MPI001",
    "mpi-hosts-without-slots",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no mpirun is given a list of hosts",
    each=launches_with("tasks", _all_hosts, where=_chooses_hosts_itself),
)
def mpi_hosts_without_slots(question: LaunchQuestion) -> Verdict | None:
    """mpirun starts more processes than there are hosts in its list, and no host has a number of slots.

    What it checks: If Open MPI's mpirun is given `-np` and a list of hosts, and starts more processes than there are
    hosts, each host has a number of slots (`slots=8`, `host:8`).

    Why it matters: A host without slots counts as one slot in a `--host` list; in a hostfile it counts as one slot, or
    as one for each core: mpirun stops with "not enough slots available", or puts all ranks on the first hosts.

    Example: `mpirun -np 16 --hostfile hosts ./all_reduce_perf`, where `hosts` contains two addresses without slots.

    Fix: Write `slots=8` after each host, with as many slots as it has GPUs.

    Known limits: Nothing is reported for MPICH and Intel MPI, which cycle through the list, for `--oversubscribe`, or
    inside a batch job, whose allocation defines the slots.
    """
    tasks, hosts = question.of
    lists = [value for claim in hosts for value in claim.alternatives if isinstance(value, tuple)]
    job, launch = question.of.job, question.of.launch
    slots = [c for c in job.about("host_slots") if c.scope.launch in ("", question.subject)]
    requested = numbers(job_value(tasks))
    if not all(lists):
        return unknown(question.subject, f"{quoted(hosts[0])} contains no host", at=hosts[0])
    if (
        slots
        or not lists
        or not requested
        or job.setting("oversubscribe", launch.scope)
        or min(requested) <= max(len(members) for members in lists)
    ):
        return None
    return _missing_slots_finding(launch, tasks[0], hosts[0], min(requested), len(lists[0]))


def _missing_slots_finding(launch: Launch, tasks: Claim, hosts: Claim, requested: int, available: int) -> Verdict:
    slots_per_host, rest = divmod(requested, available)
    in_file = hosts.source == "hostfile"
    slots = str(slots_per_host) if not rest else "N"
    return failed(
        launch.id,
        f"{quoted(tasks)} requests {counted(requested, 'process', 'processes')} on {counted(available, 'host')}, but "
        f"{hosts.span.path if in_file else quoted(hosts)} does not give the hosts' slots: Open MPI then uses the "
        "number of cores, or one slot per host, and may stop with 'not enough slots available'.",
        at=hosts,
        also=((tasks, counted(requested, "process", "processes")),),
        remedy=f"Write `slots={slots}` after each host."
        if in_file
        else f"Write each host as `host:{slots}`, with its number of slots.",
    )


@rule(
    "MPI002",
    "mpi-interface-left-open",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no mpirun is given a list of hosts",
    each=launches_with("hosts", also=("nodes",), where=_chooses_hosts_itself),
)
def mpi_interface_left_open(question: LaunchQuestion) -> Verdict | None:
    """mpirun starts ranks on several hosts without selecting a network.

    What it checks: If Open MPI's mpirun is given several hosts, `btl_tcp_if_include` or `btl_tcp_if_exclude` is set on
    the line or in the environment, or TCP is not used at all. If an ssh port shows that the hosts are containers, it is
    a warning, otherwise advice.

    Why it matters: Open MPI tells peers the address of every interface it finds. Bridges of containers and virtual
    machines have the same addresses on every host, or addresses that others cannot reach: "connect() failed: No route
    to host", or a hang.

    Example: `mpirun -np 4 -H 10.0.0.1:2,10.0.0.2:2 -mca plm_rsh_args "-p 12345" python train.py`.

    Fix: Add `-mca btl_tcp_if_include eth0` with the interface, or the subnet, that all hosts share.

    Known limits: Whether a host has such bridges is checked by `preflight check`. Nothing is reported for MPICH and
    Intel MPI, or for hosts that a scheduler chooses.
    """
    hosts, nodes = question.of
    job, launch = question.of.job, question.of.launch
    if not certainly_several(job_value(nodes)) or _chooses_network(job, launch):
        return None
    return _no_network_finding(job, launch, hosts[0])


def _chooses_network(job: Job, launch: Launch) -> bool:
    for name in ("btl_tcp_if_include", "btl_tcp_if_exclude"):
        if job.setting(f"env.OMPI_MCA_{name}", launch.scope):
            return True
    for name in ("btl", "pml", "mtl"):
        for claim in job.setting(f"env.OMPI_MCA_{name}", launch.scope):
            transports = texts(claim.value)
            # An unknown transport counts as a choice, and so does any transport other than TCP.
            if name != "btl" and transports != ("ob1",):
                return True
            if name == "btl" and (not transports or any(_avoids_tcp(text) for text in transports)):
                return True
    return False


def _avoids_tcp(text: str) -> bool:
    names = text.lstrip("^").split(",")
    return ("tcp" in names) if text.startswith("^") else ("tcp" not in names)


def _no_network_finding(job: Job, launch: Launch, hosts: Claim) -> Verdict:
    ssh = job.setting("env.OMPI_MCA_plm_rsh_args", launch.scope)
    port = next((c for c in ssh for text in texts(c.value) if re.search(r"-p\s*\d+", text)), None)
    return failed(
        launch.id,
        f"{quoted(hosts)} names several hosts, but no option of mpirun selects a network"
        + (f"; {quoted(port)} shows that sshd, and therefore the ranks, run in containers" if port is not None else "")
        + ": Open MPI advertises every interface, including bridges, and peers may connect to an unreachable one.",
        at=hosts,
        also=((port, "ssh into a container"),) if port is not None else (),
        remedy="Add `-mca btl_tcp_if_include eth0`, with the interface or the subnet that all hosts share.",
        severity=None if port is not None else Severity.INFO,
    )


@rule(
    "MPI003",
    "mpi-variable-stays-behind",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no mpirun of Open MPI is given a list of hosts",
)
def mpi_variable_stays_behind(job: Job) -> Iterator[Verdict]:
    """A variable is exported for the ranks, but mpirun does not pass it on to other hosts.

    What it checks: If Open MPI's mpirun starts ranks on several listed hosts, the variables of frameworks and
    communication libraries that the script exports (NCCL_, UCX_, CUDA_, FLAGS_, MASTER_ADDR, PYTHONPATH ...) are passed
    on with `-x`. In an MPIJob, this applies to every variable of the launcher that the workers do not set.

    Why it matters: Over ssh only the ranks on the first host see what the script exported. The others run with another
    interface, another transport or no address, and the first collective hangs.

    Example: `export NCCL_SOCKET_IFNAME=eth0` and `mpirun --allow-run-as-root -np 16 -H a:8,b:8 python train.py`.

    Fix: Add `-x NCCL_SOCKET_IFNAME` to the mpirun command.

    Known limits: Nothing is reported where Open MPI is not certain (MPICH and Intel MPI pass all variables on), inside
    a batch job, whose daemons pass the environment on, or for the variables in mca_base_env_list or of the command
    that mpirun starts.
    """
    for launch in _mpi_launches(job):
        hosts, nodes = job.setting("hosts", launch.scope), job.setting("nodes", launch.scope)
        if not hosts or _implementation(job, launch) != ("openmpi",) or _has_scheduler(job):
            continue
        passed_on = job.setting("passed_variables", launch.scope)
        if job.setting("env.OMPI_MCA_mca_base_env_list", launch.scope) or not passed_on:
            continue
        if undecided_verdict := undecided(launch.id, (*passed_on, *hosts, *nodes), launch):
            yield undecided_verdict
            continue
        unforwarded = [
            claim for claim in _exported_claims(job, launch, passed_on[0]) if certainly_several(job_value(nodes))
        ]
        for claim in unforwarded[:3]:
            name = claim.quantity.removeprefix("env.")
            yield failed(
                launch.id,
                f"{placed(claim)} is exported, but mpirun does not pass it to other hosts without `-x {name}`: the"
                " ranks there run without it.",
                at=claim,
                also=((hosts[0], "other hosts"),),
                remedy=f"Add `-x {name}` to the mpirun command.",
            )
        if not unforwarded:
            yield passed(launch.id)
    for launch, workers in _operator_launches(job):
        passed_on = job.setting("passed_variables", launch.scope)
        if undecided_verdict := undecided(launch.id, (*passed_on, workers), launch):
            yield undecided_verdict
            continue
        unforwarded = _unforwarded_claims(job, launch, workers, passed_on)
        for claim in unforwarded[:3]:
            name = claim.quantity.removeprefix("env.")
            yield failed(
                launch.id,
                f"{quoted(claim)} is set for the launcher, but the {joined(workers.alternatives)} workers do not get "
                f"it: mpirun forwards it only with `-x {name}`.",
                at=claim,
                also=((workers, "run the ranks"),),
                remedy=f"Add `-x {name}` to mpirun, or also set the variable for the workers.",
            )
        if not unforwarded:
            yield passed(launch.id)


def _operator_launches(job: Job) -> Iterator[tuple[Launch, Claim]]:
    """Yield each launch of an MPIJob that may use Open MPI, with the claim about its number of workers."""
    for launch in _mpi_launches(job):
        implementations = _implementation(job, launch)
        if job.setting("hosts", launch.scope) or implementations not in ((), ("openmpi",)):
            continue
        for kind in job.about("workload"):
            if kind.alternatives != ("kubeflow.org/MPIJob",):
                continue
            workload_launches = [c for c in job.about("workload_launch") if c.scope.launch == kind.scope.launch]
            counts = [
                claim
                for claim in job.about("pod_replicas")
                if claim.scope.launch == kind.scope.launch and claim.scope.role == "Worker"
            ]
            if counts and any(launch.id in claim.alternatives for claim in workload_launches):
                yield launch, counts[0]


def _unforwarded_claims(job: Job, launch: Launch, workers: Claim, passed_on: Sequence[Claim]) -> list[Claim]:
    """Return the launcher's variables that mpirun does not pass on and the workers do not set."""
    names = {str(name) for claim in passed_on for value in claim.alternatives for name in _as_tuple(value)}
    worker_variables = {
        claim.quantity for claim in job.claims if claim.scope == workers.scope and claim.quantity.startswith("env.")
    }
    return [
        claim
        for claim in job.environment(launch.scope)
        if claim.span.path == workers.span.path
        and claim.source == "environment"
        and claim.quantity not in worker_variables
        and claim.quantity.removeprefix("env.") not in names
        and not claim.quantity.startswith("env.OMPI_")
        and not any(_is_set_by_ranks(claim, each) for each in passed_on)
        # What a script exports may be for the script itself.
        and (_LIBRARY_VARIABLES.fullmatch(claim.quantity) or not claim.spelling.startswith(f"{claim.quantity[4:]}="))
    ]


def _is_set_by_ranks(claim: Claim, passed_on: Claim) -> bool:
    """Return whether the command that mpirun starts sets a variable itself: `mpirun -x A bash -c 'export B=1; ...'`."""
    place, option = claim.span, passed_on.span
    return place.path == option.path and (place.line, place.column) > (option.line, option.column)


def _as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


def _exported_claims(job: Job, launch: Launch, passed_on: Claim) -> list[Claim]:
    """Return the variables of libraries that the script exports and mpirun does not pass on."""
    names = {str(name) for value in passed_on.alternatives if isinstance(value, tuple) for name in value}
    return [
        claim
        for claim in job.environment(launch.scope)
        if _LIBRARY_VARIABLES.fullmatch(claim.quantity)
        and claim.source == "environment"
        and claim.quantity.removeprefix("env.") not in names
        and not claim.condition
        and not _is_set_by_ranks(claim, passed_on)
    ]


#: Interfaces that every host has and that do not reach other hosts.
_LOCAL = re.compile(r"(?:lo|lo0|docker\d*|virbr\d*|br-[0-9a-f]+|veth\w*|cni\d*|flannel\S*|cali\w*|127\..*)")


@rule(
    "MPI004",
    "mpi-interface-leads-nowhere",
    severity=Severity.ERROR,
    otherwise="no option of mpirun names an interface",
    each=launches_with(_interfaces, "nodes", where=lambda stated: _is_mpirun(stated.launch)),
)
def mpi_interface_leads_nowhere(question: LaunchQuestion) -> Verdict | None:
    """mpirun uses an interface that does not reach other hosts for ranks on several hosts.

    What it checks: `btl_tcp_if_include` and `oob_tcp_if_include` of a run over several hosts name at least one
    interface that is neither the loopback interface nor a bridge for containers or virtual machines.

    Why it matters: Ranks of different hosts cannot connect: "No route to host", "Unable to reach", or a hang in
    MPI_Init.

    Example: `mpirun -np 8 -H a:4,b:4 -mca btl_tcp_if_include docker0 python train.py`.

    Fix: Name the interface or the subnet that all hosts share: `-mca btl_tcp_if_include 10.0.0.0/16`.

    Known limits: Interfaces with any other name are assumed to reach the other hosts.
    """
    interfaces, nodes = question.of
    local = next((claim for claim in interfaces if _is_node_local(texts(claim.value))), None)
    if local is None or not certainly_several(job_value(nodes)):
        return None
    return failed(
        question.subject,
        f"{quoted(local)} names an interface that cannot reach other hosts, but {placed(nodes[0])} starts ranks on "
        "several hosts.",
        at=local,
        also=((nodes[0], "several hosts"),),
        remedy="Name the interface, or the subnet, that all hosts share.",
    )


def _is_node_local(claims: tuple[str, ...]) -> bool:
    return bool(claims) and all(
        all(_LOCAL.fullmatch(name.strip()) for name in text.split(",") if name.strip()) for text in claims
    )


@rule(
    "MPI005",
    "mpirun-as-root",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no mpirun certainly runs as root",
)
def mpirun_as_root(job: Job) -> Iterator[Verdict]:
    """Open MPI's mpirun is started as root, which it rejects.

    What it checks: If mpirun comes after `sudo`, or runs in a container that `docker run` or `podman run` starts, it
    has `--allow-run-as-root` or both equivalent variables.

    Why it matters: Open MPI stops with "mpirun has detected an attempt to run as root" before anything is started.

    Example: `docker run --gpus all image mpirun -np 8 -x NCCL_DEBUG python train.py`.

    Fix: Run as another user, or add `--allow-run-as-root`.

    Known limits: An image that sets another user is not recognized; nothing is reported if Open MPI is not certain or
    the line names a user.
    """
    for launch in _mpi_launches(job):
        before = launch.wrappers[: launch.wrappers.index("mpirun")]
        root_wrapper = next((name for name in before if name in ("sudo", "docker", "podman")), None)
        if root_wrapper is None or _implementation(job, launch) != ("openmpi",):
            continue
        variables = [job.setting(f"env.OMPI_ALLOW_RUN_AS_ROOT{end}", launch.scope) for end in ("", "_CONFIRM")]
        program = job.setting("mpi_implementation", launch.scope)[0]
        unresolved = undecided(launch.id, job.setting("passed_variables", launch.scope), launch)
        if job.setting("runs_as_root", launch.scope) or all(variables) or _USER.search(program.span.snippet):
            yield passed(launch.id)
        elif unresolved is not None:
            yield unknown(launch.id, "some options of mpirun are unknown", at=launch)
        else:
            yield failed(
                launch.id,
                f"{quoted(program)} runs as root here ({root_wrapper}) without --allow-run-as-root: Open MPI stops "
                "immediately.",
                at=program,
                also=((launch, "never started"),),
                remedy="Run it as another user, or add --allow-run-as-root.",
            )


_USER = re.compile(r"\s(?:-u|--user)[\s=]")


def _header_lookup(quantity: str) -> Asked:
    """Return a function that looks up the Slurm header's claims about a quantity."""
    return lambda job, scope: [
        claim for claim in job.about(quantity) if claim.source == "slurm" and not claim.scope.launch
    ]


def _takes_slots_of_slurm(stated: Stated[Launch]) -> bool:
    job, scope = stated.job, stated.scope
    has_header = any(claim.source == "slurm" for claim in job.about("batch_directive"))
    sets_slots = job.setting("hosts", scope) or job.setting("oversubscribe", scope) or job.about("host_slots", scope)
    changes_mapping = _CHOOSES_SLOTS.search(stated.launch.span.snippet) is not None or any(
        claim.quantity.startswith(("env.OMPI_MCA_r", "env.PRTE_MCA")) for claim in job.claims
    )
    in_container = not {"docker", "podman"}.isdisjoint(stated.launch.wrappers)
    is_mpich = _implementation(job, stated.launch) == ("mpich",)
    return _is_mpirun(stated.launch) and has_header and not (sets_slots or changes_mapping or in_container or is_mpich)


#: Options of mpirun that set slots elsewhere, or allow more ranks than slots.
_CHOOSES_SLOTS = re.compile(r"oversubscribe|\bras\b|overload", re.IGNORECASE)


@rule(
    "MPI006",
    "mpi-ranks-beyond-slots-of-allocation",
    severity=Severity.WARNING,
    otherwise="no mpirun takes its slots from a Slurm allocation",
    each=launches_with(
        "tasks",
        also=(_header_lookup("tasks"), _header_lookup("tasks_per_node"), _header_lookup("nodes")),
        where=_takes_slots_of_slurm,
    ),
)
def mpi_ranks_beyond_slots_of_allocation(question: LaunchQuestion) -> Verdict | None:
    """mpirun starts more ranks than the Slurm allocation has tasks.

    What it checks: In a batch script, `-np` of Open MPI's mpirun is at most the number of tasks that the header
    requests.

    Why it matters: Open MPI counts one slot per task of the allocation, regardless of its CPUs and GPUs, and stops with
    "There are not enough slots available in the system".

    Example: `#SBATCH --nodes=1 --ntasks-per-node=1` and `mpirun -np 8 python train.py`.

    Fix: `#SBATCH --ntasks-per-node=8`.

    Known limits: If the header does not request a number of tasks, Slurm derives it from the CPUs, which are unknown.
    With a list of hosts, `--oversubscribe`, or in a container, nothing is judged. Options on sbatch's command line are
    not seen.
    """
    tasks, total, per_node_tasks, nodes = question.of
    requested = max(numbers(job_value(tasks)), default=0)
    slots = numbers(job_value(total)) or tuple(
        per_node * node
        for per_node in numbers(job_value(per_node_tasks)) or (1,)
        for node in numbers(job_value(nodes)) or (1,)
    )
    if not (total or per_node_tasks) or not requested or requested <= max(slots):
        return None
    task_claim = (total or per_node_tasks)[0]
    return failed(
        question.subject,
        f"{quoted(tasks[0])} starts {counted(requested, 'rank')}, but the allocation has"
        f" {counted(max(slots), 'task')}, and Open MPI counts one slot per task: it stops with 'not enough slots'.",
        at=tasks[0],
        also=((task_claim, counted(max(slots), "task")),),
        remedy=f"Request {counted(requested, 'task')}: --ntasks={requested}.",
    )


#: horovod/runner/common/util/hosts.py, parse_hosts_and_slots.
_HOST = re.compile(r"[\w.-]+:[0-9]+")
#: A hostfile line (parse_host_files).
_LINE = re.compile(r"\S+\s+slots=[0-9]+")


#: The options of an elastic job.
_ELASTIC = ("min_tasks", "max_tasks", "host_discovery")


def _is_horovod(launch: Launch) -> bool:
    return "horovodrun" in launch.wrappers


def _horovod_launches(job: Job) -> Iterator[Launch]:
    for launch in job.launches:
        if _is_horovod(launch):
            yield launch


@rule("HVD001", "horovod-hosts-without-slots", severity=Severity.ERROR, otherwise="no horovodrun is given hosts")
def horovod_hosts_without_slots(job: Job) -> Iterator[Verdict]:
    """horovodrun is given a host without its number of slots.

    What it checks: Every host in `-H` is written `host:slots`, and every line of horovodrun's hostfile `host slots=N`.

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
            faulty = _lines_without_slots(claim) if in_file else _hosts_without_slots(claim)
            if verdict is None and faulty:
                verdict = failed(
                    launch.id,
                    f"{quoted(claim)} has `{faulty[0]}`, but horovodrun accepts only `HOST slots=N` in a hostfile, "
                    "and stops."
                    if in_file
                    else f"{quoted(claim)} gives no number of slots for {faulty[0]}; horovodrun requires one for "
                    "every host and stops with 'Invalid host input'.",
                    at=claim,
                    also=((launch, "started here"),),
                    remedy=f"Write `{faulty[0].split()[0].partition(':')[0]} slots=N`."
                    if in_file
                    else f"Write `{faulty[0]}:N`, with its number of slots.",
                )
            yield verdict or passed(launch.id)


def _hosts_without_slots(claim: Claim) -> list[str]:
    """Return the hosts of `-H` without slots, as written; empty if the value contains a variable."""
    if "$" in claim.spelling:
        return []
    hosts = re.sub(r"^-+\S*?[\s=]+", "", claim.spelling).strip("\"'")
    return [part.strip() for part in hosts.split(",") if part.strip() and not _HOST.fullmatch(part.strip())]


def _lines_without_slots(claim: Claim) -> list[str]:
    with_slots = {line.scope.node for line in claim.because}
    faulty = [line.spelling for line in claim.because if _LINE.fullmatch(line.spelling.strip()) is None]
    return faulty or [
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

    Example: `horovodrun -np 8 --max-np 12 -H a:4,b:4 python train.py`: no option makes this run elastic.

    Fix: `horovodrun -np 8 --min-np 4 --max-np 12 --host-discovery-script ./discover.sh python train.py`.

    Known limits: The output of the discovery script is unknown.
    """
    options = dict(zip(_ELASTIC, question.of, strict=True))
    return _conflict_verdict(question.of.job, question.of.launch, options)


def _conflict_verdict(job: Job, launch: Launch, options: dict[str, tuple[Claim, ...]]) -> Verdict | None:
    min_tasks, max_tasks, script = options["min_tasks"], options["max_tasks"], options["host_discovery"]
    tasks, hosts = job.setting("tasks", launch.scope), job.setting("hosts", launch.scope)
    controller = job.setting("controller", launch.scope)
    if not min_tasks and not script:
        return failed(
            launch.id,
            f"{quoted(max_tasks[0])} has no effect: without --min-np or --host-discovery-script the run is not"
            " elastic.",
            at=max_tasks[0],
            remedy="Add --min-np, and a --host-discovery-script if hosts may come and go.",
        )
    if controller and texts(job_value(controller)) == ("mpi",):
        return failed(
            launch.id,
            f"{quoted(controller[0])} has no effect on an elastic run ({quoted((min_tasks or script)[0])}), which"
            " always uses Gloo.",
            at=controller[0],
            also=(((min_tasks or script)[0], "makes it elastic"),),
            remedy="Drop --mpi, and build Horovod with Gloo.",
        )
    for smaller, larger in ((min_tasks, tasks), (tasks, max_tasks), (min_tasks, max_tasks)):
        low, high = numbers(job_value(smaller)), numbers(job_value(larger))
        if low and high and min(low) > max(high):
            return failed(
                launch.id,
                f"{quoted(smaller[0])} is more than {quoted(larger[0])}: the run waits for slots, or stops.",
                at=smaller[0],
                also=((larger[0], "smaller"),),
                remedy="Use --min-np <= -np <= --max-np.",
            )
    lists = [value for claim in hosts for value in claim.alternatives if isinstance(value, tuple)]
    if hosts and not script and lists and all(len(members) < 2 for members in lists):
        return failed(
            launch.id,
            f"{quoted(hosts[0])} names one host, but an elastic run without a discovery script needs two: horovodrun "
            "stops with 'Cannot run in fault tolerance mode with fewer than 2 hosts'.",
            at=hosts[0],
            also=((min_tasks[0], "makes it elastic"),),
            remedy="Name a --host-discovery-script, or drop the elastic options.",
        )
    return None


@rule("HVD015", "elastic-horovod-without-state", severity=Severity.WARNING, otherwise="no horovodrun is elastic")
def elastic_horovod_without_state(job: Job) -> Iterator[Verdict]:
    """horovodrun may change the number of ranks, but the script keeps no elastic state.

    What it checks: A script that horovodrun starts with `--min-np`, `--max-np` or `--host-discovery-script` wraps its
    training in `hvd.elastic.run`, with a State.

    Why it matters: When a host leaves or joins, Horovod interrupts the collective. Without a State, the last
    step is not restored: the workers fail, their hosts are blacklisted, and the job ends as if it were not elastic.

    Example: `horovodrun -np 8 --min-np 4 --host-discovery-script ./discover.sh python train.py` with plain
    `hvd.init()`.

    Fix: Put model, optimizer and epoch into `hvd.elastic.TorchState(...)`, and decorate the training function with
    `@hvd.elastic.run`.

    Known limits: A State in a library that the script imports is not seen.
    """
    for launch in job.launches:
        elastic_options = [
            claim
            for quantity in ("host_discovery", "min_tasks", "max_tasks")
            for claim in job.setting(quantity, launch.scope)
            if claim.source == "horovodrun"
        ]
        if not elastic_options:
            continue
        starts = [c for c in job.about("horovod_started", launch.scope) if c.span.path == launch.program]
        if job.about("elastic_state", launch.scope):
            yield passed(launch.id)
        elif not starts or len(job.files) > _FEW_FILES:
            yield unknown(
                launch.id, f"whether {launch.program} keeps an elastic state is unknown", at=elastic_options[0]
            )
        else:
            yield failed(
                launch.id,
                f"{quoted(elastic_options[0])} allows hosts to leave and join, but {placed(starts[0])} starts "
                "Horovod without an elastic State: the first change ends the training.",
                at=elastic_options[0],
                also=((starts[0], "no State"),),
                remedy="Keep model and optimizer in hvd.elastic.TorchState and train in a function with "
                "@hvd.elastic.run, or remove the elastic options.",
            )


#: With more files than this, another file may keep the state.
_FEW_FILES = 6
