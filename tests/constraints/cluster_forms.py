"""Short forms of jobs with Slurm, MPI, Kubernetes controllers, SkyPilot, dstack, torchx and Ray.

After the first part of a text, a line `@ NAME` begins another file of the job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from typing import Any

from tests.constraints.huggingface_forms import parts

Files = dict[str, str]
Tree = dict[str, Any]

_TRAIN = "import torch\n\nmodel = torch.nn.Linear(8, 8)\n"
#: A part of a path: a name with its domain (`nvidia.com/gpu`), or anything without dots.
_PART = re.compile(
    r"(?:(?:nvidia|amazonaws)\.com|(?:kueue\.x-k8s|trainer\.kubeflow|ray|leaderworkerset\.sigs\.k8s|jobset\.sigs\.k8s"
    r"|kubernetes)\.(?:io|org))/[\w-]+|[^.]+"
)


def sbatch(text: str, run: str) -> Files:
    """Options of a batch header, one or several a line, and after them the script."""
    first, others = parts(text)
    lines = first.split("\n")
    count = next((number for number, line in enumerate(lines) if not line.startswith("-")), len(lines))
    header = "".join(f"#SBATCH {line}\n" for line in lines[:count])
    body = "\n".join(lines[count:]) or run or "srun python train.py"
    return {"job.sbatch": f"#!/bin/bash\n{header}{body}\n", "train.py": _TRAIN, **others}


def batch(text: str, _run: str) -> Files:
    """A batch script as it is."""
    return {"job.sbatch": text, "train.py": _TRAIN}


def lines(text: str, _run: str) -> Files:
    """A launch script, and files; without a `train.py`, one of a single process."""
    first, others = parts(text)
    return {"run.sh": f"#!/bin/bash\n{first}\n", "train.py": _TRAIN, **others}


def ray_calls(text: str, _run: str) -> Files:
    """Statements of a program that uses Ray."""
    first, others = parts(text)
    head = (
        "import ray\nfrom ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig\n"
        "from ray.train.torch import TorchTrainer\nfrom ray.util.placement_group import placement_group\n\n"
    )
    return {"run.sh": "#!/bin/bash\npython train.py\n", "train.py": f"{head}{first}\n", **others}


def skypilot(text: str, run: str) -> Files:
    """Keys of a task of SkyPilot on two nodes; after an empty line further text of the file."""
    line = run or "torchrun --nnodes=$SKYPILOT_NUM_NODES --node_rank=$SKYPILOT_NODE_RANK --nproc_per_node=8"
    base = ["name=train", "num_nodes=2", "resources.accelerators=H100:8"]
    head = '--master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) --master_port=29500 train.py'
    return _task("task.yaml", base, text, f"run: |\n  {line}" + ("" if run else f" {head}") + "\n")


def dstack(text: str, run: str) -> Files:
    """Keys of a task of dstack on two nodes; after an empty line further text of the file."""
    line = run or "torchrun --nnodes=$DSTACK_NODES_NUM --node-rank=$DSTACK_NODE_RANK --nproc-per-node=8"
    base = ["type=task", "name=train", "nodes=2", "resources.gpu=H100:8"]
    head = "--master-addr=$DSTACK_MASTER_NODE_IP --master-port=29500 train.py"
    return _task("train.dstack.yml", base, text, f"commands:\n  - {line}" + ("" if run else f" {head}") + "\n")


def _task(name: str, base: list[str], text: str, program: str) -> Files:
    first, others = parts(text)
    words, _, rest = first.partition("\n\n")
    rest = f"{rest}\n" if rest else ""
    if rest.startswith("-program\n"):
        program, rest = "", rest.removeprefix("-program\n")
    tree = _tree([*base, *shlex.split(words)], {})
    return {name: "".join(_yaml(tree, "")) + rest + program, "train.py": _TRAIN, **others}


def manifest(text: str, _run: str) -> Files:
    """A kind, and what differs from a plain manifest of that kind: `path=value`, or `-path` for what is missing.

    The value `?` is one that is filled in later. Paths may begin with the names of `_NAMES`.
    """
    first, others = parts(text)
    documents = [_document(part) for part in re.split(r"^---\n", first, flags=re.MULTILINE)]
    return {"job.yaml": "---\n".join(documents), **others}


def _document(text: str) -> str:
    kind, *words = shlex.split(text)
    version, names, base = _KINDS[kind]
    given = [f"apiVersion={version}", f"kind={kind.partition(':')[0]}", "metadata.name=job", *base, *words]
    return "".join(_yaml(_tree(given, names), ""))


def _tree(words: Iterable[str], names: dict[str, str]) -> Tree:
    """A tree of `a.b=1` and so on."""
    tree: Tree = {}
    for word in words:
        path, sign, value = word.partition("=")
        missing = path.startswith("-") and not sign
        first, dot, rest = path.removeprefix("-").partition(".")
        *above, last = _PART.findall(f"{names.get(first, first)}{dot}{rest}")
        place = tree
        for name in above:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        if missing:
            place.pop(last, None)
        else:
            place[last] = "${OPEN}" if value == "?" else value
    return tree


def _yaml(tree: Tree, indent: str) -> list[str]:
    found: list[str] = []
    for key, value in tree.items():
        if isinstance(value, dict) and not value:
            continue
        if isinstance(value, dict):
            listed = all(name.isdigit() for name in value)
            found.append(f"{indent}{key}:\n")
            found += _items(value, indent) if listed else _yaml(value, f"{indent}  ")
        else:
            found.append(f"{indent}{key}: {value}\n")
    return found


def _items(tree: Tree, indent: str) -> list[str]:
    found: list[str] = []
    for item in tree.values():
        if isinstance(item, dict):
            first, *others = _yaml(item, f"{indent}  ")
            found += [f"{indent}- {first.removeprefix(f'{indent}  ')}", *others]
        else:
            found.append(f"{indent}- {item}\n")
    return found


def _pod(at: str, name: str = "train", command: str = "[torchrun, train.py]", policy: str = "") -> list[str]:
    """The words of a pod with eight GPUs and shared memory."""
    container = f"{at}.containers.0"
    return [
        *([f"{at}.restartPolicy={policy}"] if policy else ()),
        f"{container}.name={name}",
        f"{container}.image=registry.example/train:1.0",
        f"{container}.command={command}",
        f"{container}.resources.limits.nvidia.com/gpu=8",
        f"{container}.volumeMounts.0.name=shm",
        f"{container}.volumeMounts.0.mountPath=/dev/shm",
        f"{at}.volumes.0.name=shm",
        f"{at}.volumes.0.emptyDir.medium=Memory",
    ]


def _roles(at: str, roles: dict[str, int], container: str) -> list[str]:
    found = []
    for role, replicas in roles.items():
        found += [f"{at}.{role}.replicas={replicas}", *_pod(f"{at}.{role}.template.spec", container)]
    return found


def _shorter(at: str, **others: str) -> dict[str, str]:
    """`pod` and `box` (its container) stand for paths, and so do the others."""
    return {"pod": at, "box": f"{at}.containers.0", **others}


_PYTORCH = "spec.pytorchReplicaSpecs"
_TF = "spec.tfReplicaSpecs"
_MPI = "spec.mpiReplicaSpecs"
_XGB = "spec.xgbReplicaSpecs"
_PADDLE = "spec.paddleReplicaSpecs"
_JAX = "spec.jaxReplicaSpecs"
_JOBS = "spec.replicatedJobs.0"
_TASK = "spec.tasks.0"
_GROUP = "spec.workerGroupSpecs.0"
_RAY_JOB = "spec.rayClusterSpec"
_LWS = "spec.leaderWorkerTemplate"
_RUNTIME = "spec.template.spec.replicatedJobs.0"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_MPIRUN = "[mpirun, -np, '16', python, train.py]"
_SSHD = "[/usr/sbin/sshd, -De]"


def _mpi_job() -> list[str]:
    launcher = [
        f"{_MPI}.Launcher.replicas=1",
        f"{_MPI}.Launcher.template.spec.containers.0.name=launcher",
        f"{_MPI}.Launcher.template.spec.containers.0.image=registry.example/train:1.0",
        f"{_MPI}.Launcher.template.spec.containers.0.command={_MPIRUN}",
    ]
    workers = _pod(f"{_MPI}.Worker.template.spec", "worker", _SSHD)
    return ["spec.slotsPerWorker=8", *launcher, f"{_MPI}.Worker.replicas=2", *workers]


def _ray(at: str) -> list[str]:
    head = f"{at}.headGroupSpec.template.spec.containers.0"
    pod = _pod(f"{at}.workerGroupSpecs.0.template.spec", "worker")
    return [
        f"{at}.rayVersion=2.52.0",
        f"{at}.headGroupSpec.rayStartParams.dashboard-host=0.0.0.0",
        f"{head}.name=head",
        f"{head}.image=rayproject/ray:2.52.0",
        f"{at}.workerGroupSpecs.0.groupName=gpu",
        f"{at}.workerGroupSpecs.0.replicas=2",
        f"{at}.workerGroupSpecs.0.minReplicas=2",
        f"{at}.workerGroupSpecs.0.maxReplicas=2",
        *(word for word in pod if ".command=" not in word),
    ]


#: Of each kind its API version, the short names of paths, and a plain manifest.
_KINDS: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "PyTorchJob": (
        "kubeflow.org/v1",
        _shorter(f"{_PYTORCH}.Worker.template.spec", master=f"{_PYTORCH}.Master", worker=f"{_PYTORCH}.Worker"),
        _roles(_PYTORCH, {"Master": 1, "Worker": 3}, "pytorch"),
    ),
    "TFJob": (
        "kubeflow.org/v1",
        _shorter(f"{_TF}.Worker.template.spec", worker=f"{_TF}.Worker", chief=f"{_TF}.Chief"),
        [word.replace("torchrun", "python") for word in _roles(_TF, {"Chief": 1, "Worker": 3}, "tensorflow")],
    ),
    "XGBoostJob": (
        "kubeflow.org/v1",
        _shorter(f"{_XGB}.Worker.template.spec", worker=f"{_XGB}.Worker"),
        [word.replace("torchrun", "python") for word in _roles(_XGB, {"Master": 1, "Worker": 3}, "xgboost")],
    ),
    "PaddleJob": (
        "kubeflow.org/v1",
        _shorter(f"{_PADDLE}.Worker.template.spec", worker=f"{_PADDLE}.Worker"),
        [
            word.replace("[torchrun", "[python, -m, paddle.distributed.launch")
            for word in _roles(_PADDLE, {"Worker": 3}, "paddle")
        ],
    ),
    "JAXJob": (
        "kubeflow.org/v1",
        _shorter(f"{_JAX}.Worker.template.spec", worker=f"{_JAX}.Worker"),
        [word.replace("torchrun", "python") for word in _roles(_JAX, {"Worker": 3}, "jax")],
    ),
    "MPIJob": (
        "kubeflow.org/v2beta1",
        _shorter(f"{_MPI}.Worker.template.spec", worker=f"{_MPI}.Worker", launcher=f"{_MPI}.Launcher"),
        _mpi_job(),
    ),
    "MPIJob:v1": (
        "kubeflow.org/v1",
        _shorter(f"{_MPI}.Worker.template.spec", worker=f"{_MPI}.Worker", launcher=f"{_MPI}.Launcher"),
        _mpi_job(),
    ),
    "TrainJob": (
        "trainer.kubeflow.org/v1alpha1",
        {"trainer": "spec.trainer", "ref": "spec.runtimeRef"},
        [
            "spec.runtimeRef.name=torch-distributed",
            "spec.trainer.numNodes=2",
            "spec.trainer.image=registry.example/train:1.0",
            "spec.trainer.command=[torchrun, train.py]",
            "spec.trainer.resourcesPerNode.limits.nvidia.com/gpu=8",
        ],
    ),
    "TrainingRuntime": (
        "trainer.kubeflow.org/v1alpha1",
        _shorter(f"{_RUNTIME}.template.spec.template.spec", ml="spec.mlPolicy", step=_RUNTIME),
        [
            "spec.mlPolicy.numNodes=2",
            "spec.mlPolicy.torch={}",
            f"{_RUNTIME}.name=node",
            f"{_RUNTIME}.template.metadata.labels.{_STEP}=trainer",
            *_pod(f"{_RUNTIME}.template.spec.template.spec", "node"),
        ],
    ),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        _shorter(f"{_JOBS}.template.spec.template.spec", jobs="spec.replicatedJobs", one=f"{_JOBS}.template.spec"),
        [
            "spec.failurePolicy.maxRestarts=2",
            f"{_JOBS}.name=workers",
            f"{_JOBS}.replicas=1",
            f"{_JOBS}.template.spec.parallelism=4",
            f"{_JOBS}.template.spec.completions=4",
            f"{_JOBS}.template.spec.backoffLimit=0",
            *_pod(f"{_JOBS}.template.spec.template.spec", policy="Never"),
        ],
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        _shorter(f"{_LWS}.workerTemplate.spec", lws=_LWS),
        ["spec.replicas=1", f"{_LWS}.size=8", *_pod(f"{_LWS}.workerTemplate.spec", command="[python, train.py]")],
    ),
    "Job:volcano": (
        "batch.volcano.sh/v1alpha1",
        _shorter(f"{_TASK}.template.spec", tasks="spec.tasks", one=_TASK),
        [
            "spec.minAvailable=4",
            "spec.schedulerName=volcano",
            "spec.policies.0.event=PodFailed",
            "spec.policies.0.action=RestartJob",
            "spec.policies.1.event=PodEvicted",
            "spec.policies.1.action=RestartJob",
            f"{_TASK}.replicas=4",
            f"{_TASK}.name=worker",
            *_pod(f"{_TASK}.template.spec", policy="Never"),
        ],
    ),
    "RayCluster": (
        "ray.io/v1",
        _shorter(f"{_GROUP}.template.spec", group=_GROUP, head="spec.headGroupSpec"),
        _ray("spec"),
    ),
    "RayJob": (
        "ray.io/v1",
        _shorter(
            f"{_RAY_JOB}.workerGroupSpecs.0.template.spec",
            group=f"{_RAY_JOB}.workerGroupSpecs.0",
            head=f"{_RAY_JOB}.headGroupSpec",
            cluster=_RAY_JOB,
        ),
        ["spec.entrypoint=python train.py", *_ray(_RAY_JOB)],
    ),
    "Job": (
        "batch/v1",
        _shorter("spec.template.spec"),
        [
            "spec.completionMode=Indexed",
            "spec.completions=4",
            "spec.parallelism=4",
            "spec.backoffLimit=0",
            *_pod("spec.template.spec", command="[python, train.py]", policy="Never"),
        ],
    ),
    "Pod": ("v1", _shorter("spec"), _pod("spec", policy="Never")),
    "ClusterQueue": (
        "kueue.x-k8s.io/v1beta1",
        {"group": "spec.resourceGroups.0", "flavor": "spec.resourceGroups.0.flavors.0"},
        [
            "spec.namespaceSelector={}",
            "spec.resourceGroups.0.coveredResources=[cpu, memory, nvidia.com/gpu]",
            "spec.resourceGroups.0.flavors.0.name=h100",
            *(
                f"spec.resourceGroups.0.flavors.0.resources.{number}.{rest}"
                for number, name in enumerate(("cpu", "memory", "nvidia.com/gpu"))
                for rest in (f"name={name}", "nominalQuota=64")
            ),
        ],
    ),
    "Topology": (
        "kueue.x-k8s.io/v1beta1",
        {},
        ["spec.levels.0.nodeLabel=rack", "spec.levels.1.nodeLabel=kubernetes.io/hostname"],
    ),
    "ResourceFlavor": ("kueue.x-k8s.io/v1beta1", {}, []),
    "Service": ("v1", {}, ["spec.ports.0.port=29500"]),
    "PersistentVolumeClaim": ("v1", {}, ["spec.resources.requests.storage=1Ti"]),
}

FORMS: dict[str, Callable[[str, str], Files]] = {
    form.__name__: form for form in (sbatch, batch, lines, ray_calls, skypilot, dstack, manifest)
}
