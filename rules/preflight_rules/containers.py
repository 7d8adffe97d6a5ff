"""Containers started on a command line or by Compose: GPUs, shared memory, network, locked memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight._util.hostnames import host_of, is_address
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import Symbol, numbers, symbols_in, texts
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight_rules.launches import certainly_one, certainly_several, nodes_spanned
from preflight_rules.rendezvous.addresses import address_claims

#: Words in an image name for a build with or without accelerator support.
_ACCELERATED = re.compile(r"cuda|cu\d{2,3}\b|nvidia|nvcr\.io|rocm|(?:^|[-_/:.])gpu(?:$|[-_/:.\d])|cudnn|megatron|nemo")
#: Signs of NVIDIA GPUs. An image for AMD GPUs contains ROCm, and Apptainer mounts AMD's device files without an option.
_NVIDIA = re.compile(r"cuda|cu\d{2,3}\b|nvidia|nvcr\.io|cudnn")
_NO_ACCELERATOR = re.compile(r"(?:^|[-_/:.])(?:cpu|xpu|tpu|neuron\w*)(?:$|[-_/:.\d])")
#: Usual names of training programs.
_TRAINING = re.compile(
    r"(?:^|[\s/])(?:torchrun|deepspeed|horovodrun|colossalai|composer|fleetrun)\b|\baccelerate launch\b"
    r"|torch\.distributed\.(?:run|launch)|paddle\.distributed\.launch"
    r"|\bpython[\d.]*\s(?:.*\s)?\S*(?:train|finetune|fine_tune|pretrain|sft|dpo|grpo)\w*\.py|\S*train\w*\.(?:sh|bash)\b"
)
_OTHER_WORK = re.compile(
    r"pip3? install|pytest|unittest|--help\b|setup\.py|mypy|ruff|\bdownload|preprocess|tokeniz|export"
)
#: Options and words that show that the program needs CUDA.
_CUDA_WORDS = re.compile(r"\bcuda\b|\bnccl\b|--gpus?[= ]|--num[_-]gpus|--fp16|--bf16|--nproc[_-]per[_-]node")
_SHELLS = re.compile(r"(?:/\S*/)?(?:ba|z|da|k)?sh(?:\s+-[il]+)?$")
_SMALL_SHM_MIB = 256
#: Backends that do not use NCCL's shared memory.
_WITHOUT_NCCL = {"gloo", "mpi"}
#: `torch:2.4-cpu`, `pytorch-cpu:latest`
_CPU_IMAGE = re.compile(r"(?:^|[/:._-])cpu(?:$|[/:._-])")
#: Loader workers on a line that is not a launch: their batches use /dev/shm too.
_WORKERS = re.compile(r"--(?:num[-_]|data[-_]?loader[-_])?(?:data[-_])?workers[ =](\d{1,9})\b")


def _containers(job: Job) -> Iterator[tuple[Claim, Scope, Launch | None]]:
    """Yield every container with its scope, and the launch that it runs."""
    launches = {launch.id: launch for launch in job.launches}
    for claim in job.about("container_run"):
        yield claim, claim.scope, launches.get(claim.scope.launch)


def _joined_text(claims: tuple[Claim, ...]) -> str:
    return " ".join(text for claim in claims for text in texts(claim.value))


@rule(
    "CTR001",
    "container-started-without-gpus",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no training container needs GPUs",
)
def container_started_without_gpus(job: Job) -> Iterator[Verdict]:
    """A training container that needs GPUs is started without any.

    What it checks: `docker run` or `podman run` of a training command, with signs that it needs an accelerator (the
    image name, nccl, CUDA options or variables), has `--gpus`, `--runtime`, `--device`, or `--privileged`; `apptainer
    exec` has `--nv` or `--rocm`, depending on whose GPUs the signs name.

    Why it matters: The container sees neither the device nor the driver: "CUDA driver version is insufficient for CUDA
    runtime version", or training silently falls back to the CPU.

    Example: `docker run --rm nvcr.io/nvidia/pytorch:24.05-py3 python train.py`.

    Fix: `docker run --gpus all ...`; `podman run --device nvidia.com/gpu=all ...`; `apptainer exec --nv ...`.

    Known limits: A host can make the NVIDIA runtime the default for all containers, which the files do not show: hence
    medium confidence. A training command whose image and options name no accelerator is not judged.
    """
    for claim, scope, launch in _containers(job):
        sign = _gpu_sign(job, claim, scope, launch)
        if not sign:
            continue
        options = job.setting("container_gpus", scope)
        if any(isinstance(option.value, Unresolved) for option in options):
            yield unknown(
                scope.launch, f"{quoted(options[0])} may contain an option that gives the container GPUs", at=options[0]
            )
        elif options:
            yield passed(scope.launch)
        elif claim.spelling.startswith(("apptainer", "singularity")) and not _NVIDIA.search(
            f"{sign} {_joined_text((claim,))}".lower()
        ):
            yield unknown(
                scope.launch, f"whether the image of {quoted(claim)} is built for NVIDIA GPUs is unknown", at=claim
            )
        else:
            yield failed(
                scope.launch,
                f"{quoted(claim)} starts a training command without giving the container GPUs, but {sign} needs them.",
                at=claim,
                remedy=_remedy(claim, "--gpus all", "gpus: all", apptainer="--nv"),
            )


def _remedy(claim: Claim, option: str, key: str, *, apptainer: str = "") -> str:
    """Return the option to add, for the program that starts the container."""
    if claim.source == "compose":
        return f"Add `{key}` to the service."
    if apptainer and claim.spelling.startswith(("apptainer", "singularity")):
        option = apptainer
    return f"Add `{option}` before the image name."


def _gpu_sign(job: Job, claim: Claim, scope: Scope, launch: Launch | None) -> str:
    """Return the text, for display, that shows that a container trains on GPUs; empty if there is none."""
    command = _joined_text(job.setting("container_command", scope))
    if _OTHER_WORK.search(command) or not (launch is not None or _TRAINING.search(command)):
        return ""
    image = _joined_text((claim,)).lower()
    if _NO_ACCELERATOR.search(image):
        return ""
    if _ACCELERATED.search(image):
        return f"the image `{image}`"
    if _CUDA_WORDS.search(command) and "gloo" not in command and "cpu" not in command:
        return f"`{command[:60]}`"
    for name in ("env.CUDA_VISIBLE_DEVICES", "env.NVIDIA_VISIBLE_DEVICES", "env.NCCL_DEBUG", "env.NCCL_SOCKET_IFNAME"):
        claims = job.setting(name, scope)
        if claims and texts(claims[0].value) not in (("",), ("-1",), ("void",), ("none",)):
            return quoted(claims[0])
    return ""


@rule(
    "CTR002",
    "container-shared-memory-default",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no container certainly runs several ranks or loader workers",
)
def container_shared_memory_default(job: Job) -> Iterator[Verdict]:
    """Several ranks or loader workers share a container's default /dev/shm of 64 MiB.

    What it checks: A container that runs several ranks, or a training program with several loader workers, has
    `--shm-size`, `--ipc=host` or a volume at /dev/shm. A container with GPUs that only opens a shell also counts if the
    same files start several ranks outside any container, because users type these launch lines inside it.

    Why it matters: NCCL stops with "Call to posix_fallocate failed: No space left on device", and loader workers die
    with "Bus error".

    Example: `docker run --gpus all image torchrun --nproc_per_node=8 train.py`.

    Fix: `--ipc=host`, or `--shm-size=16g`.

    Known limits: A default set in the daemon's configuration (default-shm-size) is not seen.
    """
    for claim, scope, launch in _containers(job):
        sharing = _sharing_processes(job, scope, launch)
        if sharing is None:
            continue
        evidence, processes = sharing
        sizes = job.setting("shm_mib", scope)
        if not sizes:
            yield failed(
                scope.launch,
                f"{quoted(claim)} leaves /dev/shm at Docker's 64 MiB, and {placed(evidence)} starts {processes} that"
                " share it.",
                at=claim,
                also=((evidence, processes),),
                remedy=_remedy(claim, "--ipc=host` or `--shm-size=16g", "ipc: host` or `shm_size: 16gb"),
            )
        elif any(Symbol.CONTAINER_OPTIONS in symbols_in(size.value) for size in sizes):
            yield unknown(scope.launch, f"{quoted(sizes[0])} may contain --shm-size or --ipc", at=sizes[0])
        elif _too_small(sizes):
            yield failed(
                scope.launch,
                f"{quoted(sizes[0])} leaves {joined(numbers(sizes[0].value))} MiB in /dev/shm, and {placed(evidence)}"
                f" starts {processes} that share it.",
                at=sizes[0],
                also=((evidence, processes),),
                remedy="Use `--ipc=host`, or a size of several GiB.",
            )
        else:
            yield passed(scope.launch)


def _too_small(sizes: tuple[Claim, ...]) -> bool:
    return all(numbers(size.value) and max(numbers(size.value)) < _SMALL_SHM_MIB for size in sizes)


def _sharing_processes(job: Job, scope: Scope, launch: Launch | None) -> tuple[Claim, str] | None:
    """Return the claim that shows that several processes share the container's memory, and a description of the
    processes; None if nothing shows this.
    """
    if launch is not None:
        shares_memory = not _is_without_nccl(job, scope, launch)
        return (_several_ranks_claim(_several_ranks_evidence(job, launch)) if shares_memory else None) or _workers(
            job, scope
        )
    command = _joined_text(job.setting("container_command", scope)).strip()
    if _TRAINING.search(command) and (workers := _workers(job, scope)) is not None:
        return workers
    if (command and not _SHELLS.match(command)) or not job.setting("container_gpus", scope):
        return None
    launches_in_containers = {claim.scope.launch for claim in job.about("container_run")}
    path = scope.launch.rpartition(":")[0]
    for other in job.launches:
        if other.id not in launches_in_containers and other.span.path == path and "srun" not in other.wrappers:
            ranks = _several_ranks_claim(_several_ranks_evidence(job, other))
            if ranks is not None:
                return ranks
    return None


def _is_without_nccl(job: Job, scope: Scope, launch: Launch) -> bool:
    """Return whether ranks communicate without NCCL's shared memory: no GPUs, and another backend or a CPU image."""
    if job.setting("container_gpus", scope):
        return False
    backends = {text for claim in job.about("backend", launch.scope) for text in texts(claim.value)}
    image = _joined_text(job.setting("container_run", scope))
    return bool(backends and backends <= _WITHOUT_NCCL) or _CPU_IMAGE.search(image) is not None


def _several_ranks_claim(claim: Claim | None) -> tuple[Claim, str] | None:
    return None if claim is None else (claim, f"{joined(numbers(claim.value))} ranks")


def _workers(job: Job, scope: Scope) -> tuple[Claim, str] | None:
    for claim in job.setting("container_command", scope):
        counts = [int(number) for number in _WORKERS.findall(_joined_text((claim,)))]
        if counts and counts[-1] > 1:
            return claim, f"{counts[-1]} loader workers"
    return None


def _several_ranks_evidence(job: Job, launch: Launch) -> Claim | None:
    nodes, _ = nodes_spanned(job, launch)
    for quantity in ("processes_per_node", "tasks_per_node", "tasks"):
        claims = job.setting(quantity, launch.scope)
        if quantity == "tasks" and certainly_several(nodes):
            continue
        if claims and certainly_several(job_value(claims)):
            return claims[0]
    return None


@rule(
    "CTR003",
    "container-network-hides-ranks",
    severity=Severity.ERROR,
    otherwise="no file of the job starts a multi-node launch in a container",
)
def container_network_hides_ranks(job: Job) -> Iterator[Verdict]:
    """A launch over several nodes runs in containers on Docker's bridge network, which other nodes cannot reach.

    What it checks: A launch over several nodes inside `docker run` has `--network=host`, or any network other than the
    local bridge.

    Why it matters: The ranks advertise addresses of the bridge (172.17.0.x), and NCCL and Gloo open ports that are not
    published: the rendezvous may work, but the first collective hangs.

    Example: `docker run --gpus all image torchrun --nnodes=2 ...`.

    Fix: `--network=host`, or an overlay network that spans the hosts.

    Known limits: If the rendezvous address may be on the bridge itself, as in a trial on one host, the finding is a
    warning.
    """
    for claim, scope, launch in _containers(job):
        if launch is None or not certainly_several(nodes_spanned(job, launch)[0]):
            continue
        network = job.setting("container_network", scope)
        names = [text for each in network for text in texts(each.value)]
        if any(isinstance(each.value, Unresolved) for each in network):
            yield unknown(scope.launch, f"{quoted(network[0])} may contain the network option", at=network[0])
        elif not network or all(name in ("bridge", "default") for name in names):
            is_certain = _is_of_another_host(job, launch)
            yield failed(
                scope.launch,
                f"{quoted(claim)} puts the ranks on Docker's bridge network, which other nodes cannot reach.",
                at=network[0] if network else claim,
                also=((launch, "over several nodes"),),
                remedy=_remedy(claim, "--network=host", "network_mode: host"),
                severity=None if is_certain else Severity.WARNING,
                confidence=None if is_certain else Confidence.MEDIUM,
                waits_at="rendezvous",
            )
        else:
            yield passed(scope.launch)


def _is_of_another_host(job: Job, launch: Launch) -> bool:
    """Return whether the rendezvous address is outside the networks that Docker creates on one host."""
    hosts = [host_of(text) for claim in address_claims(job, launch) for text in texts(claim.value)]
    on_bridge = _OWN_ADDRESS.search(launch.span.snippet) is not None or "podman" in launch.wrappers
    return bool(hosts) and not on_bridge and all(is_address(host) and not host.startswith("172.") for host in hosts)


#: The option that gives the container an address in a network of this host.
_OWN_ADDRESS = re.compile(r"--ip[ =]")


@rule(
    "CTR004",
    "rdma-devices-without-locked-memory",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no container is given InfiniBand devices",
)
def rdma_devices_without_locked_memory(job: Job) -> Iterator[Verdict]:
    """A container is given InfiniBand devices but may lock almost no memory.

    What it checks: Where /dev/infiniband is passed to a container, it also gets `--ulimit memlock=-1`,
    `--cap-add=IPC_LOCK` or `--privileged`.

    Why it matters: RDMA pins its buffers. Under the usual limit of 64 KiB or 8 MiB registration fails ("ibv_reg_mr
    failed", "Cannot allocate memory"), or NCCL falls back to sockets.

    Example: `docker run --gpus all --device=/dev/infiniband image torchrun ...`.

    Fix: Add `--ulimit memlock=-1`.

    Known limits: A daemon that raises the limit for all containers (default-ulimits) is not seen.
    """
    for claim, scope, _ in _containers(job):
        devices = [each for each in job.setting("host_path", scope) if "/dev/infiniband" in _joined_text((each,))]
        if not devices:
            continue
        memlock_claims = job.setting("container_memlock", scope)
        capability_claims = [each for each in job.about("pod_capability", scope) if _raises_memlock(each)]
        if any(isinstance(each.value, Unresolved) for each in (*memlock_claims, *job.about("pod_capability", scope))):
            yield unknown(scope.launch, "the limit of locked memory is known only at run time", at=devices[0])
        elif memlock_claims or capability_claims:
            yield passed(scope.launch)
        else:
            yield failed(
                scope.launch,
                f"{quoted(devices[0])} gives {quoted(claim)} RDMA devices, but no option raises its "
                "locked-memory limit.",
                at=devices[0],
                remedy=_remedy(claim, "--ulimit memlock=-1", "ulimits: {memlock: -1}"),
            )


@rule(
    "CTR005",
    "container-without-rdma-devices",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch in a container requests InfiniBand",
)
def container_without_rdma_devices(job: Job) -> Iterator[Verdict]:
    """A launch over several nodes names InfiniBand adapters, but its container is not given their devices.

    What it checks: Where NCCL_IB_HCA names adapters, or NCCL_IB_DISABLE=0 requests them, a `docker run` around a launch
    over several nodes passes `/dev/infiniband` to the container, or is `--privileged`.

    Why it matters: A container sees only the devices that it is given. NCCL logs "NET/IB : No device found" and sends
    everything over sockets, several times slower, or stops if no socket interface fits.

    Example: `docker run --gpus all --network=host -e NCCL_IB_HCA=mlx5 image torchrun --nnodes=2 ...`.

    Fix: Add `--device=/dev/infiniband --ulimit memlock=-1`.

    Known limits: A runtime that passes the devices to every container is not seen.
    """
    for claim, scope, launch in _containers(job):
        requests = [
            each
            for each in (*job.setting("env.NCCL_IB_HCA", scope), *job.setting("env.NCCL_IB_DISABLE", scope))
            if each.quantity == "env.NCCL_IB_HCA" or texts(each.value) == ("0",)
        ]
        disabled = any(texts(each.value) == ("1",) for each in job.setting("env.NCCL_IB_DISABLE", scope))
        if launch is None or not requests or disabled or not re.match(r"docker|podman|nerdctl", claim.spelling):
            continue
        devices = [each for each in job.about("host_path", scope) if "/dev/infiniband" in _joined_text((each,))]
        unresolved = [each for each in job.about("host_path", scope) if isinstance(each.value, Unresolved)]
        privileged = [
            each for each in job.about("pod_capability", scope) if "PRIVILEGED" in _joined_text((each,)).upper()
        ]
        node_count, _ = nodes_spanned(job, launch)
        if devices or privileged:
            yield passed(scope.launch)
        elif certainly_one(node_count):
            yield not_applicable(scope.launch, "the launch uses one node")
        elif not certainly_several(node_count):
            yield unknown(scope.launch, "the launch may use only one node", at=requests[0])
        elif unresolved:
            yield unknown(scope.launch, f"the options of {quoted(claim)} may include the devices", at=claim)
        else:
            yield failed(
                scope.launch,
                f"{quoted(requests[0])} requests InfiniBand, but {quoted(claim)} is given no InfiniBand device, so "
                "NCCL uses sockets.",
                at=claim,
                also=((requests[0], "requested here"), (launch, "over several nodes")),
                remedy=_remedy(claim, "--device=/dev/infiniband --ulimit memlock=-1", "devices: [/dev/infiniband]"),
            )


_LOCKING = ("IPC_LOCK", "ALL", "SYS_RESOURCE", "PRIVILEGED")


def _raises_memlock(claim: Claim) -> bool:
    return any(text.upper().removeprefix("CAP_") in _LOCKING for text in texts(claim.value))
