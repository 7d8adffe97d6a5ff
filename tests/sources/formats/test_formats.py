"""Reading any entry of a directory gives a file or a located note, and nothing else."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from preflight._util import toml
from preflight._util.sequences import value_at
from preflight._util.toml import TomlError
from preflight._util.toml import parse as toml_parse
from preflight.model.job import Note, NoteKind, Span
from preflight.sources import base
from preflight.sources.base import SourceFile, suppressions
from preflight.sources.formats import lenient_toml
from preflight.sources.formats import structured as module
from preflight.sources.formats.lenient_toml import Positions
from preflight.sources.formats.lenient_yaml import parse, parse_all
from preflight.sources.formats.structured import (
    Document,
    Kind,
    Node,
    Origin,
    Piece,
    TooLong,
    compose_file,
    file_pieces,
    file_text_of,
    places_of,
    shift_node,
)
from preflight.sources.formats.tree import DirectoryTree, MemoryTree, OverlayTree
from preflight.sources.shell.shell_document import FileText


def _note(found: SourceFile | Note) -> Note:
    assert isinstance(found, Note), found
    assert found.span.line == 1 and found.span.column == 1
    return found


def _file(found: SourceFile | Note) -> SourceFile:
    assert isinstance(found, SourceFile), found
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    inside.mkdir()
    return inside


def test_a_path_of_a_configuration_counts_from_the_nearest_folder_above_that_has_it() -> None:
    tree = MemoryTree({"jobs/one/conf/a.yaml": "", "jobs/one/ds/zero.json": "{}", "ds/zero.json": "{}", "train.py": ""})
    assert tree.resolve("ds/zero.json", relative_to="jobs/one/conf/a.yaml") == "jobs/one/ds/zero.json"
    assert tree.resolve("train.py", relative_to="jobs/one/conf/a.yaml") == "train.py"
    assert tree.resolve("missing.py", relative_to="jobs/one/conf/a.yaml") == "jobs/one/conf/missing.py"


@pytest.mark.parametrize("reader", ["jobs/one/run.sh", "jobs/one/main.py"])
def test_a_path_counts_from_the_nearest_folder_that_has_the_file(reader: str) -> None:
    tree = MemoryTree({reader: "", "jobs/train.py": "", "train.py": ""})
    assert tree.resolve("train.py", relative_to=reader) == "jobs/train.py"
    assert tree.resolve("other.py", relative_to=reader) == "jobs/one/other.py"


def test_a_regular_file_comes_with_its_digest(root: Path) -> None:
    content = "\ufeffexport A=1\n# größer\n".encode()
    (root / "run.sh").write_bytes(content)
    read = _file(DirectoryTree(root).read("run.sh"))
    assert read.text == "export A=1\n# größer\n"
    assert read.sha256 == hashlib.sha256(content).hexdigest()
    assert read.size_bytes == len(content)


def test_undecodable_bytes_are_replaced(root: Path) -> None:
    (root / "latin").write_bytes(b"caf\xe9\n")
    assert _file(DirectoryTree(root).read("latin")).text == "caf\ufffd\n"


def test_one_file_is_read_once(root: Path) -> None:
    (root / "a").write_text("first")
    tree = DirectoryTree(root)
    tree.read("a")
    (root / "a").write_text("second")
    assert _file(tree.read("a")).text == "first"


def test_missing_files_and_directories(root: Path) -> None:
    (root / "sub").mkdir()
    tree = DirectoryTree(root)
    assert _note(tree.read("nothing")).kind is NoteKind.MISSING
    assert _note(tree.read("sub/nothing/deeper")).kind is NoteKind.MISSING
    directory = _note(tree.read("sub"))
    assert directory.kind is NoteKind.UNREADABLE and "a directory" in directory.message
    assert directory.span == Span("sub", 1, 1, 1, 1)


def test_a_fifo_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    note = _note(DirectoryTree(root).read("pipe"))
    assert note.kind is NoteKind.UNREADABLE and "FIFO" in note.message


def test_a_socket_and_a_device_are_not_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        assert "a socket" in _note(DirectoryTree(root).read("sock")).message
    assert "a character device" in _note(DirectoryTree(Path("/dev")).read("null")).message


def test_a_link_that_leaves_the_root_is_not_followed(root: Path) -> None:
    (root.parent / "secret").write_text("secret")
    (root / "out").symlink_to("../secret")
    (root / "dangling").symlink_to("/nowhere/at/all")
    (root / "up").symlink_to("..")
    tree = DirectoryTree(root)
    for path in ("out", "dangling", "up/secret", "../secret", "sub/../../secret"):
        note = _note(tree.read(path))
        assert note.kind is NoteKind.OUTSIDE, path
        assert "secret\n" not in note.message


def test_a_link_inside_the_root_is_followed(root: Path) -> None:
    (root / "a").write_text("inside")
    (root / "b").symlink_to("a")
    assert _file(DirectoryTree(root).read("b")).text == "inside"


def test_a_root_with_a_similar_name_is_outside(root: Path) -> None:
    (root.parent / "root2").mkdir()
    (root.parent / "root2" / "a").write_text("other")
    (root / "link").symlink_to("../root2/a")
    assert _note(DirectoryTree(root).read("link")).kind is NoteKind.OUTSIDE


def test_a_loop_of_links(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "d").symlink_to("d")
    for path in ("a", "d/run.sh"):
        note = _note(DirectoryTree(root).read(path))
        assert note.kind is NoteKind.UNREADABLE and "back to itself" in note.message


def test_eleven_megabytes_are_too_large(root: Path) -> None:
    with (root / "big").open("wb") as big:
        big.truncate(11 * 1024 * 1024)
    note = _note(DirectoryTree(root).read("big"))
    assert note.kind is NoteKind.TOO_LARGE
    assert "11.0 MiB" in note.message and "10 MiB" in note.message


def test_the_limit_itself_is_still_read(root: Path) -> None:
    (root / "a").write_text("x" * 100)
    assert isinstance(DirectoryTree(root, max_file_bytes=100).read("a"), SourceFile)
    assert _note(DirectoryTree(root, max_file_bytes=99).read("a")).kind is NoteKind.TOO_LARGE


def test_a_file_that_claims_to_be_empty_is_still_bounded() -> None:
    # /proc files have a size of 0 but contain text.
    note = _note(DirectoryTree(Path("/proc/self"), max_file_bytes=8).read("status"))
    assert note.kind is NoteKind.TOO_LARGE


def test_binary_content(root: Path) -> None:
    (root / "binary").write_bytes(b"abc\0def")
    note = _note(DirectoryTree(root).read("binary"))
    assert note.kind is NoteKind.UNREADABLE and "offset 3" in note.message


@pytest.mark.parametrize("path", ["a\0b", "\udcff", "x" * 5000, "", "/", "//etc/passwd", "~root"])
def test_impossible_names(root: Path, path: str) -> None:
    assert isinstance(DirectoryTree(root).read(path), Note)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(root: Path) -> None:
    (root / "a").write_text("x")
    (root / "a").chmod(0)
    note = _note(DirectoryTree(root).read("a"))
    assert note.kind is NoteKind.UNREADABLE and "Permission denied" in note.message


def test_paths_are_resolved_from_the_file_then_from_the_root(root: Path) -> None:
    (root / "scripts").mkdir()
    (root / "scripts" / "train.py").write_text("")
    (root / "ds.json").write_text("")
    tree = DirectoryTree(root)
    assert tree.resolve("train.py", relative_to="scripts/run.sh") == "scripts/train.py"
    assert tree.resolve("./ds.json", relative_to="scripts/run.sh") == "ds.json"
    assert tree.resolve("../ds.json", relative_to="scripts/run.sh") == "ds.json"
    assert tree.resolve("none.json", relative_to="scripts/run.sh") == "scripts/none.json"
    assert tree.resolve("../../x", relative_to="scripts/run.sh") is None
    assert tree.resolve(str(root / "ds.json"), relative_to="scripts/run.sh") == "ds.json"
    assert tree.resolve("/etc/passwd", relative_to="scripts/run.sh") is None
    assert tree.resolve("", relative_to="scripts/run.sh") is None


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("/workspace/train.py", "scripts/train.py"),
        ("/opt/project/scripts/train.py", "scripts/train.py"),
        ("/workspace/conf/ds.json", "conf/ds.json"),
        ("/workspace/missing.py", None),
        ("/usr/lib/train.py", None),
        ("/workspace/weights.bin", None),
        ("/workspace/../etc/ds.json", None),
    ],
)
def test_the_path_that_a_container_has_for_a_file_of_the_tree(root: Path, written: str, found: str | None) -> None:
    files = {"scripts/train.py": "", "scripts/run.sh": "", "conf/ds.json": "{}", "scripts/weights.bin": ""}
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    assert DirectoryTree(root).resolve(written, relative_to="scripts/run.sh") == found
    memory = MemoryTree({name: text.encode() for name, text in files.items()})
    assert memory.resolve(written, relative_to="scripts/run.sh") == found


def test_memory_and_overlay() -> None:
    memory = MemoryTree({"a/run.sh": "echo", "bin": b"\0"})
    assert _file(memory.read("a/run.sh")).text == "echo"
    assert _note(memory.read("bin")).kind is NoteKind.UNREADABLE
    assert _note(memory.read("b")).kind is NoteKind.MISSING
    assert "a directory" in _note(memory.read("a")).message
    over = OverlayTree(memory, {"a/ds.json": "{}"})
    assert over.resolve("ds.json", relative_to="a/run.sh") == "a/ds.json"
    assert _file(over.read("a/ds.json")).text == "{}"
    assert _file(over.read("a/run.sh")).text == "echo"
    assert over.resolve("/x", relative_to="a/run.sh") is None


# Suppression comments.


def found(text: str, *signs: str) -> list[tuple[int, tuple[str, ...], str]]:
    file = SourceFile("a.sh", text, "", len(text))
    read = suppressions(file, signs=signs) if signs else suppressions(file)
    return [(item.line, item.names, item.reason) for item in read]


def test_at_the_end_of_a_line() -> None:
    assert found("x\ncmd --a  # preflight: ignore[BAT001] known\n") == [(2, ("BAT001",), "known")]


def test_a_comment_alone_on_its_line_applies_to_the_next_code() -> None:
    text = "# preflight: ignore[BAT001, some-name] why not\n\n# words\n  cmd\n"
    assert found(text) == [(4, ("BAT001", "some-name"), "why not")]


def test_consecutive_comments_apply_to_the_same_code() -> None:
    text = "# preflight: ignore[A1] r\n# x\n# preflight: ignore[A2] r\na\nb # preflight: ignore[A3] r\n"
    assert [(line, names) for line, names, _ in found(text)] == [(4, ("A1",)), (4, ("A2",)), (5, ("A3",))]
    assert [line for line, _, _ in found("# preflight: ignore[A1]\n# preflight: ignore[A2]\n")] == [1, 2]


def test_thousands_of_comments_are_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    seen = base._next_code
    monkeypatch.setattr(base, "_next_code", lambda *given: looks.append(1) or seen(*given))
    most = base._MAX_COMMENTS
    for text in ("# preflight: ignore[A1]\n" * most + "a\n", "# preflight: ignore[A1]\n" * most):
        assert [names for _, names, _ in found(text)] == [("A1",)] * most
    assert len(looks) == 2


def test_comments_beyond_the_limit_suppress_nothing() -> None:
    most = base._MAX_COMMENTS
    *taken, last = found("# preflight: ignore[A1]\n" * (5 * most) + "a\n")
    assert len(taken) == most
    assert last == (most + 1, (), "")


def test_directives_count_as_code() -> None:
    for directive in ("#SBATCH --nodes=4", "#PBS -l select=4", "#BSUB -n 4", "#$ -pe mpi 4", "# flux: -N4"):
        assert found(f"# preflight: ignore[SLU001] r\n# more\n{directive}\n") == [(3, ("SLU001",), "r")]


def test_span_is_the_comment() -> None:
    text = "é # preflight: ignore[A1] r\r\n"
    span = suppressions(SourceFile("a.sh", text, "", 0))[0].span
    assert (span.line, span.column, span.end_column) == (1, 3, len(text) - 1)


def test_no_names_and_no_code() -> None:
    assert found("# preflight: ignore\n") == [(1, (), "")]


def test_a_comment_inside_a_string_is_text() -> None:
    assert found("x = '# preflight: ignore[A1] r'\n") == []
    assert found("x = 'a'  # preflight: ignore[A1] r\n") == [(1, ("A1",), "r")]


def test_other_comments_are_not_suppressions() -> None:
    assert found("# preflight: something else\n# ignore[A1]\n") == []


def test_json_accepts_both_comment_signs() -> None:
    text = (
        "// preflight: ignore[BAT001] a\n# words\n"
        '{"a": 1, // preflight: ignore[BAT002] b\n'
        '"b": 2 # preflight: ignore[BAT003] c\n}\n'
    )
    both = [(3, ("BAT001",), "a"), (3, ("BAT002",), "b"), (4, ("BAT003",), "c")]
    assert found(text, "//", "#") == both


def test_the_sign_of_another_language_begins_no_comment() -> None:
    assert found("x //  preflight: ignore[A1] r\n") == []
    assert found('{"url": "http:// preflight: ignore[A1] r"}\n', "//", "#") == []


def test_span_of_a_comment_with_two_slashes_starts_at_the_first() -> None:
    text = "{ // preflight: ignore[A1] r\n}\n"
    (one,) = suppressions(SourceFile("a.json", text, "", 0), signs=("//", "#"))
    assert (one.span.line, one.span.column, one.span.end_column) == (1, 3, 29)


# Text of several files: every span is in the file that the characters come from.


FIRST = FileText("a.yaml", "one: 1\ntwo: {{ x }}\n")
SECOND = FileText("b.sh", "#!/bin/sh\ntorchrun a.py\n")


def _composed_file() -> module.ComposedFile:
    value = SECOND.span(10, 18)
    pieces = [
        Piece(FIRST.text[:12], Origin(FIRST, 0, 12)),
        Piece("8\n", Origin(FIRST, 12, 19, exact=False, value=value)),
        Piece(SECOND.text[10:], Origin(SECOND, 10, len(SECOND.text))),
    ]
    return compose_file(SourceFile("a.yaml", FIRST.text, "s", 1), pieces)


def test_spans_are_those_of_the_files_that_the_pieces_come_from() -> None:
    file = _composed_file()
    assert file.text == "one: 1\ntwo: 8\ntorchrun a.py\n"
    places = places_of(file)
    two = places.span(12, 13)
    assert (two.path, two.line, two.column, two.end_column) == ("a.yaml", 2, 6, 13)
    assert two.snippet == "two: {{ x }}"
    run = file_text_of(file).span(14, 22)
    assert (run.path, run.line, run.column, run.snippet) == ("b.sh", 2, 1, "torchrun a.py")


def test_a_filled_in_value_has_the_location_of_its_assignment() -> None:
    places = places_of(_composed_file())
    value = places.value_span(12, 13)
    assert value is not None
    assert (value.path, value.line) == ("b.sh", 2)
    assert places.value_span(0, 3) is None


def test_a_range_within_one_file_is_one_span_and_over_two_files_the_first_part() -> None:
    places = places_of(_composed_file())
    both = places.span(5, 13)
    assert (both.path, both.line, both.end_line) == ("a.yaml", 1, 2)
    across = places.span(7, 20)
    assert (across.path, across.line) == ("a.yaml", 2)


def test_composed_text_can_be_composed_again() -> None:
    again = compose_file(
        _composed_file(), [*file_pieces(_composed_file()), *file_pieces(SourceFile("c.yaml", "c: 1\n", "", 5))]
    )
    last = places_of(again).span(len(again.text) - 5, len(again.text) - 4)
    assert (last.path, last.line, last.column) == ("c.yaml", 1, 1)


def test_a_plain_file_keeps_its_own_places() -> None:
    file = SourceFile("p.yaml", "a: 1\n", "", 5)
    assert places_of(file).span(3, 4).path == file_text_of(file).span(3, 4).path == "p.yaml"
    assert places_of(file).value_span(3, 4) is None


def test_nodes_are_shifted_with_their_members() -> None:
    root = parse("a: [1, {b: 2}]\n").root
    assert root is not None
    moved = shift_node(root, 10)
    inner = moved.at("a")
    assert inner is not None
    assert (moved.start, inner.items[1].members[0].key_start) == (root.start + 10, 8 + 10)


def test_a_text_that_is_too_long_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LENGTH", 10)
    with pytest.raises(TooLong):
        compose_file(SourceFile("a", "", "", 0), [Piece("x" * 11, Origin(FIRST, 0, 1, exact=False))])


def test_an_empty_text_can_be_composed() -> None:
    empty = compose_file(SourceFile("a.yaml", "", "", 0), [])
    assert empty.text == ""
    assert places_of(empty).span(0, 0).path == "a.yaml"


GOOD = """# a training
title = "small"
"quoted key" = 'literal \\n'
a.b.c = 1_000

[training]
steps = 0x10
lr = 3e-4          # a number
seq = [
  1024,
  2048,  # twice
]
inline = { x = 1, y = { z = "deep" } }
note = \"\"\"
two
lines\"\"\"
on = true

[training.inner]
value = -1

[[stage]]
name = "first"
[[stage]]
name = "second"
"""


def plain(node: Node) -> Any:
    """The value in the types of `tomllib`."""
    if node.kind is Kind.OBJECT:
        return {member.key: plain(member.node) for member in node.in_force}
    return [plain(item) for item in node.items] if node.kind is Kind.ARRAY else node.value


def test_values_are_those_of_tomllib() -> None:
    document = lenient_toml.parse(GOOD)
    assert document.root is not None and not document.faults
    assert plain(document.root) == toml.loads(GOOD)


def test_every_value_has_its_location() -> None:
    root = lenient_toml.parse(GOOD).root
    assert root is not None
    member = root.member("training", "lr")
    assert member is not None
    assert GOOD[member.key_start : member.node.end] == "lr = 3e-4"
    assert GOOD[member.node.start : member.node.end] == "3e-4"


def test_a_broken_line_does_not_affect_others() -> None:
    document = lenient_toml.parse("a = \nb = text\n[c\nd = 4\n[e]\nf = 5\n")
    assert document.root is not None
    assert plain(document.root) == {"d": 4, "e": {"f": 5}}
    assert len(document.faults) == 3


@pytest.mark.parametrize("text", ["x = ${N}", "x = {{ n }}", 'x = "$N"', 'x = "${N}"', "x = <nodes>"])
def test_a_placeholder_is_not_a_value(text: str) -> None:
    root = lenient_toml.parse(text).root
    assert root is not None and [member.node.kind for member in root.members] == [Kind.TEMPLATE]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "[", "[[a]", "a", "a = [1,", "a = {b", 'a = "x', "a" + ".a" * 100 + " = 1", "[" * 500]
)
def test_damaged_text_does_not_raise(text: str) -> None:
    document = lenient_toml.parse(text)
    assert document.root is None and document.faults


def test_a_table_with_the_name_of_a_value_is_a_fault() -> None:
    document = lenient_toml.parse("a = 1\n[a.b]\nc = 2\n")
    assert [fault.message for fault in document.faults] == ["a already has a value and cannot be a table"]


# YAML with placeholders and mistakes: values, their locations, and faults.


def yaml_plain(node: Node | None) -> object:
    """The value in Python's own types."""
    if node is None:
        return None
    if node.kind is Kind.OBJECT:
        return {member.key: yaml_plain(member.node) for member in node.members}
    return [yaml_plain(item) for item in node.items] if node.kind is Kind.ARRAY else node.value


def written(text: str, document: Document, *path: str) -> str:
    node = document.root.at(*path) if document.root else None
    assert node is not None, path
    return text[node.start : node.end]


def test_values_are_those_of_the_safe_loader() -> None:
    text = "a: 1\nb: 1e-5\nc: 0x10\nd: yes\ne: ~\nf: '8'\ng: 1.5e+3\nh: [1, two]\ni: {j: 2026-01-01}\nk: |\n  x\n  y\n"
    expected = yaml.safe_load(text)
    expected["i"]["j"] = "2026-01-01"
    assert yaml_plain(parse(text).root) == expected


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
    assert [yaml_plain(document.root) for document in found] == [{"a": 1}, None, {"c": 3}]
    assert [len(document.faults) for document in found] == [0, 1, 0]


def test_text_before_a_mistake_is_still_read() -> None:
    text = "a: 1\nb: 2\nc: [1, 2\nd: 3\n"
    document = parse(text)
    assert yaml_plain(document.root) == {"a": 1, "b": 2}
    assert "flow sequence" in document.faults[0].message


def test_own_keys_override_merged_ones() -> None:
    document = parse("base: &base {x: 1, y: 2}\nown:\n  <<: *base\n  y: 3\n")
    assert document.root is not None and yaml_plain(document.root.at("own")) == {"x": 1, "y": 3}


def test_an_alias_inside_its_own_anchor_is_a_fault() -> None:
    document = parse("a: &a\n  b: *a\n")
    assert "before or inside its anchor" in document.faults[0].message


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


# Positions of keys and values in a TOML document, and of mistakes.


TEXT = '''# comment = "no"
title = "a # not a comment"
"quoted key" . b = [ 1, # one
  [2, 3], { x = 1, "y" = """
multi""" },
]
[owner]
name = 'it''s'

[[waive]]
rule = "A"
[[waive]]
  rule = "B"
  [waive.inner]
  deep.er = true
[a.b]
c = 2026-01-01
'''.replace("'it''s'", "'its'")


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("title",), (2, 1), (2, 9)),
        (("quoted key", "b"), (3, 16), (3, 20)),
        (("quoted key", "b", 0), (3, 22), (3, 22)),
        (("quoted key", "b", 1, 1), (4, 7), (4, 7)),
        (("quoted key", "b", 2, "x"), (4, 13), (4, 17)),
        (("quoted key", "b", 2, "y"), (4, 20), (4, 26)),
        (("owner",), (7, 2), (7, 2)),
        (("owner", "name"), (8, 1), (8, 8)),
        (("waive", 0), (10, 1), (10, 1)),
        (("waive", 0, "rule"), (11, 1), (11, 8)),
        (("waive", 1, "rule"), (13, 3), (13, 10)),
        (("waive", 1, "inner", "deep", "er"), (15, 8), (15, 13)),
        (("a", "b", "c"), (17, 1), (17, 5)),
        (("a", "b", "missing"), (16, 4), (16, 4)),
        (("nowhere",), (1, 1), (1, 1)),
    ],
)
def test_keys_and_values_are_found(path: tuple[str | int, ...], key: tuple[int, int], value: tuple[int, int]) -> None:
    toml_parse(TEXT)
    positions = Positions(TEXT)
    assert positions.of(path) == key
    assert positions.of(path, value=True) == value


def test_values_are_found_by_their_path() -> None:
    assert value_at(toml_parse(TEXT), "waive", 1, "inner", "deep", "er") is True
    assert value_at(toml_parse(TEXT), "waive", 7) is None


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a = \n", 1, 5), ("a = 1\nb == 2\n", 2, 4), ('a = "', 1, 1), ("a = 1\na = 2\n", 2, 6), ("[a\n", 1, 3)],
)
def test_invalid_toml_is_reported_with_its_position(text: str, line: int, column: int) -> None:
    with pytest.raises(TomlError) as raised:
        toml_parse(text)
    assert (raised.value.line, raised.value.column) == (line, column)


def test_deep_nesting_does_not_crash() -> None:
    with pytest.raises(TomlError):
        toml_parse("a = " + "[" * 100_000)


@given(st.text(alphabet="ab.=[]{}\"'#\n ,1-", max_size=60))
def test_any_valid_document_has_positions(text: str) -> None:
    Positions(text)
