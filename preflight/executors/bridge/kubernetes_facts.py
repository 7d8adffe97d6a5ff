"""Extracts the relevant data of pods and nodes from the API's JSON, and why a pod cannot start a program."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

#: Waiting reasons that do not resolve by themselves (kubernetes/kubelet, pkg/kubelet/images/types.go and
#: container/sync_result.go).
_STUCK = frozenset(
    (
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    )
)


def pod_facts(pod: Dict[str, Any]) -> Dict[str, Any]:
    """Return the relevant data of a pod from the API's JSON."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    states = {each.get("name"): each for each in status.get("containerStatuses") or []}
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return {
        "name": metadata.get("name", ""),
        "namespace": metadata.get("namespace", ""),
        "created": str(metadata.get("creationTimestamp") or ""),
        "deleted": bool(metadata.get("deletionTimestamp")),
        "hostname": spec.get("hostname") or "",
        "node": spec.get("nodeName") or "",
        "ip": status.get("podIP") or "",
        "phase": status.get("phase") or "Pending",
        "reason": status.get("reason") or "",
        "message": status.get("message") or "",
        "role": _role(labels),
        "index": _index(labels, notes),
        "scheduler": spec.get("schedulerName") or "",
        "containers": [
            {
                "name": each.get("name", ""),
                "image": each.get("image", ""),
                "requests": (each.get("resources") or {}).get("requests") or {},
                "state": (states.get(each.get("name")) or {}).get("state") or {},
            }
            for each in spec.get("containers") or []
        ],
        "conditions": [
            {key: str(each.get(key) or "") for key in ("type", "status", "reason", "message")}
            for each in status.get("conditions") or []
        ],
    }


def main_container(pod: Dict[str, Any]) -> str:
    """Return the container that requests devices, else the first."""
    devices = (each for each in pod["containers"] if any("/" in key for key in each["requests"]))
    return str(next(devices, pod["containers"][0])["name"])


def _role(labels: Dict[str, str]) -> str:
    for key in ("training.kubeflow.org/replica-type", "volcano.sh/task-spec", "ray.io/node-type"):
        if labels.get(key):
            return labels[key].lower()
    return ""


def _index(labels: Dict[str, str], notes: Dict[str, str]) -> Optional[int]:
    """Return a pod's index in its job, as set by its controller."""
    for key in (
        "batch.kubernetes.io/job-completion-index",
        "training.kubeflow.org/replica-index",
        "volcano.sh/task-index",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "apps.kubernetes.io/pod-index",
    ):
        value = labels.get(key) or notes.get(key)
        if value is not None and str(value).isdecimal():
            return int(value)
    return None


def node_facts(node: Dict[str, Any]) -> Dict[str, Any]:
    """Return the relevant data of a node from the API's JSON."""
    metadata, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    return {
        "name": metadata.get("name", ""),
        "labels": metadata.get("labels") or {},
        "allocatable": status.get("allocatable") or {},
        "cordoned": bool(spec.get("unschedulable")),
        "taints": [
            {key: str(each.get(key) or "") for key in ("key", "value", "effect")} for each in spec.get("taints") or []
        ],
        "ready": (conditions.get("Ready") or {}).get("status") == "True",
        "message": str((conditions.get("Ready") or {}).get("message") or ""),
    }


def startup_problem(pod: Dict[str, Any], container: str) -> Optional[Tuple[str, str, bool]]:
    """Return why nothing can be started in this container (kind, message, whether waiting is useless), or None."""
    if pod["deleted"]:
        return "unreachable", "the pod is being deleted", True
    names = [each["name"] for each in pod["containers"]]
    if container and container not in names:
        return "missing", "the pod has no container %r; it has %s" % (container, ", ".join(names)), True
    if pod["phase"] in ("Succeeded", "Failed"):
        value = " ".join(filter(None, (pod["reason"], pod["message"]))) or _ended(pod)
        return "unreachable", "the pod has ended (%s)%s" % (pod["phase"], ": " + value if value else ""), True
    chosen = next(each for each in pod["containers"] if each["name"] == (container or main_container(pod)))
    waiting = chosen["state"].get("waiting") or {}
    if waiting.get("reason") in _STUCK:
        words = "container %s (%s): %s" % (chosen["name"], chosen["image"], waiting["reason"])
        kind = "missing" if "mage" in waiting["reason"] else "crashed"
        return kind, ": ".join(filter(None, (words, waiting.get("message") or ""))), True
    if "terminated" in chosen["state"]:
        code = chosen["state"]["terminated"].get("exitCode")
        return "crashed", "container %s has ended with exit code %s" % (chosen["name"], code), False
    if "running" in chosen["state"]:
        return None
    for condition in pod["conditions"]:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            words = "the pod is Pending: %s: %s" % (condition["reason"] or "not scheduled", condition["message"])
            return "blocked", words, False
    on = " on %s" % pod["node"] if pod["node"] else ""
    value = waiting.get("reason") or pod["reason"] or "no reason given"
    return "timeout", "the pod is %s%s: %s" % (pod["phase"], on, value), False


def _ended(pod: Dict[str, Any]) -> str:
    for each in pod["containers"]:
        ended = each["state"].get("terminated")
        if ended:
            return "container %s: %s, exit code %s" % (each["name"], ended.get("reason", ""), ended.get("exitCode"))
    return ""
