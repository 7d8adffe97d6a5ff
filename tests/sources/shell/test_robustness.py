"""Arbitrary input is evaluated quickly and never raises."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.model.job import NoteKind
from preflight.sources.base import Script, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell import evaluate
from tests.suite.effort import examples


def script(text: str) -> Script:
    return evaluate(SourceFile("run.sh", text, "", len(text)), MemoryTree({"run.sh": text}))


_FRAGMENTS = st.sampled_from(
    [
        "if [ $A ]; then", "fi", "else", "for i in", "do", "done", "while", "$(", ")", "`", '"', "'", "\\", "\n",
        "${", "}", "${A[@]}", "${A:-", "${A%", "A=(", "A+=", "$((", "))", "[[", "]]", "((", "case $x in", "esac",
        ";;", "f() {", "<<EOF\n", "EOF\n", "bash -c", "eval", "source run.sh", "export A=", "local", "|", "&&", "||",
        "&", ";", "#SBATCH -N 4\n", "{{ x }}", "\x00", "\r\n", "é", "a", "4", " ", "\t", "${!A}", "${#A[@]}", "{1..3}",
        "scontrol show hostnames | head -1", "let x=", "declare -A M", "unset", "shift", "set -a",
        "cd ..", "$@", "${A[",
        "srun", "ssh h",
        "wc -l < run.sh", "\ue000", "=", "[", "]", "!", "%", "/", "*", "?", ":",
    ]
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_FRAGMENTS, max_size=40))
def test_scrambled_shell(pieces: list[str]) -> None:
    found = script(" ".join(pieces))
    assert not any(note.kind is NoteKind.CRASHED for note in found.notes), found.notes


@settings(max_examples=examples(60), deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    found = script(text)
    assert not any(note.kind is NoteKind.CRASHED for note in found.notes), found.notes


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n" * 1000,
        "\x00" * 1000,
        "$(" * 3000,
        "${A:-" * 2000 + "}" * 2000,
        "if true; then " * 500 + "cmd; " + "fi; " * 500,
        "(" * 2000 + ")" * 2000,
        '"$(echo "' * 500,
        "{" * 5000,
        "A=" + "x" * 900_000,
        "cmd " + "a " * 400_000,
        "A=$A$A$A$A;" * 3000 + "cmd $A",
        "A=x;" + "A=$A$A;" * 200 + "cmd $A",
        "A=(1 2);" + 'A+=("${A[@]}");' * 200 + 'cmd "${A[@]}"',
        "for i in {1..100000}; do cmd $i; done",
        "for i in $(seq 1 999999999); do cmd; done",
        "for ((i=0;i<1000000;i++)); do cmd $i; done",
        "f() { f; f; }; f",
        "f() { g; g; }; g() { f; f; }; f",
        "bash -c 'bash -c \"bash -c cmd\"'",
        "eval " * 300 + "cmd",
        "while true; do while true; do while true; do cmd; done; done; done",
        "cmd $((" + "(" * 3000 + "1" + ")" * 3000 + "))",
        "cmd $((" + "1+" * 3000 + "1))",
        "[[ " + "( " * 500 + "a" + " )" * 500 + " ]] && cmd",
        "[ " + "a -a " * 1000 + "a ] && cmd",
        "X=" + "a" * 3000 + "; case $X in " + "*a*a*a*a*b) A=1;; " * 2000 + "esac",
        "A=(" + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " * 2000 + "); cmd ${A[@]//*a*a*a*b/x}",
        "X=" + "a" * 3000 + "; cmd ${X%%*a*a*a*a*b} ${X//*a*a*a*b/}",
        "".join(f"if [ $A{n} ]; then X=$X{n}; fi;" for n in range(400)) + "cmd $X",
        "case $X in " + "a) A=1;; " * 3000 + "esac",
        "a | " * 2000 + "b",
        "a && " * 3000 + "b",
        "cat <<EOF\n" * 500,
        "\udcff\udcfe cmd",
        bytes(range(256)).decode("latin-1") * 40,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_hostile_scripts_terminate_quickly(text: str) -> None:
    found = script(text)
    assert not any(note.kind is NoteKind.CRASHED for note in found.notes), found.notes


def test_same_script_same_answer() -> None:
    text = 'A=(a b)\nif [ -f x ]; then A+=(c); fi\nfor i in 1 2; do cmd "${A[@]}" $i $(hostname); done\n'
    assert script(text) == script(text)


def test_a_template_is_noted_and_the_rest_is_read() -> None:
    found = script("N={{ nodes }}\n{% if x %}\ntorchrun --nnodes $N x.py\n{% endif %}\n")
    assert NoteKind.TEMPLATE in [note.kind for note in found.notes]
    assert any(command.words[0].spelling == "torchrun" for command in found.commands)


def test_a_broken_script_gives_a_note_at_the_fault() -> None:
    found = script("cmd a\nif then fi (\n")
    assert any(note.kind is NoteKind.MALFORMED for note in found.notes)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("# a\nif [ $A = 1 ]; then\ntorchrun a.py\n", "'if [ $A = 1 ]; then' is never closed by `fi`", 2),
        ("for i in 1 2; do\ntorchrun a.py\n", "'for i in 1 2; do' is never closed by `done`", 1),
    ],
)
def test_an_unclosed_construct_is_noted_where_it_opens(text: str, said: str, line: int) -> None:
    found = script(text)
    assert (NoteKind.MALFORMED, said, line) in [(note.kind, note.message, note.span.line) for note in found.notes]


@pytest.mark.parametrize("text", ["echo ${A[${#A[*]}-1]} ${B:$C-5:4}\n", "cat <<EOF\nfoo\n", "if true; then a; fi\n"])
def test_valid_constructs_are_not_called_unclosed(text: str) -> None:
    assert not any("closes" in note.message for note in script(text).notes)


@pytest.mark.parametrize(
    "text",
    [
        "local X=1; cmd $X",
        "f() { local Y; }; f; local -A M=([a]=1); local X=1; cmd $X",
        "shift ²; shift " + "9" * 5000,
        "cmd ${A[²]} ${A[99999999999999999999]} ${X:99999999999999999999999}",
        "X=abc; cmd ${X:" + "9" * 5000 + "}",
        "#SBATCH --gres=gpu:²\ncmd $SLURM_GPUS_ON_NODE",
        "cmd $(echo a | cut -d, -f ²) $(printf %d " + "9" * 30 + ") $(seq " + "9" * 5000 + ")",
        "cmd $((" + "9" * 5000 + ")) $((2#" + "1" * 5000 + "))",
    ],
)
def test_huge_numbers(text: str) -> None:
    assert not any(note.kind is NoteKind.CRASHED for note in script(text).notes), script(text).notes
