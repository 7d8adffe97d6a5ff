"""The output of `preflight manifest` is valid, adds only its own parts, and finds faults when it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from preflight._util.usage_error import UsageError
from preflight.cli.main import cli
from preflight.commands.manifest import MAX_BYTES, ManifestOptions, gate_job, patch_manifest, pieces

pytestmark = pytest.mark.thorough

JOB = """\
# Nightly.
apiVersion: batch/v1
kind: Job
metadata:
  name: train     # the name
  namespace: ml
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      # what runs
      containers:
        - name: trainer
          image: registry.example/train:1
          command: ["torchrun", "--nnodes=4", "--master_addr=train-0.train", "train.py"]   # four of them
          env: [{name: NCCL_DEBUG, value: "WARN"}]
          resources: {limits: {nvidia.com/gpu: "8"}}
          volumeMounts:
            - {name: shm, mountPath: /dev/shm}
      volumes:
      - name: shm
        emptyDir: {medium: Memory}
"""
PYTORCHJOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: ptj}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          initContainers:
          - name: fetch
            image: i
          containers:
          - {name: pytorch, image: i}
    Worker:
      replicas: 3
      template:
        spec:
          containers:
          - {name: pytorch, image: i}
"""
FILES = {"job.yaml": JOB, "train.py": "print('a')\n"}


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def test_a_patched_manifest_only_gains_our_lines() -> None:
    new = patch_manifest(JOB, FILES, ManifestOptions())
    lines = new.splitlines()
    kept = [line for line in lines if line in set(JOB.splitlines())]
    assert [line for line in JOB.splitlines() if line not in kept] == []
    position = [lines.index(line) for line in JOB.splitlines() if lines.count(line) == 1]
    assert position == sorted(position)
    assert any(line.endswith('"train.py"]   # four of them') for line in lines)
    job, config = documents(new)
    pod = job["spec"]["template"]["spec"]
    (ours,) = pod["initContainers"]
    assert ours["name"] == "preflight" and ours["image"] == "registry.example/train:1"
    assert ours["resources"] == {"limits": {"nvidia.com/gpu": "8"}} and ours["env"] == pod["containers"][0]["env"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in ours["volumeMounts"]
    assert [volume["name"] for volume in pod["volumes"]] == ["preflight-job", "shm"]
    assert config["kind"] == "ConfigMap" and config["metadata"] == {"name": "preflight-train", "namespace": "ml"}
    assert sorted(config["data"].values()) == sorted(FILES.values())


def test_every_training_role_gets_the_init_container_first() -> None:
    job, _ = documents(patch_manifest(PYTORCHJOB, {"p.yaml": PYTORCHJOB}, ManifestOptions()))
    roles = job["spec"]["pytorchReplicaSpecs"]
    named = {
        name: [each["name"] for each in role["template"]["spec"]["initContainers"]] for name, role in roles.items()
    }
    assert named == {"Master": ["preflight", "fetch"], "Worker": ["preflight"]}


def test_a_patched_manifest_is_not_patched_again() -> None:
    with pytest.raises(UsageError, match="already"):
        patch_manifest(
            patch_manifest(JOB, FILES, ManifestOptions(name="train")).split("---")[0], FILES, ManifestOptions()
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (JOB.replace("      containers:\n", "      initContainers: []\n      containers:\n"), "not written as a block"),
        (
            "{apiVersion: batch/v1, kind: Job, metadata: {name: a},\n"
            " spec: {template: {spec: {containers: [{name: c}]}}}}",
            "not written in block style",
        ),
        (JOB.replace("4", "{{ .Values.n }}"), "render the template first"),
        ("apiVersion: v1\nkind: ConfigMap\n", "does not contain exactly one job"),
        (JOB + "---\n" + JOB.replace("name: train ", "name: other "), "Job train, Job other"),
    ],
)
def test_a_manifest_that_cannot_be_extended_is_rejected(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        patch_manifest(text, FILES, ManifestOptions())


def test_files_that_are_too_large_are_rejected() -> None:
    with pytest.raises(UsageError, match="a ConfigMap holds"):
        pieces(JOB, {"data": "x" * (MAX_BYTES + 1)}, ManifestOptions())


def test_the_parts_name_their_position() -> None:
    text = pieces(JOB, FILES, ManifestOptions(install=True, lenient=True, options=("--select", "GPU")))
    config, parts = documents(text)
    assert config["kind"] == "ConfigMap" and set(parts) == {"volumes", "initContainers"}
    line = parts["initContainers"][0]["command"][2]
    assert "pip install" in line and line.endswith("|| true") and "--select GPU" in line
    assert text.startswith("# For Job train: apply this ConfigMap first")


def schema_errors(document: Any) -> str:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    try:
        validate.validate(document, "1.33", strict=True)
    except validate.ValidationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("make", [patch_manifest, gate_job])
def test_the_output_follows_the_schema_of_kubernetes(make: Any) -> None:
    found = documents(make(JOB, FILES, ManifestOptions()))
    assert [document["kind"] for document in found] in (["Job", "ConfigMap"], ["ConfigMap", "Job"])
    assert [schema_errors(document) for document in found] == ["", ""]
    found[0]["metadata"]["name"] = 7
    assert schema_errors(found[0])


def test_our_own_pods_follow_the_schema_of_kubernetes() -> None:
    from preflight.executors.kubernetes_pods import build_job, choose_source

    source = choose_source(JOB, "")
    job = build_job(source, source.roles[0], name="preflight-1", namespace="ml", count=4, lifetime_s=60)
    assert schema_errors(job) == ""


def test_a_separate_job_checks_the_same_number_of_nodes() -> None:
    config, job = documents(gate_job(PYTORCHJOB, {"p.yaml": PYTORCHJOB}, ManifestOptions()))
    assert job["spec"]["completions"] == 4 and job["spec"]["backoffLimitPerIndex"] == 0
    assert "backoffLimit" not in job["spec"]
    assert config["metadata"]["name"] == job["metadata"]["name"] == "preflight-ptj"


def run_container(folder: Path, text: str, image_python: str) -> subprocess.CompletedProcess[str]:
    """Run the init container's command as a container would: with the ConfigMap's files mounted."""
    job, config = documents(text)
    (container,) = job["spec"]["template"]["spec"]["initContainers"]
    (volume,) = [v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "preflight-job"]
    place = folder / "preflight"
    for item in volume["configMap"]["items"]:
        (place / item["path"]).parent.mkdir(parents=True, exist_ok=True)
        (place / item["path"]).write_text(config["data"][item["key"]])
    line = container["command"][2].replace("/preflight", str(place))
    environment = {"PATH": f"{Path(image_python).parent}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        ["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, cwd=folder, timeout=60
    )


@pytest.mark.parametrize(("path", "code"), [("/usr", 0), ("/no/such/data", 1)])
def test_the_init_container_passes_a_good_pod_and_stops_a_bad_one(tmp_path: Path, path: str, code: int) -> None:
    job = JOB.replace('"train.py"]', f'"train.py", "--data-path", "{path}"]')
    job = job.replace('          resources: {limits: {nvidia.com/gpu: "8"}}\n', "")
    # Without it the pods have no names (KUB033).
    job = job.replace("      restartPolicy: Never\n", "      restartPolicy: Never\n      subdomain: train\n")
    (tmp_path / "job.yaml").write_text(job)
    script = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data-path')\np.parse_args()\n"
    (tmp_path / "train.py").write_text(script)
    arguments = ["manifest", str(tmp_path / "job.yaml"), "--as", "patch", "--root", str(tmp_path)]
    printed = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert printed.exception is None, printed.output
    done = run_container(tmp_path, printed.output, sys.executable)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("/no/such/data" in done.stdout) is (code == 1)
