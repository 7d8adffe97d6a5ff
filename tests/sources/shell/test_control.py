"""Branches, loops and functions, and the state after them."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Unresolved
from preflight.sources.base import Script, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell import evaluate


def script(text: str) -> Script:
    return evaluate(SourceFile("run.sh", text, "", len(text)), MemoryTree({"run.sh": text}))


def lines(text: str) -> list[list[object]]:
    """Every command's words; None for an unresolved one."""
    return [
        [word.value.value if isinstance(word.value, Known) else None for word in command.words]
        for command in script(text).commands
    ]


@pytest.mark.parametrize(
    ("test", "branch"),
    [
        ('[ "$A" = a ]', "yes"),
        ('[ "$A" == b ]', "no"),
        ("[[ $A == a* ]]", "yes"),
        ("[[ $A == b* || -z $E ]]", "yes"),
        ("[[ $A == b* && -z $E ]]", "no"),
        ('[ -n "$A" -a $N -ge 4 ]', "yes"),
        ("[ $N -lt 4 ]", "no"),
        ("! [ $N -lt 4 ]", "yes"),
        ("test $N -eq 4", "yes"),
        ("(( N > 3 ))", "yes"),
        ('[ -z "${E}" ] && [ $N = 4 ]', "yes"),
        ("[[ -v N ]]", "yes"),
        ("true", "yes"),
        ("false", "no"),
        ("[[ ! ( $A == b ) ]]", "yes"),
    ],
)
def test_decided_conditions(test: str, branch: str) -> None:
    text = f"A=a; E=; N=4\nif {test}; then yes; else no; fi"
    found = script(text).commands
    assert [command.words[0].value for command in found] == [Known(branch)]
    assert found[0].condition == ""


def test_an_undecided_condition_follows_both_branches() -> None:
    found = script('if [ "$MODE" = "debug" ]; then a; elif [ -f x ]; then b; else c; fi; d').commands
    assert [command.words[0].value for command in found] == [Known("a"), Known("b"), Known("c"), Known("d")]
    assert found[0].condition == 'if [ "$MODE" = "debug" ]'
    assert 'not if [ "$MODE" = "debug" ]' in found[1].condition or "if [ -f x ]" in found[1].condition
    assert found[2].condition.startswith("not if")
    assert found[3].condition == ""


def test_a_branch_that_exits_is_not_joined() -> None:
    assert lines("N=1\nif [ $# -lt 1 ]; then N=2; exit 1; fi\ncmd $N") == [["cmd", "1"]]
    assert lines("exit 0\ncmd") == []
    assert lines("if true; then exit; fi\ncmd") == []


def test_a_default_set_by_a_condition() -> None:
    found = script('if [ -z "$N" ]; then N=4; fi\ncmd --n=$N').commands[-1].words[1].value
    assert isinstance(found, Unresolved)


def test_and_or_lists() -> None:
    assert lines("true && a; false && b; false || c; true || d") == [["a"], ["c"]]
    found = script('[ "$D" = 1 ] && X=2\nmkdir x && cmd $X').commands
    assert [command.condition for command in found] == ["", ""]
    found = script('[ "$D" = 1 ] && cmd').commands
    assert found[0].condition == '[ "$D" = 1 ] &&'


def test_long_and_chain() -> None:
    assert len(lines(" && ".join(f"c{n}" for n in range(300)))) == 300


def test_case() -> None:
    assert lines("M=7b; case $M in 1b) N=1;; 7b|13b) N=2;; *) N=3;; esac; cmd $N") == [["cmd", "2"]]
    found = script("case $M in 1b) N=1;; *) N=3;; esac; cmd $N").commands[-1]
    assert found.words[1].value == OneOf(("1", "3"))
    assert script("case $M in 1b) cmd;; esac").commands[0].condition == "case $M in 1b)"


@pytest.mark.parametrize(
    ("head", "turns"),
    [
        ("for i in 0 1", ["0", "1"]),
        ("for i in $(seq 0 2)", ["0", "1", "2"]),
        ("for i in {1..3}", ["1", "2", "3"]),
        ("for ((i=0;i<3;i++))", ["0", "1", "2"]),
        ('A=(x y); for i in "${A[@]}"', ["x", "y"]),
        ("i=0; while [ $((++i)) -lt 3 ]", ["1", "2"]),
    ],
)
def test_loops_over_known_words_are_unrolled(head: str, turns: list[str]) -> None:
    assert lines(f"{head}; do cmd $i; done") == [["cmd", turn] for turn in turns]


def test_other_loops_run_once() -> None:
    found = script("N=1; A=(a)\nfor h in $HOSTS; do cmd $h $N; N=$((N+1)); A+=(b); done; cmd $N ${A[@]}").commands
    assert [command.repeated for command in found] == [True, False]
    assert isinstance(found[0].words[1].value, Unresolved)
    assert isinstance(found[0].words[2].value, Unresolved)
    assert isinstance(found[1].words[1].value, Unresolved)
    assert found[1].words[2].value == Known("a")


def test_endless_and_undecided_loops_terminate() -> None:
    assert len(lines("while true; do cmd; sleep 1; done")) == 2
    assert len(lines("until nc -z $H 1; do sleep 1; done")) == 2
    assert lines("for i in 1 2 3; do if [ $i = 2 ]; then break; fi; cmd $i; done") == [["cmd", "1"]]
    assert lines("for i in 1 2 3; do [ $i = 2 ] && continue; cmd $i; done") == [["cmd", "1"], ["cmd", "3"]]


def test_parameter_sweep_is_bounded() -> None:
    words = " ".join(str(n) for n in range(12))
    text = f"for a in {words}; do for b in {words}; do for c in {words}; do cmd $a $b $c; done; done; done"
    assert len(script(text).commands) <= 200


def test_functions() -> None:
    text = "f() { local n=$1; m=$n; cmd $n $2 $#; return; never; }\nn=9\nf 1 two\ncmd $n $m"
    assert lines(text) == [["cmd", "1", "two", "2"], ["cmd", "9", "1"]]
    assert lines("function g { cmd \"$@\"; }\ng a 'b c'") == [["cmd", "a", "b c"]]
    assert lines("f() { exit 1; }\nf\ncmd") == []


def test_recursion_terminates() -> None:
    found = script("f() { cmd; f; }\nf\nafter")
    assert found.commands[-1].words[0].value == Known("after")
    assert any("calls itself" in note.message for note in found.notes)


def test_subshells_and_pipes_keep_their_changes() -> None:
    assert lines("X=1; (X=2; cmd $X); echo | X=3; X=4 & cmd $X") == [["cmd", "2"], ["echo"], ["cmd", "1"]]


def test_environment_of_a_command() -> None:
    found = script("export A=1\nB=2\ndeclare -x C=3\nD=4 cmd\nset -a\nE=5\nset +a\nF=6\nenv G=7 cmd").commands
    first, second = found[0], found[-1]
    assert {name: v.value for name, v in first.environment.items()} == {
        "A": Known("1"),
        "C": Known("3"),
        "D": Known("4"),
    }
    assert first.variables["B"].value == Known("2")
    assert not first.variables["B"].exported
    assert set(second.environment) == {"A", "C", "E", "G"}
    assert first.environment["A"].span.line == 1


def test_unset_and_late_export() -> None:
    found = script("A=1; B=2; export B A; unset A; export Z; Z=3; cmd").commands[-1]
    assert set(found.environment) == {"B", "Z"}
    assert found.environment["Z"].value == Known("3")


def test_directory_and_prelude() -> None:
    text = "module load cuda/12\nsource venv/bin/activate\ncd sub/dir && cmd\ncd $X\ncmd"
    tree = MemoryTree({"run.sh": text, "sub/dir/train.py": ""})
    commands = evaluate(SourceFile("run.sh", text, "", len(text)), tree).commands
    found = [command for command in commands if command.words[0].value == Known("cmd")]
    assert [command.directory for command in found] == ["sub/dir", None]
    assert [word.spelling for word in found[0].prelude] == ["module load cuda/12", "source venv/bin/activate"]
    assert found[0].prelude[0].span.line == 1


def test_script_arguments() -> None:
    text = "NODES=1\nwhile [[ $# -gt 0 ]]; do case $1 in --nodes) NODES=$2; shift 2;; *) shift;; esac; done\ncmd $NODES"
    outer = script("f() { :; }\n" + text.replace("cmd", "cmd --n"))
    assert isinstance(outer.commands[-1].words[2].value, Unresolved)
    words = script("x --nodes 4").commands[0].words[1:]
    tree = MemoryTree({})
    found = evaluate(SourceFile("run.sh", text, "", len(text)), tree, arguments=words).commands[-1]
    assert found.words[1].value == Known("4")


def test_option_letters_are_not_arguments() -> None:
    text = "set -euo pipefail\nset -o allexport\nA=1\nset +o allexport\ncmd $1"
    found = script(text).commands[-1]
    assert isinstance(found.words[1].value, Unresolved)
    assert set(found.environment) == {"A"}
    assert lines("set -- a b\ncmd $2 $#")[-1] == ["cmd", "b", "2"]


def test_parameter_server_loop() -> None:
    text = (
        "PORTS=(6170 6171)\nEPS=127.0.0.1:6170,127.0.0.1:6171\nexport PADDLE_PSERVERS_IP_PORT_LIST=$EPS\n"
        "for ((i=0;i<${#PORTS[@]};i++)); do\n"
        "  TRAINING_ROLE=PSERVER PADDLE_PORT=${PORTS[$i]} python train.py &> log.$i &\ndone\n"
        "for i in 0 1; do PADDLE_TRAINER_ID=$i TRAINING_ROLE=TRAINER python train.py & done; wait\n"
    )
    found = [command for command in script(text).commands if command.words[0].value == Known("python")]
    seen = [
        tuple(command.environment[name].value for name in ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST"))
        for command in found
    ]
    endpoints = Known("127.0.0.1:6170,127.0.0.1:6171")
    assert seen == [(Known("PSERVER"), endpoints)] * 2 + [(Known("TRAINER"), endpoints)] * 2
    assert [c.environment["PADDLE_PORT"].value for c in found[:2]] == [Known("6170"), Known("6171")]
    assert [c.environment["PADDLE_TRAINER_ID"].value for c in found[2:]] == [Known("0"), Known("1")]
    assert found[0].environment["PADDLE_PORT"].span.line == 5


CHOICE = """
if [ "$MODE" = multi ]; then
  PRE="srun --ntasks-per-node=1"; L="torchrun --nnodes=2"; BS=4
else
  PRE=""; L=python; BS=8
fi
"""


@pytest.mark.parametrize(
    "launch", ["$PRE $L train.py --bs $BS", 'C="$L train.py --bs $BS"\n$PRE $C', 'eval "$PRE $L train.py --bs $BS"']
)
def test_a_launcher_chosen_by_a_branch_has_the_values_of_that_branch(launch: str) -> None:
    assert lines(CHOICE + launch)[-2:] == [
        ["srun", "--ntasks-per-node=1", "torchrun", "--nnodes=2", "train.py", "--bs", "4"],
        ["python", "train.py", "--bs", "8"],
    ]


def test_a_launcher_in_an_array_chosen_by_a_branch_is_followed() -> None:
    text = 'if $MULTI; then L=(torchrun --nnodes=2); else L=(python); fi\nL+=(train.py)\n"${L[@]}" --lr 1'
    assert lines(text)[-2:] == [
        ["torchrun", "--nnodes=2", "train.py", "--lr", "1"],
        ["python", "train.py", "--lr", "1"],
    ]


def test_a_launcher_chosen_by_a_case_has_it_as_condition() -> None:
    text = 'case $M in a) L="torchrun --nnodes=2" ;; *) L="python -u" ;; esac\n$L train.py'
    assert [command.condition for command in script(text).commands] == [
        "L is 'torchrun --nnodes=2'",
        "L is 'python -u'",
    ]


def test_values_of_one_word_stay_alternatives_of_one_command() -> None:
    found = script("if $BIG; then N=8; else N=4; fi\ntorchrun --nproc_per_node=$N train.py").commands[1:]
    assert [command.words[1].value for command in found] == [OneOf(("--nproc_per_node=8", "--nproc_per_node=4"))]


@pytest.mark.parametrize(
    "line",
    [
        "X=<fill in>",
        "export MASTER_ADDR=<ip of node 0>",
        "cd /home/<user name>/code",
        "python prep.py --data <DATA_DIR>",
        "ssh <host>",
    ],
)
def test_a_placeholder_does_not_hide_the_lines_after_it(line: str) -> None:
    found = script(f"{line}\ntorchrun --nnodes=2 train.py")
    assert [word.value for word in found.commands[-1].words] == [
        Known("torchrun"),
        Known("--nnodes=2"),
        Known("train.py"),
    ]
    assert [note.message for note in found.notes if "is a placeholder" in note.message]


@pytest.mark.parametrize(
    "line", ["sort <names.txt> sorted.txt", "cat < in > out", "diff <(a) <(b)", 'echo "<your token>"']
)
def test_redirections_and_quoted_text_are_not_placeholders(line: str) -> None:
    assert not [note for note in script(line).notes if "placeholder" in note.message]


def test_a_placeholder_in_a_variable_is_unknown_text_of_an_evaluated_line() -> None:
    found = script('D="<path/to/project>"\nCMD="torchrun train.py --load ${D}/bert --fp16"\neval $CMD')
    words = found.commands[-1].words
    assert [word.spelling for word in words] == ["torchrun", "train.py", "--load", "${D}/bert", "--fp16"]
    assert isinstance(words[3].value, Unresolved)


def test_a_placeholder_in_a_value_leaves_it_unresolved() -> None:
    value = script("torchrun --rdzv_endpoint=<head node>:29500 train.py").commands[0].words[1].value
    assert isinstance(value, Unresolved) and "`<head node>`, which must be replaced" in value.why
