"""Kubernetes manifests: which objects are jobs, the requests of their pods, and the commands of their containers."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from preflight.model.job import Claim, Known, Launch, NoteKind, Unresolved, Value
from preflight.model.job.value import is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats import lenient_yaml
from preflight.sources.formats.structured import Kind, Node
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.kubernetes.admission import Outcome, admission, holds
from preflight.sources.kubernetes.inputs import Overlay
from preflight.sources.kubernetes.pods import amount
from preflight.sources.kubernetes.workloads import KubernetesSource
from preflight.sources.tables import FOLDER

TORCH = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: train
  namespace: team
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              image: example/train:1
              command: [bash, -c]
              args:
                - |
                  export NCCL_DEBUG=INFO
                  torchrun --nnodes=$PET_NNODES \\
                    --node_rank=$RANK --nproc_per_node=$(PROCS) train.py
              env:
                - {name: PROCS, value: "8"}
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}
              resources: {limits: {nvidia.com/gpu: 8, cpu: 64, memory: 512Gi}}
    Worker:
      replicas: 3
      template:
        spec:
          containers:
            - name: pytorch
              image: example/train:1
              command: [bash, -c, "torchrun train.py"]
              resources: {limits: {nvidia.com/gpu: 8}}
"""


def _read(text: str, path: str = "job.yaml", files: dict[str, str] | None = None) -> Reading:
    file = SourceFile(path, text, "", len(text))
    assert KubernetesSource().recognises(file)
    reading = KubernetesSource().read(file, MemoryTree({path: text, **(files or {})}))
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _about(reading: Reading, quantity: str) -> list[Claim]:
    return [claim for claim in reading.claims if claim.quantity == quantity]


def _values(reading: Reading, quantity: str) -> list[Value]:
    return [claim.value for claim in _about(reading, quantity)]


def _launches(reading: Reading) -> list[tuple[str, str]]:
    return [(launch.launcher, launch.program) for launch in reading.launches]


def test_a_script_in_a_block_keeps_its_location() -> None:
    reading = _read(TORCH)
    first = reading.launches[0]
    assert (first.launcher, first.program, first.id) == ("torchrun", "train.py", "job.yaml:20")
    nodes = [c for c in _about(reading, "nodes") if c.scope == first.scope]
    assert {(c.source, c.value) for c in nodes} == {("kubernetes", Known(4)), ("torchrun", Known(4))}
    processes = next(c for c in _about(reading, "processes_per_node") if c.scope == first.scope)
    assert processes.value == Known(8)
    assert (processes.span.line, processes.span.column) == (21, 39)
    assert TORCH.split("\n")[20][38:].startswith("--nproc_per_node")
    debug = next(c for c in _about(reading, "env.NCCL_DEBUG") if c.scope == first.scope)
    assert (debug.value, debug.span.line) == (Known("INFO"), 19)


def test_variables_of_the_operator_are_not_claims_of_the_file() -> None:
    reading = _read(TORCH)
    assert not _about(reading, "env.WORLD_SIZE")
    assert not _about(reading, "env.PET_NNODES")
    # The operator's variables determine nodes and processes of the worker's bare `torchrun train.py`.
    second = reading.launches[1]
    claimed = {c.quantity: c.value for c in reading.claims if c.scope == second.scope and c.source == "torchrun"}
    assert claimed["nodes"] == Known(4)
    assert claimed["processes_per_node"] == Known(8)


def test_secrets_are_not_known() -> None:
    (token,) = _about(_read(TORCH), "env.TOKEN")
    assert isinstance(token.value, Unresolved)


def test_requests_of_pods_are_claimed() -> None:
    reading = _read(TORCH)
    master = [c for c in reading.claims if c.scope.role == "Master"]
    said = {claim.quantity: claim.value for claim in master}
    assert said["pod_gpus"] == Known(8)
    assert said["pod_cpus"] == Known(64.0)
    assert said["pod_memory_mib"] == Known(512 * 1024)
    assert _values(reading, "namespace") == [Known("team")]
    assert [c.scope.role for c in _about(reading, "pod_replicas")] == ["Master", "Worker"]


@pytest.mark.parametrize(
    ("written", "number"), [("500m", 0.5), (4, 4.0), ("1.5", 1.5), ("2Gi", 2 * 1024.0**3), ("1e3", 1000.0), ("1M", 1e6)]
)
def test_quantities(written: str | int, number: float) -> None:
    assert amount(written) == number


@pytest.mark.parametrize("written", ["four", "", None, True, "4 Gi i"])
def test_invalid_quantities_are_unresolved(written: str | bool | None) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        amount(written)


def test_several_documents_and_a_list() -> None:
    pod = "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {containers: [{name: c, command: [torchrun, a.py]}]}\n"
    assert _launches(_read(f"{pod}---\n{pod}")) == [("torchrun", "a.py")] * 2
    listed = "apiVersion: v1\nkind: List\nitems:\n  - " + pod.replace("\n", "\n    ")
    assert _launches(_read(listed)) == [("torchrun", "a.py")]


def test_json() -> None:
    text = json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": {"containers": [{"name": "c", "command": ["torchrun", "--nproc_per_node", "4", "a.py"]}]},
        },
        indent=1,
    )
    reading = _read(text, "pod.json")
    assert _launches(reading) == [("torchrun", "a.py")]
    (processes,) = _about(reading, "processes_per_node")
    assert processes.value == Known(4)
    assert text.split("\n")[processes.span.line - 1].strip().startswith('"--nproc_per_node"')


def test_a_chart_gives_unresolved_values_and_no_error() -> None:
    text = TORCH.replace("replicas: 3", "replicas: {{ .Values.workers }}").replace(
        "spec:\n  nproc", "spec:\n  {{- if .Values.x }}\n  a: 1\n  {{- end }}\n  nproc"
    )
    reading = _read(text)
    assert not [note for note in reading.notes if note.kind is not NoteKind.TEMPLATE]
    assert isinstance(_values(reading, "pod_replicas")[1], Unresolved)
    nodes = [c.value for c in _about(reading, "nodes") if c.source == "kubernetes"]
    assert all(isinstance(value, Unresolved) for value in nodes)


def test_envsubst_placeholders_are_unresolved() -> None:
    text = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: [torchrun, --nnodes=$N, a.py]\n"
    (nodes,) = _about(_read(text), "nodes")
    assert isinstance(nodes.value, Unresolved)


def test_a_plain_pod_without_a_launch_is_not_a_job() -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx}]}\n"
    assert _read(text) == Reading()


def test_broken_yaml_gives_a_located_note() -> None:
    reading = _read(TORCH + "  - [broken\n")
    assert reading.notes
    assert reading.notes[0].kind is NoteKind.MALFORMED
    assert reading.notes[0].span.line >= 8


def test_the_mpi_launcher_gets_the_workers() -> None:
    text = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  slotsPerWorker: 4
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: l, command: [mpirun, -np, "8", python, t.py]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: 4}}}]}}
"""
    reading = _read(text)
    scope = reading.launches[0].scope
    said = {c.quantity: c.value for c in reading.claims if c.scope == scope}
    assert (said["nodes"], said["tasks"], said["gpus_per_node"]) == (Known(2), Known(8), Known(4))
    assert _values(reading, "slots_per_worker") == [Known(4)]


@pytest.mark.parametrize(
    ("kind", "spec", "roles"),
    [
        ("batch.volcano.sh/v1alpha1 Job", "tasks: [{name: a, replicas: 2, template: T}]", {"a": 2}),
        ("batch/v1 Job", "{parallelism: 4, template: T}", {"": 4}),
        (
            "jobset.x-k8s.io/v1alpha2 JobSet",
            "replicatedJobs: [{name: w, replicas: 2, template: {spec: {parallelism: 3, template: T}}}]",
            {"w": 6},
        ),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            "leaderWorkerTemplate: {size: 4, leaderTemplate: T, workerTemplate: T}",
            {"leader": 1, "worker": 3},
        ),
        ("apps/v1 StatefulSet", "{replicas: 2, template: T}", {"": 2}),
        (
            "ray.io/v1 RayCluster",
            "{headGroupSpec: {template: T}, workerGroupSpecs: [{groupName: g, replicas: 2, numOfHosts: 2, template: T}]"
            "}",
            {"head": 1, "g": 4},
        ),
        ("batch.paddlepaddle.org/v1 PaddleJob", "{worker: {replicas: 2, template: T}}", {"worker": 2}),
        ("kubeflow.org/v1 TFJob", "tfReplicaSpecs: {PS: {replicas: 2, template: T}}", {"PS": 2}),
        ("trainer.kubeflow.org/v1alpha1 TrainJob", "trainer: {numNodes: 3, command: [torchrun, t.py]}", {"trainer": 3}),
    ],
)
def test_roles(kind: str, spec: str, roles: dict[str, int]) -> None:
    version, _, name = kind.partition(" ")
    template = "{spec: {containers: [{name: c, image: i, command: [torchrun, t.py]}]}}"
    spec = spec if spec.startswith("{") else "{" + spec + "}"
    spec = spec.replace("emplate: T", "emplate: " + template)
    reading = _read(f"apiVersion: {version}\nkind: {name}\nspec: {spec}\n")
    assert {c.scope.role: c.value for c in _about(reading, "pod_replicas")} == {k: Known(v) for k, v in roles.items()}


def test_a_config_map_beside_it_gives_variables() -> None:
    text = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: env}
data: {NCCL_SOCKET_IFNAME: eth0}
---
apiVersion: v1
kind: Pod
spec:
  containers:
  - command: [torchrun, t.py]
    envFrom: [{configMapRef: {name: env}}]
"""
    claims = _about(_read(text), "env.NCCL_SOCKET_IFNAME")
    assert {(claim.value, claim.span.line) for claim in claims} == {(Known("eth0"), 4)}


def test_annotations_suppress() -> None:
    text = TORCH.replace(
        "  namespace: team\n", '  namespace: team\n  annotations: {preflight/ignore: "KUB008,KUB005 no mesh here"}\n'
    )
    suppressions = _read(text).suppressions
    assert {s.names for s in suppressions} == {("KUB008", "KUB005")}
    assert {s.reason for s in suppressions} == {"no mesh here"}
    assert {1, 5, 20} <= {s.line for s in suppressions}


def test_a_custom_resource_definition_is_not_a_job() -> None:
    text = (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nspec:\n  names:\n    kind: PyTorchJob\n"
    )
    assert not KubernetesSource().recognises(SourceFile("crd.yaml", text, "", len(text)))


def test_an_image_that_starts_ranks_itself_is_a_launch() -> None:
    text = TORCH.replace("command: [bash, -c]", "x: y").replace('command: [bash, -c, "torchrun train.py"]', "x: y")
    text = text[: text.index("              args:")] + text[text.index("              env:") :]
    reading = _read(text)
    (launch,) = reading.launches
    assert launch == Launch("job.yaml:2", "image", launch.span)
    said = {c.quantity: c.value for c in reading.claims if c.scope == launch.scope}
    assert (said["nodes"], said["processes_per_node"], said["gpus_per_node"]) == (Known(4), Known(8), Known(8))


def test_secrets_of_an_image_that_starts_ranks_are_hidden() -> None:
    text = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - name: pytorch
              image: i:1
              env: [{name: HF_TOKEN, value: hf_abcdefgh12345678}]
"""
    reading = _read(text)
    assert _about(reading, "env.HF_TOKEN")
    assert "hf_abcdefgh12345678" not in repr(reading)


def test_a_variable_that_no_shell_expands_is_claimed() -> None:
    text = TORCH.replace('[bash, -c, "torchrun train.py"]', '[torchrun, "--nnodes=$WORLD_SIZE", train.py]')
    (claim,) = _about(_read(text), "unexpanded_variable")
    assert (claim.value, claim.spelling) == (Known("WORLD_SIZE"), "$WORLD_SIZE")
    assert claim.span.line == 33
    placeholder = TORCH.replace('[bash, -c, "torchrun train.py"]', '[torchrun, "--nnodes=$NODES", train.py]')
    assert not _about(_read(placeholder), "unexpanded_variable")


def test_ray_nodes_announce_their_gpus() -> None:
    text = """\
apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec:
    rayStartParams: {num-gpus: "0"}
    template: {spec: {containers: [{name: h, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""
    assert _values(_read(text), "ray_num_gpus") == [Known(0)]


def test_a_launch_has_the_gpus_of_its_own_container() -> None:
    text = """\
apiVersion: v1
kind: Pod
spec:
  containers:
    - {name: server, image: i, command: [serve], resources: {limits: {nvidia.com/gpu: 1}}}
    - {name: train, image: i, command: [torchrun, --nproc_per_node=3, t.py], resources: {limits: {nvidia.com/gpu: 3}}}
"""
    reading = _read(text)
    (gpus,) = [claim for claim in _about(reading, "gpus_per_node") if claim.scope == reading.launches[0].scope]
    assert (gpus.value, gpus.span.line) == (Known(3), 6)
    assert _values(reading, "pod_gpus") == [Known(4)]


def test_a_ray_job_submits_its_entry_point() -> None:
    text = """\
apiVersion: ray.io/v1
kind: RayJob
spec:
  entrypoint: torchrun --nproc_per_node=2 train.py
  rayClusterSpec:
    headGroupSpec: {template: {spec: {containers: [{name: h, image: i}]}}}
"""
    (launch,) = _read(text).launches
    assert (launch.launcher, launch.program, launch.span.line) == ("torchrun", "train.py", 4)
    (launch,) = _read(text.replace("torchrun --nproc_per_node=2", "python")).launches
    assert (launch.launcher, launch.program, launch.span.line) == ("ray", "train.py", 2)


JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: slices}
spec:
  replicatedJobs:
    - name: slice
      replicas: 2
      template:
        spec:
          parallelism: 4
          completions: 4
          template:
            spec:
              containers:
                - name: train
                  image: example/train:1
                  command: [bash, -c, "python3 train.py"]
                  resources: {limits: {RESOURCE: 4}}
"""


@pytest.mark.parametrize(
    ("resource", "processes"), [("google.com/tpu", [Known(1)]), ("nvidia.com/gpu", []), ("amd.com/gpu", [])]
)
def test_a_jobset_of_pods_with_accelerators_is_a_launch(resource: str, processes: list[Value]) -> None:
    reading = _read(JOBSET.replace("RESOURCE", resource))
    (launch,) = reading.launches
    assert (launch.launcher, launch.program, launch.span.line) == ("image", "train.py", 2)
    assert [c.value for c in _about(reading, "nodes") if c.scope == launch.scope] == [Known(8)]
    assert _values(reading, "processes_per_node") == processes


@pytest.mark.parametrize(
    "text",
    [
        JOBSET.replace("RESOURCE", "cpu"),
        JOBSET.replace("RESOURCE", "nvidia.com/gpu").replace("python3 train.py", "./start"),
        JOBSET.replace("RESOURCE", "nvidia.com/gpu").replace("replicas: 2", "replicas: 1").replace("m: 4", "m: 1"),
    ],
)
def test_other_jobsets_start_no_ranks(text: str) -> None:
    assert not _read(text).launches


TPU_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: slice}
spec:
  completionMode: Indexed
  parallelism: 4
  completions: 4
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: jax
          image: python:3.12
          command: [bash, -c, "pip install jax; python train.py"]
          resources: {limits: {google.com/tpu: 4}}
"""


def test_an_indexed_job_with_tpus_is_one_process_on_each_host() -> None:
    reading = _read(TPU_JOB)
    assert _launches(reading) == [("image", "train.py")]
    assert (_values(reading, "nodes"), _values(reading, "processes_per_node")) == ([Known(4)], [Known(1)])


@pytest.mark.parametrize(
    ("old", "new"), [("google.com/tpu: 4", "cpu: 4"), ("completionMode: Indexed", "backoffLimit: 1")]
)
def test_other_jobs_with_a_python_program_are_no_slice(old: str, new: str) -> None:
    text = TPU_JOB.replace(old, new)
    assert KubernetesSource().read(SourceFile("job.yaml", text, "", len(text)), MemoryTree({})).launches == ()


# The schemas of custom resources and their conditions, on small objects.


TABLE: dict[str, Any] = json.loads((FOLDER / "custom_resources.json").read_text(encoding="utf-8"))


def node(text: str) -> Node:
    root = lenient_yaml.parse(text).root
    assert root is not None
    return root


def outcome(text: str) -> Outcome:
    found = admission(node(text))
    assert found is not None
    return found


QUEUE = "apiVersion: kueue.x-k8s.io/v1beta1\nkind: LocalQueue\nmetadata: {name: a, namespace: b}\nspec: "


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("{clusterQueue: gpus}", ""),
        ("{clusterQueue: $QUEUE}", ""),
        ("{clusterQueue: null}", ""),
        ("{clusterQueues: gpus}", "`clusterQueues` is not a field of spec"),
        ("{clusterQueue: 3}", "`clusterQueue: 3` is a number, where a string is expected"),
        ("{clusterQueue: Gpus}", "does not match"),
        ("{stopPolicy: none}", "is not one of"),
        ("[gpus]", "`spec` is a list, where a mapping is expected"),
    ],
)
def test_a_field_is_compared_with_its_schema(spec: str, problem: str) -> None:
    found = outcome(QUEUE + spec)
    assert [problem in refusal.problem for refusal in found.refusals] == ([True] if problem else [])


def test_a_refusal_is_located_at_its_key() -> None:
    text = QUEUE + "{clusterQueues: gpus}"
    (refusal,) = outcome(text).refusals
    assert text[refusal.start : refusal.end] == "clusterQueues: gpus"
    assert refusal.remedy == "Write `clusterQueue`."


def test_releases_that_accept_the_object_are_named() -> None:
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: a}\n"
        "spec: {runtimeRef: {name: r}, initializer: {model: {storageUri: llama}}}"
    )
    (refusal,) = outcome(text).refusals
    assert refusal.refused_by == "trainer 2.3.0"
    assert refusal.accepted_by[-1] == "trainer 2.2.1"


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "MyJob"])
def test_other_kinds_are_not_judged(kind: str) -> None:
    assert admission(node(f"apiVersion: v1\nkind: {kind}\nspec: {{}}")) is None


def test_a_version_of_earlier_releases_is_not_judged() -> None:
    assert admission(node("apiVersion: kubeflow.org/v1beta2\nkind: PyTorchJob")) is None


@pytest.mark.parametrize(
    ("text", "condition", "expected"),
    [
        ("{a: 1}", ["count", ["a", "b"], 0, 1], True),
        ("{a: 1, b: 2}", ["count", ["a", "b"], 0, 1], False),
        ("{a: x}", ["in", "a", ["y", None]], False),
        ("{}", ["in", "a", ["y", None]], True),
        ("{a: {{ x }}}", ["in", "a", ["y"]], "{{ x }}"),
        ("{a: {{ x }}}", ["or", ["in", "a", ["y"]], ["has", "a"]], True),
        ("{a: {{ x }}}", ["and", ["in", "a", ["y"]], ["has", "b"]], False),
        ("{a: [{b: 1}, {}]}", ["each", "a", ["has", "b"]], False),
        ("{a: [{b: 1}, {}]}", ["some", "a", ["has", "b"]], True),
        ("{a: [x, y, x]}", ["unique", "a"], False),
        ("{a: [{k: last}, {k: x}]}", ["last-only", "a", "k", "last"], False),
        ("{a: [x, {{ y }}]}", ["unique", "a"], "{{ y }}"),
        ("{a: [x, {{ y }}, x]}", ["unique", "a"], False),
        ("{a: [{k: {{ y }}}, {k: x}]}", ["last-only", "a", "k", "last"], "{{ y }}"),
        ("{a: [{k: last}, {k: {{ y }}}]}", ["last-only", "a", "k", "last"], "{{ y }}"),
        ("{a: [{k: {{ y }}}, {k: last}]}", ["last-only", "a", "k", "last"], True),
        ("{f: [{r: {{ y }}}], c: [1, 2]}", ["each-same-size", "f", "r", "c"], "{{ y }}"),
        ("{a: [{{ x }}, {b: {{ y }}}]}", ["some", "a", ["has", "c"]], "{{ x }}"),
        ("{a: {b: null}}", ["size", "a", 1, None], False),
        ("{a: auto}", ["at-least", "a", 1], False),
        ("{f: [{r: [1]}], c: [1, 2]}", ["each-same-size", "f", "r", "c"], False),
    ],
)
def test_conditions(text: str, condition: list[Any], expected: bool | str) -> None:
    found = holds(node(text), condition)
    assert (text[found.start : found.end] if isinstance(found, Node) else found) == expected


def test_an_open_rule_is_left_open_at_the_value_that_it_depends_on() -> None:
    text = (
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: a, labels: {k: '{{ other }}'}}\n"
        "spec: {startupPolicy: {startupPolicyOrder: InOrder}, replicatedJobs: [{{ jobs }}]}"
    )
    found = outcome(text)
    assert found.refusals == ()
    assert [text[start:end] for start, end in found.open_values][-1] == "{{ jobs }}"


def test_every_condition_of_the_table_can_be_evaluated() -> None:
    rules = [rule for part in TABLE["parts"] for rule in part.get("rules", ())]
    assert len(rules) > 20
    for condition, message, _ in rules:
        assert message
        holds(node("{a: [1]}"), condition)


# Overlays, compared with the kustomize of kubectl if it is installed.


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


def _overlay_read(files: dict[str, str], path: str = "big/kustomization.yaml") -> Reading:
    file = SourceFile(path, files[path], "", len(files[path]))
    assert KubernetesSource().recognises(file)
    return KubernetesSource().read(file, MemoryTree(files))


def test_every_value_has_the_location_of_its_patch_or_base() -> None:
    reading = _overlay_read(FILES)
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
    composed = {reference.target for reference in _overlay_read(FILES).references if reference.role == "composed"}
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
    reading = _overlay_read({**FILES, "big/kustomization.yaml": text})
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
