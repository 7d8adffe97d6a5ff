"""The schemas of custom resources and their conditions, on small objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from preflight.sources.formats import lenient_yaml
from preflight.sources.formats.structured import Node
from preflight.sources.kubernetes.admission import Outcome, admission, holds
from preflight.sources.tables import FOLDER

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
        ("{clusterQueue: 3}", "`clusterQueue: 3` is a number, where a text is expected"),
        ("{clusterQueue: Gpus}", "does not have the form"),
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
