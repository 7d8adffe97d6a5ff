"""Words: quoting, splitting, arrays, and where each word was written."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Unresolved
from preflight.sources.base import Command, Script, SourceFile, Word
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell import evaluate


def script(text: str, **files: str) -> Script:
    """`text` as run.sh, beside other files (`env_sh` is env.sh)."""
    tree = MemoryTree({"run.sh": text, **{name.replace("_", "."): body for name, body in files.items()}})
    return evaluate(SourceFile("run.sh", text, "", len(text)), tree)


def last(text: str, **files: str) -> Command:
    return script(text, **files).commands[-1]


def plain(command: Command) -> list[object]:
    """The words' values; None for an unresolved one."""
    return [word.value.value if isinstance(word.value, Known) else None for word in command.words]


def at(word: Word) -> tuple[int, int]:
    return word.span.line, word.span.column


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cmd a 'b c' \"d e\"", ["cmd", "a", "b c", "d e"]),
        ("cmd a'b'\"c\"d", ["cmd", "abcd"]),
        ('cmd --x="a b"', ["cmd", "--x=a b"]),
        ('cmd "a\\"b" \'\\n\' "\\n"', ["cmd", 'a"b', "\\n", "\\n"]),
        ("cmd $'a\\tb'", ["cmd", "a\tb"]),
        ("cmd a \\\n  b \\\n  c", ["cmd", "a", "b", "c"]),
        ("cmd \"\" ''", ["cmd", "", ""]),
        ('X=; cmd $X "$X" y', ["cmd", "", "y"]),
        ("X='a  b'; cmd $X", ["cmd", "a", "b"]),
        ("X='a  b'; cmd \"$X\"", ["cmd", "a  b"]),
        ("X='a b'; cmd p$X", ["cmd", "pa", "b"]),
        ("X=' a '; cmd p${X}q", ["cmd", "p", "a", "q"]),
        ('X=1; Y=2; cmd "$X $Y ${X}" ', ["cmd", "1 2 1"]),
        ("cmd {0..3} a{b,c}d", ["cmd", "0", "1", "2", "3", "abd", "acd"]),
        ("cmd file*.json", ["cmd", "file*.json"]),
        ("IFS=,; X=a,b; cmd $X", ["cmd", "a", "b"]),
    ],
)
def test_quoting_and_splitting(line: str, expected: list[str]) -> None:
    assert plain(last(line)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('A=(a "b c"); cmd "${A[@]}"', ["cmd", "a", "b c"]),
        ('A=(a "b c"); cmd ${A[@]}', ["cmd", "a", "b", "c"]),
        ('A=(a "b c"); cmd "${A[*]}"', ["cmd", "a b c"]),
        ("A=(a b); A+=(c); cmd ${A[2]} ${#A[@]} $A", ["cmd", "c", "3", "a"]),
        ('A=(a b c); cmd ${A[-1]} "${A[@]:1}" ${A[@]:0:1}', ["cmd", "c", "b", "c", "a"]),
        ('A=(); cmd "${A[@]}" x', ["cmd", "x"]),
        ('A=(a); cmd ${A[@]+"${A[@]}"}', ["cmd", "a"]),
        ('A=(a b); cmd "x${A[@]}y"', ["cmd", "xa", "by"]),
        ("declare -A M=([k]=v [l]=w); cmd ${M[l]} ${#M[@]}", ["cmd", "w", "2"]),
        ("declare -A M; M[a]=1; K=a; cmd ${M[$K]}", ["cmd", "1"]),
        ("A[0]=x; A[1]=y; cmd ${A[@]}", ["cmd", "x", "y"]),
        ("A=(n0 n1 n2); I=1; cmd ${A[$I]} ${A[I+1]}", ["cmd", "n1", "n2"]),
        ('S="a b c"; A=($S); cmd ${A[1]}', ["cmd", "b"]),
        ('A=(a b); cmd "${!A[@]}"', ["cmd", "0", "1"]),
        ('A=(x.py y.py); cmd "${A[@]%.py}"', ["cmd", "x", "y"]),
    ],
)
def test_arrays(line: str, expected: list[str]) -> None:
    assert plain(last(line)) == expected


def test_flag_of_a_string_points_into_the_string() -> None:
    command = last('TP=4\nARGS="--tp $TP \\\n  --pp 2"\nunset X\ntorchrun $ARGS train.py\n')
    assert plain(command) == ["torchrun", "--tp", "4", "--pp", "2", "train.py"]
    assert [at(word) for word in command.words] == [(5, 1), (2, 7), (2, 12), (3, 3), (3, 8), (5, 16)]
    assert command.words[2].spelling == "$TP"
    assert command.words[3].span.snippet == '  --pp 2"'


def test_flag_of_an_array_points_at_the_element() -> None:
    command = last('N=8\nARGS=(\n  --nproc_per_node $N  # comment\n  --nnodes=$N\n)\ntorchrun "${ARGS[@]}" x.py\n')
    assert plain(command) == ["torchrun", "--nproc_per_node", "8", "--nnodes=8", "x.py"]
    assert [at(word) for word in command.words[1:4]] == [(3, 3), (3, 20), (4, 3)]
    assert command.words[3].spelling == "--nnodes=$N"
    assert command.words[3].span.end_column == 3 + len("--nnodes=$N")


def test_single_word_of_a_variable_points_at_its_use() -> None:
    command = last("PORT=6000\ntorchrun --master_port $PORT x.py")
    assert at(command.words[2]) == (2, 24)
    assert command.words[2].value == Known("6000")


def test_partly_known_word_keeps_its_pieces() -> None:
    word = last("cmd --rdzv_endpoint=$HEAD:6000").words[1]
    assert isinstance(word.value, Unresolved)
    assert not word.many
    head = Unresolved("$HEAD, which the caller sets", ("HEAD",))
    assert word.parts == (Known("--rdzv_endpoint="), head, Known(":6000"))
    assert word.spelling == "--rdzv_endpoint=$HEAD:6000"


def test_an_unquoted_external_variable_may_be_many_words() -> None:
    words = last('cmd $ARGS "$ARGS" --nnodes $NNODES').words
    assert [word.many for word in words] == [False, True, False, False, False]


def test_appending_in_a_branch_keeps_the_rest() -> None:
    command = last('A="--x 1"\nif [ -f z ]; then A="$A --y 2"; fi\ncmd $A end')
    assert plain(command) == ["cmd", "--x", "1", None, "end"]
    assert command.words[3].many


def test_branches_give_alternatives() -> None:
    command = last("if [ -f z ]; then N=2; else N=4; fi\ncmd --n=$N")
    assert command.words[1].value == OneOf(("--n=2", "--n=4"))


def test_crlf_script_is_read() -> None:
    command = last('ARGS=(--a 1 \\\r\n --b 2)\r\ncmd \\\r\n "${ARGS[@]}"\r\n')
    assert plain(command) == ["cmd", "--a", "1", "--b", "2"]


def test_columns_count_characters() -> None:
    command = last('X="ä ö"; cmd "é" 值 z')
    assert plain(command) == ["cmd", "é", "值", "z"]
    assert at(command.words[-1]) == (1, 20)


# --- read and mapfile of a here-string ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IFS=',' read -ra G <<< '0,1,2'\ncmd ${#G[@]} ${G[1]}", ["cmd", "3", "1"]),
        ('L=4,5\nIFS=, read -r -a G <<< "$L"\ncmd ${G[@]}', ["cmd", "4", "5"]),
        ("read -r A B <<< 'x  y'\ncmd $A $B", ["cmd", "x", "y"]),
        ("read -r A B <<< 'x'\ncmd $A \"$B\"", ["cmd", "x", ""]),
        ("mapfile -t H <<< $'n1\\nn2'\ncmd ${#H[@]} ${H[1]}", ["cmd", "2", "n2"]),
        # The separator holds for that one command.
        ("IFS=',' read -ra G <<< '0,1'\nX='a b'\ncmd $X", ["cmd", "a", "b"]),
    ],
)
def test_a_here_string_that_is_known_is_read(text: str, expected: list[object]) -> None:
    assert plain(last(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "read -ra G < file\ncmd ${#G[@]}",
        'read -ra G <<< "$OUTSIDE"\ncmd ${#G[@]}',
        # A delimiter is not a name.
        "read -d ';' A <<< 'x;y'\ncmd $A",
        "mapfile -t -n 1 H <<< $'n1\\nn2'\ncmd ${H[0]}",
    ],
)
def test_other_input_of_read_is_unknown(text: str) -> None:
    assert plain(last(text)) == ["cmd", None]


def test_the_last_variable_of_read_gets_the_rest() -> None:
    assert plain(last("read -r A B <<< 'x y z'\ncmd $A \"$B\"")) == ["cmd", "x", "y z"]


def test_arithmetic_within_a_default_is_arithmetic() -> None:
    assert plain(last("A=6\nN=\nM=\n: ${N:=$((A / 2))}\ncmd $N ${M:-$(( (A + 2) * 2 ))}")) == ["cmd", "3", "16"]
    assert plain(last("cmd $((echo a); (echo b))"))[1:] != ["0"]


def test_a_script_below_the_directory_that_a_job_is_started_in_is_read() -> None:
    found = script("ssh node1 bash $PWD/node.sh 3\n$PWD/node.sh 4\n", node_sh="cmd $1\n")
    assert [plain(command) for command in found.commands if plain(command)[0] == "cmd"] == [["cmd", "3"], ["cmd", "4"]]
