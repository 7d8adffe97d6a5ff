"""Nested objects, kinds of further operators, and objects of other files that a manifest names."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.inputs import find_definitions
from preflight.sources.kubernetes.workloads import KubernetesSource


def _read(text: str, path: str = "job.yaml", files: dict[str, str] | None = None) -> Reading:
    file = SourceFile(path, text, "", len(text))
    assert KubernetesSource().recognises(file)
    return KubernetesSource().read(file, MemoryTree({path: text, **(files or {})}))


def _about(reading: Reading, quantity: str) -> list[Claim]:
    return [claim for claim in reading.claims if claim.quantity == quantity]


def _indented(text: str, by: int) -> str:
    return "".join(" " * by + line for line in text.splitlines(keepends=True))


INNER = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 4
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: train
          image: example/train:1
          command: [bash, -c]
          args:
            - |
              torchrun --nnodes=4 --nproc_per_node=8 \\
                --node_rank=$JOB_COMPLETION_INDEX train.py
"""


@pytest.mark.parametrize(
    ("outer", "by"),
    [
        ("apiVersion: workload.codeflare.dev/v1beta2\nkind: AppWrapper\nspec:\n  components:\n    - template:\n", 8),
        (
            "apiVersion: workload.codeflare.dev/v1beta1\nkind: AppWrapper\nspec:\n  resources:\n    GenericItems:\n"
            "      - generictemplate:\n",
            10,
        ),
        (
            "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nspec:\n  templates:\n    - name: run\n      resource:\n"
            "        action: create\n        manifest: |\n",
            10,
        ),
        (
            "apiVersion: work.open-cluster-management.io/v1\nkind: ManifestWork\nspec:\n  workload:\n"
            "    manifests:\n      -\n",
            8,
        ),
    ],
)
def test_a_nested_object_keeps_its_location(outer: str, by: int) -> None:
    text = outer + _indented(INNER, by)
    (launch,) = _read(text).launches
    assert (launch.launcher, launch.program) == ("torchrun", "train.py")
    assert text.split("\n")[launch.span.line - 1][launch.span.column - 1 :].startswith("torchrun")


def test_a_workflow_runs_containers_of_its_own() -> None:
    text = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
spec:
  templates:
    - name: train
      container: {image: i, command: [torchrun, --nproc_per_node=2, "{{inputs.parameters.script}}"]}
"""
    (launch,) = _read(text).launches
    assert launch.launcher == "torchrun"


def test_dlrover_counts_its_workers() -> None:
    text = """\
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
spec:
  replicaSpecs:
    worker:
      replicas: 3
      template:
        spec:
          containers:
            - {name: main, image: i, command: [sh, -c, "dlrover-run --nnodes=$NODE_NUM --nproc_per_node=2 t.py"]}
"""
    reading = _read(text)
    nodes = [claim.value for claim in _about(reading, "nodes") if claim.scope == reading.launches[0].scope]
    assert nodes
    assert set(nodes) == {Known(3)}
    assert not _about(reading, "master_addr")


def test_trainers_and_servers_of_an_edl_job() -> None:
    text = """\
apiVersion: paddlepaddle.org/v1
kind: TrainingJob
spec:
  image: paddlepaddle/paddlecloud-job
  trainer: {entrypoint: python train.py, min-instance: 3, max-instance: 3}
  pserver: {min-instance: 2, max-instance: 2}
"""
    reading = _read(text)
    assert [claim.value for claim in _about(reading, "ps_workers")] == [Known(3)]
    assert [claim.value for claim in _about(reading, "ps_servers")] == [Known(2)]
    elastic = _read(text.replace("max-instance: 3", "max-instance: 6"))
    assert isinstance(_about(elastic, "ps_workers")[0].value, Unresolved)


def test_a_hyperpod_job_lists_its_roles() -> None:
    text = """\
apiVersion: sagemaker.amazonaws.com/v1
kind: HyperPodPyTorchJob
spec:
  nprocPerNode: "8"
  replicaSpecs:
    - name: pods
      replicas: 2
      template: {spec: {containers: [{name: c, image: i, command: [hyperpodrun, --nproc_per_node=8, t.py]}]}}
"""
    reading = _read(text)
    (launch,) = reading.launches
    assert Known(2) in [claim.value for claim in _about(reading, "nodes") if claim.scope == launch.scope]


def test_the_first_mpi_job_counts_gpus() -> None:
    text = """\
apiVersion: kubeflow.org/v1alpha1
kind: MPIJob
spec:
  gpus: 32
  template: {spec: {containers: [{name: c, image: i, command: [mpirun, python, t.py]}]}}
"""
    counts = {claim.scope.role: claim.value for claim in _about(_read(text), "pod_replicas")}
    assert counts == {"Launcher": Known(1), "Worker": Known(4)}


RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: team-torch
spec:
  mlPolicy: {numNodes: 1, torch: {numProcPerNode: 4}}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            spec:
              template:
                spec:
                  containers:
                    - name: node
                      image: example/torch:1
                      command: [torchrun, train.py]
                      env: [{name: A, value: runtime}, {name: B, value: runtime}]
                      resources: {limits: {nvidia.com/gpu: 4}}
"""
TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: mine}
spec:
  runtimeRef: {name: team-torch}
  trainer:
    numNodes: 3
    env: [{name: A, value: job}]
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
"""


def test_a_train_job_is_joined_with_the_runtime_that_it_names() -> None:
    reading = _read(TRAIN_JOB, "jobs/a.yaml", {"runtimes/torch.yaml": RUNTIME})
    (launch,) = reading.launches
    assert (launch.span.path, launch.span.line) == ("runtimes/torch.yaml", 18)
    said = {(c.quantity, c.value, c.span.path) for c in reading.claims if c.scope == launch.scope}
    assert ("nodes", Known(3), "jobs/a.yaml") in said
    assert ("gpus_per_node", Known(8), "jobs/a.yaml") in said
    processes = [c.value for c in _about(reading, "processes_per_node") if c.scope == launch.scope]
    assert processes == [Known(4)]
    variables = {c.quantity: c.value for c in reading.claims if c.scope == launch.scope}
    assert (variables["env.A"], variables["env.B"]) == (Known("job"), Known("runtime"))


def test_a_missing_runtime_is_not_a_fault() -> None:
    reading = _read(TRAIN_JOB)
    assert not [note for note in reading.notes if note.required]
    assert len(reading.launches) == 1


def test_a_script_in_a_config_map_of_another_file_runs_where_it_is_mounted() -> None:
    scripts = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\n"
        "data:\n  go.sh: |\n    torchrun --nproc_per_node=$N a.py\n"
    )
    pod = """\
apiVersion: v1
kind: Pod
spec:
  volumes: [{name: v, configMap: {name: s, items: [{key: go.sh, path: bin/run.sh}]}}]
  containers:
    - name: c
      image: i
      command: [bash, /opt/bin/run.sh]
      env: [{name: N, value: "4"}]
      volumeMounts: [{name: v, mountPath: /opt}]
"""
    reading = _read(pod, "p.yaml", {"deep/s.yaml": scripts})
    (launch,) = reading.launches
    assert (launch.span.path, launch.span.line, launch.program) == ("deep/s.yaml", 6, "a.py")
    (processes,) = _about(reading, "processes_per_node")
    assert processes.value == Known(4)
    assert not [reference for reference in reading.references if reference.target.endswith(".sh")]


def test_a_program_in_a_config_map_can_be_followed() -> None:
    text = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data:
  t.py: |
    import torch
---
apiVersion: v1
kind: Pod
spec:
  volumes: [{name: v, configMap: {name: code}}]
  containers:
    - {name: c, image: i, command: [torchrun, /code/t.py], volumeMounts: [{name: v, mountPath: /code}]}
"""
    reading = _read(text)
    (written,) = reading.written
    assert (written.text, written.span.line) == ("import torch\n", 6)
    assert reading.launches[0].program == written.path


def test_claimed_devices_are_counted() -> None:
    text = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two}
spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]}}}
---
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      resourceClaims: [{name: gpus, resourceClaimTemplateName: two}]
      containers: [{name: c, image: i, command: [torchrun, t.py], resources: {claims: [{name: gpus}]}}]
"""
    assert [claim.value for claim in _about(_read(text), "pod_gpus")] == [Known(2)]


def test_standard_input_is_recognised_by_its_content() -> None:
    source = KubernetesSource()
    assert source.recognises(SourceFile("stdin", f"---\n# Source: c/templates/j.yaml\n{INNER}", "", 0))
    assert not source.recognises(SourceFile("stdin", f"cat <<EOF | kubectl apply -f -\n{INNER}EOF\n", "", 0))


def test_the_nearest_neighbour_is_found_first() -> None:
    def config(name: str) -> str:
        return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n"

    tree = MemoryTree({"a/b/j.yaml": "", "a/b/x.yaml": config("x"), "x.yaml": config("x"), "a/y.yaml": config("y")})
    found = find_definitions(tree, "a/b/j.yaml", [("ConfigMap", "x"), ("ConfigMap", "y"), ("ConfigMap", "z")])
    assert [file.path for file in found] == ["a/b/x.yaml", "a/y.yaml"]
