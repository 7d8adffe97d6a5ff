"""YAML with placeholders and mistakes: values, their locations, and faults."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from preflight.sources.formats.lenient_yaml import parse, parse_all
from preflight.sources.formats.structured import Document, Kind, Node


def plain(node: Node | None) -> object:
    """The value in Python's own types."""
    if node is None:
        return None
    if node.kind is Kind.OBJECT:
        return {member.key: plain(member.node) for member in node.members}
    return [plain(item) for item in node.items] if node.kind is Kind.ARRAY else node.value


def written(text: str, document: Document, *path: str) -> str:
    node = document.root.at(*path) if document.root else None
    assert node is not None, path
    return text[node.start : node.end]


def test_values_are_those_of_the_safe_loader() -> None:
    text = "a: 1\nb: 1e-5\nc: 0x10\nd: yes\ne: ~\nf: '8'\ng: 1.5e+3\nh: [1, two]\ni: {j: 2026-01-01}\nk: |\n  x\n  y\n"
    expected = yaml.safe_load(text)
    expected["i"]["j"] = "2026-01-01"
    assert plain(parse(text).root) == expected


def test_every_value_keeps_its_location_after_wide_characters() -> None:
    text = "ä: ü  # ö\nnext:\n  - name: 'é'\n    size: 12\n"
    document = parse(text)
    assert written(text, document, "ä") == "ü"
    assert document.root is not None
    size = document.root.at("next")
    assert size is not None and text[size.items[0].members[1].node.start :].startswith("12")


def test_placeholders_are_templates_and_the_rest_is_read() -> None:
    text = "a: {{ .Values.a }}\n{{- if .Values.b }}\nb:\n  c: x-{{ y }}\n{{- end }}\nd: ${nodes}\ne: <your-host>\n"
    document = parse(text)
    assert document.root is not None and not document.faults
    kinds = {"/".join(path): member.node.kind for path, member in document.root.leaves()}
    assert kinds == dict.fromkeys(("a", "b/c", "d", "e"), Kind.TEMPLATE)
    assert written(text, document, "a") == "{{ .Values.a }}"


def test_control_flow_at_the_head_of_a_block_leaves_its_indentation() -> None:
    text = "a:\n  b: |\n    {{- if .Values.something_long }}\n    x\n    {{- end }}\n  c: 1\n"
    document = parse(text)
    assert document.faults == ()
    assert document.root is not None
    assert document.root.at("a", "c") is not None
    lower = "a:\n  b: |\n  {{- if .Values.something_long }}\n    x\n  {{- end }}\n  c: 1\n"
    assert parse(lower).faults == ()


def test_a_placeholder_as_a_list_item_is_a_template() -> None:
    root = parse("args:\n  - a\n  - {{ .Values.b }}\n").root
    assert root is not None
    listed = root.at("args")
    assert listed is not None
    assert [item.kind for item in listed.items] == [Kind.SCALAR, Kind.TEMPLATE]


def test_documents_are_read_one_by_one() -> None:
    text = "# nothing\n---\na: 1\n---\nb: [1\n---\nc: 3\n"
    found = parse_all(text)
    assert [plain(document.root) for document in found] == [{"a": 1}, None, {"c": 3}]
    assert [len(document.faults) for document in found] == [0, 1, 0]


def test_text_before_a_mistake_is_still_read() -> None:
    text = "a: 1\nb: 2\nc: [1, 2\nd: 3\n"
    document = parse(text)
    assert plain(document.root) == {"a": 1, "b": 2}
    assert "flow sequence" in document.faults[0].message


def test_own_keys_override_merged_ones() -> None:
    document = parse("base: &base {x: 1, y: 2}\nown:\n  <<: *base\n  y: 3\n")
    assert document.root is not None and plain(document.root.at("own")) == {"x": 1, "y": 3}


def test_an_alias_inside_its_own_anchor_is_a_fault() -> None:
    document = parse("a: &a\n  b: *a\n")
    assert "before its anchor" in document.faults[0].message


def test_exploding_aliases_and_deep_nesting_end_the_reading() -> None:
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    for hostile in (bomb, "[" * 900, "a:\n" + "".join(" " * n + "a:\n" for n in range(1, 200))):
        messages = [fault.message for fault in parse(hostile).faults]
        assert any("configuration" in message for message in messages), (hostile[:20], messages)


def test_nesting_beyond_the_limit_of_libyaml_is_a_fault() -> None:
    """libyaml since PyYAML 6.0.4 refuses more than 1,000 flow levels before it gives the first event of them."""
    document = parse("[" * 50_000)
    assert document.root is None and document.faults


def test_equal_keys_are_all_kept_and_the_last_is_in_force() -> None:
    root = parse("a: 1\na: 2\n").root
    assert root is not None and len(root.members) == 2
    assert [member.node.value for member in root.in_force] == [2]


@given(st.text(alphabet="ab:-[]{}#'\"&*!|>%@`{{}}$<> \n\t\r\0ü\ue000", max_size=200))
def test_no_text_raises_and_all_locations_are_inside(text: str) -> None:
    for document in parse_all(text):
        for fault in document.faults:
            assert 0 <= fault.start <= len(text)
        for _, member in document.root.leaves() if document.root else ():
            assert 0 <= member.key_start <= member.node.end <= len(text)
