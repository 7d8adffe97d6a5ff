"""The Kubernetes manifests are valid, current, and free of findings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from preflight import api
from preflight.model.findings import VerdictKind
from tools.manifests import FOLDER, MANIFESTS, ROOT, written

pytestmark = pytest.mark.thorough

JOB = ROOT / "examples" / "kubernetes-job" / "good"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_is_printed_today(name: str) -> None:
    assert (FOLDER / name).read_text() == written(MANIFESTS[name]), "write it anew: make docs"


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_object_follows_the_schema_of_kubernetes(name: str) -> None:
    objects = list(yaml.safe_load_all((FOLDER / name).read_text()))
    for document in objects:
        kubernetes_validate.validate(document, "1.33", strict=True)
    assert "Job" in {document["kind"] for document in objects}


def test_added_objects_do_not_change_the_verdict(tmp_path: Path) -> None:
    for name in ("job.yaml", "train.py"):
        (tmp_path / name).write_text((JOB / name).read_text())
    (tmp_path / "job.yaml").write_text((FOLDER / "init-container.yaml").read_text())
    assert api.lint([tmp_path], root=tmp_path).verdict is VerdictKind.GO


@pytest.fixture
def applied(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run the gate with a stub for kubectl that stores its input; there is no cluster."""
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
    stub = '#!/bin/sh\ncp "$3" kept.yaml\necho "$1 $2 $4 $5" >> kept\n'
    for name, text in (("kubectl", stub), ("preflight", f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(text: str, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(FOLDER / "apply"), *words],
            input=text,
            cwd=tmp_path,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    return run


def test_gate_applies_its_input(applied: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    text = (JOB / "job.yaml").read_text()
    code, _ = applied(text, "--namespace", "ml")
    assert code == 0
    assert (tmp_path / "kept.yaml").read_text() == text
    assert (tmp_path / "kept").read_text() == "apply -f --namespace ml\n"


def test_the_gate_stops_a_broken_job(applied: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, said = applied((JOB.parent / "broken" / "job.yaml").read_text())
    assert code == 1 and "WLD001" in said and "nothing was applied" in said
    assert not (tmp_path / "kept").exists()


def test_the_gate_lets_other_objects_pass(applied: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert applied("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")[0] == 0
    assert (tmp_path / "kept").exists()
