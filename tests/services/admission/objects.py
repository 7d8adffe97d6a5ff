"""Objects that are submitted in these tests: a PyTorchJob, good and broken, and reviews of them."""

from __future__ import annotations

import copy
import json
from typing import Any

UID = "0df28fbd-5f5f-11e8-bc74-36e6bb280816"


def pytorch_job(*, nodes: int = 2, processes: int = 4, name: str = "finetune", **metadata: Any) -> dict[str, Any]:
    """A PyTorchJob of two pods with four GPUs each; it is good with two nodes of four processes."""
    command = [
        "torchrun",
        f"--nnodes={nodes}",
        f"--nproc_per_node={processes}",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=$(MASTER_ADDR):29400",
        "train.py",
    ]
    container = {
        "name": "pytorch",
        "image": "registry.example/finetune:1.4",
        "command": command,
        "resources": {"limits": {"nvidia.com/gpu": "4"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    template = {
        "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
    }
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "gpus"}, **metadata},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": copy.deepcopy(replica)}},
    }


def good() -> dict[str, Any]:
    """The job without a fault."""
    return pytorch_job()


def broken() -> dict[str, Any]:
    """The job with eight processes for four GPUs, on four nodes where there are two."""
    return pytorch_job(nodes=4, processes=8)


def review(value: Any, *, namespace: str = "team-a", **request: Any) -> bytes:
    """What the API server sends when this object is created."""
    kind = value.get("kind", "") if isinstance(value, dict) else ""
    whole = {
        "uid": UID,
        "kind": {"group": "kubeflow.org", "version": "v1", "kind": kind},
        "resource": {"group": "kubeflow.org", "version": "v1", "resource": "pytorchjobs"},
        "name": "finetune",
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": value,
        "oldObject": None,
        "dryRun": False,
        **request,
    }
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": whole}).encode()


def local_queue(name: str = "gpus", namespace: str = "team-a") -> dict[str, Any]:
    """A LocalQueue that leads to the ClusterQueue `pool`."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": "pool"},
    }


def cluster_queue(gpus: int) -> dict[str, Any]:
    """A ClusterQueue that admits this number of GPUs."""
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": "pool"},
        "spec": {
            "resourceGroups": [
                {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": resources}]}
            ]
        },
    }
