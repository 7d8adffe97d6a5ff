"""The JSON document of a diagnosis: its schema is the committed one, and documents follow it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from preflight import api
from preflight._util.json_output import to_bytes
from preflight.commands.diagnose import diagnosis
from tests.builders import DOCS
from tests.commands.diagnose.cases import Case, cases

KINDS = {("healthy" if case.healthy else "cause" if case.symptom else "unknown"): case for case in cases()}


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "diagnosis.schema.json").read_text()
    assert committed == json.dumps(diagnosis.schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_a_document_follows_the_schema_and_is_the_same_each_time(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.folder)
    written = to_bytes(api.diagnose([Path()]), indent=2)
    document = json.loads(written)
    jsonschema.validate(document, diagnosis.schema())
    assert document["schema_version"] == 3
    assert to_bytes(api.diagnose([Path()]), indent=2) == written
