"""The manifests for Kubernetes: valid, what `preflight manifest` prints today, and silent for lint."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from preflight import api
from preflight.outcome import VerdictKind
from tools.manifests import FOLDER, MADE, ROOT, written

JOB = ROOT / "examples" / "kubernetes-job" / "good"


@pytest.mark.parametrize("name", MADE)
def test_a_manifest_is_what_is_printed_today(name: str) -> None:
    assert (FOLDER / name).read_text() == written(MADE[name]), "write it anew: make docs"


@pytest.mark.parametrize("name", MADE)
def test_every_object_follows_the_schema_of_kubernetes(name: str) -> None:
    objects = list(yaml.safe_load_all((FOLDER / name).read_text()))
    for document in objects:
        kubernetes_validate.validate(document, "1.33", strict=True)
    assert "Job" in {document["kind"] for document in objects}


def test_what_is_added_changes_no_verdict(tmp_path: Path) -> None:
    for name in ("job.yaml", "train.py"):
        (tmp_path / name).write_text((JOB / name).read_text())
    (tmp_path / "job.yaml").write_text((FOLDER / "init-container.yaml").read_text())
    assert api.lint([tmp_path], root=tmp_path).verdict is VerdictKind.GO
