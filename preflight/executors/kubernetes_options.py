"""Options of the Kubernetes executor (`--on-option`)."""

from __future__ import annotations

import re
from pathlib import Path

from preflight.executors.base import Option
from preflight.model.job import is_whole_number

#: The longest lifetime of our own pods, in case they are not deleted.
LIFETIME_S = 900
#: Names of pods, jobs and namespaces.
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


def _name_problem(value: str) -> str:
    return (
        "" if NAME.fullmatch(value) else f"{value!r} is not a Kubernetes name: use lower-case letters, digits, - and ."
    )


def _file_problem(value: str) -> str:
    return "" if Path(value).is_file() else f"the file {value} does not exist"


def _yes_no_problem(value: str) -> str:
    return "" if value in ("yes", "no") else "expected yes or no"


def _number_problem(value: str) -> str:
    return "" if is_whole_number(value) and 0 < int(value) <= 100_000 else "expected a number above 0"


def _program_problem(value: str) -> str:
    return "" if value and "\0" not in value else "expected the path of a Python interpreter"


OPTIONS = (
    Option("job", "use the pods of this job (of any controller)", "train", _name_problem),
    Option("selector", "use the pods that this label selector matches", "app=train"),
    Option("namespace", "the namespace of the pods; default: the manifest's, else the context's", "ml", _name_problem),
    Option("container", "the container of each pod; default: the one with devices, else the first", "trainer"),
    Option("manifest", "the manifest that names the job, and whose pods `create` copies", "job.yaml", _file_problem),
    Option("object", "the object of the manifest, if it contains several jobs", "train"),
    Option("create", "make pods like the manifest's, one per node, and delete them at the end", "yes", _yes_no_problem),
    Option("pods", "the number of pods to make; default: that of the manifest's job", "4", _number_problem),
    Option("lifetime", "the maximum lifetime of created pods, in seconds", str(LIFETIME_S), _number_problem),
    Option("kubeconfig", "the configuration to use instead of kubectl's", "~/.kube/other", _file_problem),
    Option("context", "the context of the configuration to use", "cluster-a"),
    Option("interpreter", "a local Python that has the Kubernetes client", "/opt/k8s/bin/python", _program_problem),
)
