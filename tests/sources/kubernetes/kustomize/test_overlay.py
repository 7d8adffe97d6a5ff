"""Overlays, compared with the kustomize of kubectl if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from preflight.model.job import Known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.structured import Kind, Node
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.kustomization import Overlay
from preflight.sources.kubernetes.workloads import KubernetesSource

JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          volumes: [{name: scripts, configMap: {name: scripts}}]
          containers:
            - name: pytorch
              image: example/train:1
              command: [bash, /scripts/run.sh]
              volumeMounts: [{name: scripts, mountPath: /scripts}]
              resources: {limits: {nvidia.com/gpu: 4}}
"""
FILES = {
    "base/kustomization.yaml": "resources: [job.yaml]\nconfigMapGenerator:\n- name: scripts\n  files: [run.sh]\n",
    "base/job.yaml": JOB,
    "base/run.sh": "#!/bin/bash\ntorchrun --nproc_per_node=4 \\\n  train.py\n",
    "big/kustomization.yaml": """\
resources: [../base]
namePrefix: big-
namespace: team
commonLabels: {kueue.x-k8s.io/queue-name: gpus}
images: [{name: example/train, newTag: "2"}]
patches:
- path: workers.yaml
- target: {kind: PyTorchJob, name: train}
  patch: |
    - op: replace
      path: /spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/resources/limits/nvidia.com~1gpu
      value: 8
""",
    "big/workers.yaml": """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec: {pytorchReplicaSpecs: {Worker: {replicas: 16}}}
""",
}


def _read(files: dict[str, str], path: str = "big/kustomization.yaml") -> Reading:
    file = SourceFile(path, files[path], "", len(files[path]))
    assert KubernetesSource().recognises(file)
    return KubernetesSource().read(file, MemoryTree(files))


def test_every_value_has_the_location_of_its_patch_or_base() -> None:
    reading = _read(FILES)
    said = {claim.quantity: claim for claim in reading.claims}
    assert (said["pod_replicas"].value, said["pod_replicas"].span.path) == (Known(16), "big/workers.yaml")
    gpus = said["pod_gpus"]
    assert (gpus.value, gpus.span.path, gpus.span.line) == (Known(8), "big/kustomization.yaml", 12)
    assert (said["pod_image"].value, said["pod_image"].span.line) == (Known("example/train:2"), 5)
    assert said["workload_name"].value == Known("big-train")
    assert said["namespace"].value == Known("team")
    (launch,) = reading.launches
    assert (launch.span.path, launch.span.line) == ("base/run.sh", 2)


def test_a_base_belongs_to_its_overlay() -> None:
    composed = {reference.target for reference in _read(FILES).references if reference.role == "composed"}
    assert {"base/kustomization.yaml", "base/job.yaml", "big/workers.yaml"} <= composed


@pytest.mark.parametrize(
    "text",
    [
        "resources: [../../outside, https://example.com/x?ref=1, missing.yaml]\n",
        "resources: [.]\n",
        "resources: [../base]\npatches:\n- target: {kind: PyTorchJob}\n  patch: |\n    - {op: remove, path: /no}\n",
        "resources: [../base]\npatches: [{path: gone.yaml}, 7, {}]\nimages: 3\n",
        "resources:\n- [\n",
    ],
)
def test_invalid_or_missing_parts_do_not_raise(text: str) -> None:
    reading = _read({**FILES, "big/kustomization.yaml": text})
    assert not [note for note in reading.notes if note.required]


def _plain(node: Node) -> Any:
    if node.kind is Kind.OBJECT:
        return {member.key: _plain(member.node) for member in node.in_force}
    return [_plain(item) for item in node.items] if node.kind is Kind.ARRAY else node.value


DEPLOYED = """\
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  parallelism: 2
  template:
    spec:
      containers:
      - {name: a, image: i, env: [{name: X, value: "1"}, {name: Y, value: "2"}], args: [one, two]}
      - {name: b, image: k:1}
"""
PATCHES = """\
resources: [j.yaml]
images: [{name: i, newName: r/i, newTag: v2}, {name: k, digest: "sha256:aa"}]
patches:
- patch: |
    apiVersion: batch/v1
    kind: Job
    metadata: {name: j}
    spec:
      parallelism: null
      template:
        spec:
          nodeSelector: {gpu: h100}
          containers:
          - {name: a, args: [three], env: [{name: Y, value: "3"}, {name: Z, value: "4"}]}
          - {name: b, $patch: delete}
- target: {kind: Job}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: four}
    - {op: add, path: /metadata/annotations, value: {a/b: c}}
"""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_the_same(tmp_path: Path) -> None:
    files = {"kustomization.yaml": PATCHES, "j.yaml": DEPLOYED}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    run = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    (theirs,) = yaml.safe_load_all(run.stdout)
    (ours,) = Overlay(MemoryTree(files)).build(SourceFile("kustomization.yaml", PATCHES, "", 0))
    assert _plain(ours) == theirs
