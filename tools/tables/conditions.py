"""The rules of custom resources (CEL, `x-kubernetes-validations`) as conditions that need no interpreter of CEL.

A condition is a list: its name, then its operands; a path is relative to the value that the rule belongs to.

    ["has", PATH]                 the key exists
    ["in", PATH, VALUES]          its value, or absent one (None), is one of these
    ["matches", PATH, PATTERN]    its text has a match of the pattern
    ["count", PATHS, MIN, MAX]    so many of the keys exist
    ["size", PATH, MIN, MAX]      length of a text, list or mapping
    ["at-least", PATH, NUMBER]    a number
    ["each-same-size", PATH, KEY, OTHER]  in every item of a list, the list KEY is as long as the list OTHER beside it
    ["unique", PATH]              no item of a list occurs twice
    ["last-only", PATH, KEY, VALUE]   no item of a list but the last has this value
    ["each", PATH, CONDITION], ["some", PATH, CONDITION]   of the items of a list
    ["not", CONDITION], ["and", CONDITIONS...], ["or", CONDITIONS...]
"""

from __future__ import annotations

from typing import Any

Condition = list[Any]


def _has(path: str) -> Condition:
    return ["has", path]


def _absent(path: str) -> Condition:
    return ["not", _has(path)]


def _is(path: str, *values: Any) -> Condition:
    return ["in", path, list(values)]


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _no_borrowing_limit(cohort: str) -> Condition:
    limits: Condition = ["each", "flavors", ["each", "resources", _absent("borrowingLimit")]]
    return ["or", _has(cohort), _absent("resourceGroups"), ["each", "resourceGroups", limits]]


#: By the text of a rule on one line: the condition that must hold, and the key at which a refusal is reported.
CONDITIONS: dict[str, tuple[Condition, str]] = {
    "[has(self.torch), has(self.mpi)].filter(x, x).size() <= 1": (["count", ["torch", "mpi"], 0, 1], ""),
    "!(has(self.torch) && has(self.mpi))": (["count", ["torch", "mpi"], 0, 1], ""),
    "[has(self.torch), has(self.mpi), has(self.jax)].filter(x, x).size() <= 1": (
        ["count", ["torch", "mpi", "jax"], 0, 1],
        "",
    ),
    "[has(self.torch), has(self.mpi), has(self.jax), has(self.xgboost),has(self.flux)].filter(x, x).size() <= 1": (
        ["count", ["torch", "mpi", "jax", "xgboost", "flux"], 0, 1],
        "",
    ),
    "self >= 1": (["at-least", "", 1], ""),
    "self > 0 || self in ['auto', 'cpu', 'gpu']": (["or", ["at-least", "", 1], _is("", "auto", "cpu", "gpu")], ""),
    "!(has(self.numNodes) && (has(self.torch) && has(self.torch.elasticPolicy)))": (
        ["count", ["numNodes", "torch.elasticPolicy"], 0, 1],
        "",
    ),
    "self in ['DeleteCluster', 'DeleteWorkers', 'DeleteSelf', 'DeleteNone']": (
        _is("", "DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone"),
        "",
    ),
    "!self.exists(c, c == 'node')": (["each", "", ["not", _is("", "node")]], ""),
    "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' &&"
    " self.replicatedJobs.exists(x, has(x.dependsOn)))": (
        [
            "not",
            [
                "and",
                _is("startupPolicy.startupPolicyOrder", "InOrder"),
                # Without the list the rule cannot be evaluated, which refuses the object as well.
                ["or", _absent("replicatedJobs"), ["some", "replicatedJobs", _has("dependsOn")]],
            ],
        ],
        "startupPolicy",
    ),
    "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)": (
        ["each", "templates", ["or", _absent("metadata.namespace"), ["size", "metadata.namespace", 0, 0]]],
        "",
    ),
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')": (
        ["or", _absent("metadata.name"), ["matches", "metadata.name", "^[a-z]([-a-z0-9]*[a-z0-9])?$"]],
        "metadata.name",
    ),
    "size(self.metadata.name) <= 63": (
        ["or", _absent("metadata.name"), ["size", "metadata.name", 0, 63]],
        "metadata.name",
    ),
    "self == '' || self.matches('^[A-Za-z][A-Za-z0-9+.-]*://.+$')": (
        ["or", _is("", ""), ["matches", "", "^[A-Za-z][A-Za-z0-9+.-]*://.+$"]],
        "",
    ),
    "self in ['trainer.kubeflow.org/trainjob-controller', 'kueue.x-k8s.io/multikueue']": (
        _is("", "trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue"),
        "",
    ),
    "self in ['ray.io/kuberay-operator', 'kueue.x-k8s.io/multikueue']": (
        _is("", "ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"),
        "",
    ),
    "!has(self.cohort) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f,"
    " f.resources.all(r, !has(r.borrowingLimit)))) : true": (_no_borrowing_limit("cohort"), ""),
    "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f,"
    " f.resources.all(r, !has(r.borrowingLimit)))) : true": (_no_borrowing_limit("cohortName"), ""),
    "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')": (
        [
            "or",
            _absent("preference"),
            ["and", _is("whenCanBorrow", "TryNextFlavor"), _is("whenCanPreempt", "TryNextFlavor", None)],
        ],
        "",
    ),
    "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) &&"
    " self.borrowWithinCohort.policy != 'Never')": (
        [
            "not",
            [
                "and",
                _is("reclaimWithinCohort", "Never", None),
                _has("borrowWithinCohort"),
                ["not", _is("borrowWithinCohort.policy", "Never", None)],
            ],
        ],
        "",
    ),
    "self.flavors.all(x, size(x.resources) == size(self.coveredResources))": (
        ["or", _absent("flavors"), ["each-same-size", "flavors", "resources", "coveredResources"]],
        "",
    ),
    "!has(self.topologyName) || self.nodeLabels.size() >= 1": (
        ["or", _absent("topologyName"), ["size", "nodeLabels", 1, None]],
        "",
    ),
    "self.all(x, x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])": (
        ["each", "", _is("effect", *_EFFECTS)],
        "",
    ),
    "self.all(x, !has(x.key) ? x.operator == 'Exists' : true)": (
        ["each", "", ["or", _has("key"), _is("operator", "Exists")]],
        "",
    ),
    "self.all(x, has(x.tolerationSeconds) ? x.effect == 'NoExecute' : true)": (
        ["each", "", ["or", _absent("tolerationSeconds"), _is("effect", "NoExecute")]],
        "",
    ),
    "self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])": (
        ["each", "", _is("operator", "Equal", "Exists", None)],
        "",
    ),
    "self.all(x, has(x.operator) && x.operator == 'Exists' ? !has(x.value) : true)": (
        ["each", "", ["or", ["not", _is("operator", "Exists")], _absent("value")]],
        "",
    ),
    "self.all(x, !has(x.effect) || x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])": (
        ["each", "", _is("effect", *_EFFECTS, None)],
        "",
    ),
    "size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0": (["unique", ""], ""),
    "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0 ||"
    " self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'": (
        ["last-only", "", "nodeLabel", "kubernetes.io/hostname"],
        "",
    ),
    "!((has(self.onSuccess) || has(self.onFailure)) && has(self.deletionRules))": (
        ["not", ["and", ["count", ["onSuccess", "onFailure"], 1, 2], _has("deletionRules")]],
        "",
    ),
    "((has(self.onSuccess) && has(self.onFailure)) || has(self.deletionRules))": (
        ["or", ["count", ["onSuccess", "onFailure"], 2, 2], _has("deletionRules")],
        "",
    ),
    "!(has(self.jobStatus) && has(self.jobDeploymentStatus))": (
        ["count", ["jobStatus", "jobDeploymentStatus"], 0, 1],
        "",
    ),
    "has(self.jobStatus) || has(self.jobDeploymentStatus)": (["count", ["jobStatus", "jobDeploymentStatus"], 1, 2], ""),
}
