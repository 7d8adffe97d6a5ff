"""What the Kubernetes executor can be told by `--on-option`."""

from __future__ import annotations

import re
from pathlib import Path

from preflight.executors.base import Option
from preflight.lazy.patterns import lazy_pattern

#: How long pods of our own live at most, should nobody be left to delete them.
LIFETIME_S = 900
#: Names of pods, jobs and namespaces.
NAME = lazy_pattern(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _name_wrong(value: str) -> str:
    return "" if NAME.fullmatch(value) else f"{value!r} is no name of Kubernetes: small letters, digits, - and ."


def _file_wrong(value: str) -> str:
    return "" if Path(value).is_file() else f"there is no file {value}"


def _yes_wrong(value: str) -> str:
    return "" if value in ("yes", "no") else "yes or no is expected"


def _number_wrong(value: str) -> str:
    return "" if value.isdigit() and 0 < int(value) <= 100_000 else "a number above 0 is expected"


def _program_wrong(value: str) -> str:
    return "" if value and "\0" not in value else "the path of a Python is expected"


OPTIONS = (
    Option("job", "look into the pods of this job (of any controller)", "train", _name_wrong),
    Option("selector", "look into the pods that this label selector finds", "app=train"),
    Option("namespace", "where the pods are; default: the manifest's, else the context's", "ml", _name_wrong),
    Option("container", "which container of each pod; default: the one with devices, else the first", "trainer"),
    Option("manifest", "the manifest that names the job, and whose pods `create` copies", "job.yaml", _file_wrong),
    Option("object", "which object of the manifest, where it holds several jobs", "train"),
    Option("create", "make pods like the manifest's, one a node, and delete them at the end", "yes", _yes_wrong),
    Option("pods", "how many pods to make; default: as many as the manifest's job has", "4", _number_wrong),
    Option("lifetime", "after how many seconds pods of our own end in any case", str(LIFETIME_S), _number_wrong),
    Option("kubeconfig", "the configuration to use instead of kubectl's", "~/.kube/other", _file_wrong),
    Option("context", "the context of the configuration to use", "cluster-a"),
    Option("interpreter", "a Python here that has the Kubernetes client", "/opt/k8s/bin/python", _program_wrong),
)
