"""Parameter expansion, arithmetic and command substitution."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Unresolved, Value, span_of
from preflight.model.job.value import expanded_in_script_text
from preflight.sources.base import SourceFile, UnknownKind, UnknownOrigin, Variable
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell import (
    ALLOCATED_HOSTS,
    FIRST_ALLOCATED_ADDRESS,
    FIRST_ALLOCATED_HOST,
    JOB_ID,
    RANDOM_NUMBER,
    THIS_ADDRESS,
    THIS_HOST,
    Symbol,
    evaluate,
    symbols_in,
)

HEADER = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n"


def value(expression: str, before: str = "", **files: str) -> Value:
    """The value of the word `expression` after the lines `before`."""
    text = f'{before}\ncmd "{expression}"\n'
    tree = MemoryTree({"run.sh": text, **{name.replace("_", "."): body for name, body in files.items()}})
    return evaluate(SourceFile("run.sh", text, "", len(text)), tree).commands[-1].words[1].value


@pytest.mark.parametrize(
    ("before", "expression", "expected"),
    [
        ("X=a", "${X:-d}", "a"),
        ("X=", "${X:-d}", "d"),
        ("X=", "${X-d}", ""),
        ("unset X", "${X-d}", "d"),
        ("unset X", "${X:=d}$X", "dd"),
        ("X=a", "${X:?must}", "a"),
        ("X=a", "${X:+set}", "set"),
        ("X=", "${X:+set}", ""),
        ("D=q; unset X", "${X:-$D/e}", "q/e"),
        ("X=/a/b/c.tar.gz", "${X##*/}", "c.tar.gz"),
        ("X=/a/b/c.tar.gz", "${X#*/}", "a/b/c.tar.gz"),
        ("X=/a/b/c.tar.gz", "${X%.*}", "/a/b/c.tar"),
        ("X=/a/b/c.tar.gz", "${X%%.*}", "/a/b/c"),
        ("X=aabaa", "${X/a/x}${X//a/y}", "xabaayybyy"),
        ("X=a/b", "${X//\\//_}", "a_b"),
        ("X=abcdef", "${#X}${X:0:3}${X:2}${X: -1}", "6abccdeff"),
        ("X=aBc", "${X^^}${X,,}${X^}", "ABCabcABc"),
        ("A=B; B=v", "${!A}", "v"),
    ],
)
def test_parameters(before: str, expression: str, expected: str) -> None:
    assert value(expression, before) == Known(expected)


def test_outside_variable_is_unresolved_and_names_its_default() -> None:
    assert value("$NNODES") == Unresolved("$NNODES, which the caller sets", ("NNODES",))
    assert value("${NNODES:-1}") == Unresolved("$NNODES, set by the caller, default 1", ("NNODES",))
    assert value("$N", "N=${NNODES:-1}") == Unresolved("$NNODES, set by the caller, default 1", ("NNODES",))
    assert value("$1") == Unresolved("$1, which the caller sets")


@pytest.mark.parametrize("chain", ["bash -c 'cmd ${N:-2}'", "bash -c 'N=$N bash -c \"cmd \\${N:-2}\"'"])
def test_default_of_an_outside_variable_is_named_in_inner_shells(chain: str) -> None:
    text = f"export N=$NODES\n{chain}\n"
    words = evaluate(SourceFile("run.sh", text, "", 0), MemoryTree({})).commands[-1].words
    assert words[1].value == Unresolved("$N, set by the caller, default 2", ("NODES",))
    assert words[1].origin == UnknownOrigin(UnknownKind.CALLER, default="2")


@pytest.mark.parametrize("before", ["M=$((N * 2))", "HOSTS=(a b); M=${HOSTS[$N]}"])
def test_computed_value_needs_no_default(before: str) -> None:
    found = value("${M:-4}", before)
    assert isinstance(found, Unresolved)
    assert "default" not in found.why


@pytest.mark.parametrize(
    ("word", "is_one_word"),
    [
        ("$N", True),
        ("${N:-2}", True),
        ("${N:-2 --fp16}", False),
        ("$(hostinfo)", True),
        ("$ARGS", False),
        ("${X:+--fp16}", False),
    ],
)
def test_unquoted_word_after_an_option_is_its_value_if_it_comes_from_outside(word: str, *, is_one_word: bool) -> None:
    text = f"cmd --nnodes {word}\n"
    words = evaluate(SourceFile("run.sh", text, "", 0), MemoryTree({})).commands[-1].words
    assert words[2].many is not is_one_word


def test_known_environment_decides_the_default() -> None:
    text = "cmd ${NNODES:-1} ${OTHER:-2}"
    known = {"NNODES": Variable("NNODES", Known("4"), span_of("x", "", 0, 0), "4")}
    file = SourceFile("run.sh", text, "", 0)
    words = evaluate(file, MemoryTree({}), environment=known).commands[0].words
    assert words[1].value == Known("4")
    assert isinstance(words[2].value, Unresolved)


@pytest.mark.parametrize(
    ("before", "expression", "expected"),
    [
        ("N=4; G=8", "$((N*G))", "32"),
        ("N=4; G=8", "$(( $N * ${G} + 1 ))", "33"),
        ("", "$((7/2)) $((-7/2)) $((-7%3)) $((2**3**2))", "3 -3 -1 512"),
        ("", "$((1+2*3)) $(((1+2)*3)) $((1<2 ? 5 : 6))", "7 9 5"),
        ("", "$((0x10)) $((010)) $((16#ff))", "16 8 255"),
        ("i=1; ((i++)); ((i+=2))", "$i", "4"),
        ("let x=3+4", "$x", "7"),
        ("i=1; j=$((i++))", "$i$j", "21"),
        ("N=4", "$(( 1 + (2 * (3 + $(echo 4))) ))", "15"),
        ("N=4", "$(expr 20000 + $N)", "20004"),
        ("N=4", '$(echo "$N*2" | bc)', "8"),
        ("A=(1 2 3)", "$((${#A[@]} * 2))", "6"),
        ("declare -i N=3", "$((N))", "3"),
    ],
)
def test_arithmetic(before: str, expression: str, expected: str) -> None:
    assert value(expression, before) == Known(expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--export=A=$A,B=$B,C=1", "--export=A=x,B=y,C=1"),
        ("$A/$B/$A/z", "x/y/x/z"),
        ("${A}-$B.json", "x-y.json"),
        ("$OUT", "x/b=y-x.txt"),
        ("$((2+$N-$N-1))", "1"),
    ],
)
def test_text_behind_a_later_variable_of_a_word_belongs_to_the_word(word: str, expected: str) -> None:
    text = f"A=x; B=y; N=3\nOUT=$A/b=$B-$A.txt\ncmd {word} end\n"
    commands = evaluate(SourceFile("run.sh", text, "", len(text)), MemoryTree({})).commands
    assert [item.value for item in commands[-1].words] == [Known("cmd"), Known(expected), Known("end")]


def test_arithmetic_over_alternatives_and_the_unknown() -> None:
    assert value("$((N*2))", "if [ -f a ]; then N=1; else N=2; fi") == OneOf(("2", "4"))
    assert isinstance(value("$((1/0))"), Unresolved)
    assert isinstance(value("$((N*2))"), Unresolved)
    assert isinstance(value("$((9**9**9))"), Unresolved)


@pytest.mark.parametrize(
    ("before", "expression", "expected"),
    [
        ("", "$(echo a b)", "a b"),
        ("X=p/q/r.py", "$(basename $X) $(basename $X .py) $(dirname $X)", "r.py r p/q"),
        ("", "$(seq 3 | wc -l) $(seq 3 | tail -n 1)", "3 3"),
        ("", "$(seq -s , 0 2)", "0,1,2"),
        ("", "$(cat hosts.txt | wc -l)", "2"),
        ("", "$(wc -l < hosts.txt)", "2"),
        ("", "$(< hosts.txt)", "n0 slots=8\nn1 slots=8"),
        ("", "$(head -n 1 hosts.txt | awk '{print $1}')", "n0"),
        ("", "$(head -1 hosts.txt | cut -d= -f2)", "8"),
        ("X=a,b,c", "$(echo $X | tr ',' ' ')", "a b c"),
        ("X=a,b,c", "$(echo $X | tr ',' '\\n' | wc -l)", "3"),
        ("", "$(printf '%02d-%s' 3 x)", "03-x"),
        ('f() { local p=$1; echo "$p-x"; }', "$(f 1)", "1-x"),
        ("", '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)', "."),
        ("", "`echo old`", "old"),
        ("", "$(cat hosts.txt hosts.txt | wc -l)", "4"),
    ],
)
def test_substitutions_fold(before: str, expression: str, expected: str) -> None:
    text = f'{before}\ncmd "{expression}"\n'
    tree = MemoryTree({"run.sh": text, "hosts.txt": "n0 slots=8\nn1 slots=8\n"})
    commands = evaluate(SourceFile("run.sh", text, "", len(text)), tree).commands
    assert commands[-1].words[1].value == Known(expected)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)", FIRST_ALLOCATED_HOST),
        ('$(scontrol show hostname "$SLURM_NODELIST"|head -1)', FIRST_ALLOCATED_HOST),
        ("$(scontrol show hostnames | head -n1 | tr -d ' ')", FIRST_ALLOCATED_HOST),
        ("$(scontrol show hostnames $SLURM_JOB_NODELIST | sed -n 1p)", FIRST_ALLOCATED_HOST),
        ("$(scontrol show hostnames $SLURM_JOB_NODELIST)", ALLOCATED_HOSTS),
        ("$(hostname)", FIRST_ALLOCATED_HOST),
        ("$(hostname -I | awk '{print $1}')", FIRST_ALLOCATED_ADDRESS),
        ("$SLURM_JOB_ID", JOB_ID),
        ("$RANDOM", RANDOM_NUMBER),
        ("$(shuf -i 10000-65535 -n 1)", RANDOM_NUMBER),
        ("$(nproc)", Symbol.CORE_COUNT.value),
        ("$(nvidia-smi -L | wc -l)", Symbol.GPU_COUNT.value),
        ("$SLURM_PROCID", expanded_in_script_text(Symbol.PROCESS_RANK)),
    ],
)
def test_run_time_values_have_names(expression: str, why: str) -> None:
    text = f"{HEADER}cmd --x {expression}\n"
    commands = evaluate(SourceFile("run.sh", text, "", len(text)), MemoryTree({})).commands
    found = commands[-1].words[2].value
    assert found == Unresolved(why)
    assert [symbol.value for symbol in symbols_in(found)] == [why.partition(", expanded")[0]]


def test_node_array() -> None:
    before = f"{HEADER}nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\nhead=${{nodes[0]}}"
    assert value("$head", before) == Unresolved(FIRST_ALLOCATED_HOST)
    assert value("${nodes[1]}", before) == Unresolved(Symbol.OTHER_ALLOCATED_HOST.value)
    assert value("${#nodes[@]}", before) == Known("4")
    assert value("${nodes[$SLURM_NODEID]}", before) == Unresolved(THIS_HOST)
    ip = before + '\nip=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)'
    assert value("$ip", ip) == Unresolved(FIRST_ALLOCATED_ADDRESS)
    two_steps = f"{HEADER}n=$(scontrol show hostnames $SLURM_JOB_NODELIST)\nnodes=($n)"
    assert value("${nodes[0]}", two_steps) == Unresolved(FIRST_ALLOCATED_HOST)


def test_hostname_without_a_batch_script_is_this_host() -> None:
    assert value("$(hostname)") == Unresolved(THIS_HOST)
    assert value("$(hostname -i)") == Unresolved(THIS_ADDRESS)
    assert value("$HOSTNAME") == Unresolved(THIS_HOST)


def test_a_computed_value_still_names_its_symbol() -> None:
    assert symbols_in(value("$((10000 + RANDOM % 1000))")) == {Symbol.RANDOM_NUMBER}
    assert symbols_in(value("$(expr 10000 + $(echo -n $SLURM_JOB_ID | tail -c 4))", HEADER)) == {Symbol.JOB_ID}


def test_unfoldable_output_is_named() -> None:
    found = value("$(python -c 'print(1)')")
    assert isinstance(found, Unresolved)
    assert found.why == "the output of `python -c 'print(1)'`"
