"""Shells inside commands, sourced files and here-documents."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, NoteKind, Unresolved
from preflight.sources.base import Command, Script, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell import FIRST_ALLOCATED_HOST, THIS_HOST, evaluate


def script(text: str, files: dict[str, str] | None = None, path: str = "run.sh") -> Script:
    tree = MemoryTree({path: text, **(files or {})})
    return evaluate(SourceFile(path, text, "", len(text)), tree)


def plain(command: Command) -> list[object]:
    return [word.value.value if isinstance(word.value, Known) else None for word in command.words]


def named(found: Script, name: str) -> Command:
    return next(command for command in found.commands if command.words[0].value == Known(name))


@pytest.mark.parametrize(
    "line",
    [
        "bash -c 'torchrun --nnodes 4 x.py'",
        "sh -c 'torchrun --nnodes 4 x.py'",
        "/bin/bash -lc 'torchrun --nnodes 4 x.py'",
        "bash -e -c 'torchrun --nnodes 4 x.py'",
        "srun bash -c 'torchrun --nnodes 4 x.py'",
        "srun --jobid $SLURM_JOBID -N 4 --container-image=a.sqsh bash -c 'torchrun --nnodes 4 x.py'",
        "mpirun -np 4 --host a,b bash -c 'torchrun --nnodes 4 x.py'",
        "timeout 10 bash -c 'torchrun --nnodes 4 x.py' &",
        "nohup bash -c 'torchrun --nnodes 4 x.py' > log 2>&1 &",
        "env A=b bash -c 'torchrun --nnodes 4 x.py'",
        "gantry run --gpus 8 -- /bin/bash -lc 'torchrun --nnodes 4 x.py'",
        "submit --name a -- sh -c 'torchrun --nnodes 4 x.py'",
        "exec bash -c 'torchrun --nnodes 4 x.py'",
        "time bash -c 'torchrun --nnodes 4 x.py'",
        "ssh -p 22 host 'torchrun --nnodes 4 x.py'",
        "ssh $H torchrun --nnodes 4 x.py",
        "docker run --gpus all img bash -c 'torchrun --nnodes 4 x.py'",
        "sbatch -N 4 --wrap='torchrun --nnodes 4 x.py'",
        "bash <<EOF\ntorchrun --nnodes 4 x.py\nEOF",
        "srun bash <<'EOF'\ntorchrun --nnodes 4 x.py\nEOF",
        "sbatch <<EOF\n#!/bin/bash\ntorchrun --nnodes 4 x.py\nEOF",
        "ssh host <<EOF\ntorchrun --nnodes 4 x.py\nEOF",
        "bash <<< 'torchrun --nnodes 4 x.py'",
        "bash inner.sh",
        "sh ./inner.sh",
        "./inner.sh",
        "srun ./inner.sh",
        "srun -N 4 bash inner.sh",
    ],
)
def test_inner_commands(line: str) -> None:
    found = script(line, {"inner.sh": "torchrun --nnodes 4 x.py"})
    assert [len(found.commands), plain(found.commands[1])] == [2, ["torchrun", "--nnodes", "4", "x.py"]]
    assert found.commands[1].outer is found.commands[0]
    assert not any(note.kind is NoteKind.CRASHED for note in found.notes)


def test_words_inside_a_quoted_string_have_exact_places() -> None:
    found = script('N=4\nsrun bash -c "\n  torchrun --nnodes=$N \\\n    --tp 2 x.py"\n')
    inner = found.commands[1]
    assert plain(inner) == ["torchrun", "--nnodes=4", "--tp", "2", "x.py"]
    assert [(w.span.line, w.span.column) for w in inner.words] == [(3, 3), (3, 12), (4, 5), (4, 10), (4, 12)]
    assert inner.words[1].spelling == "--nnodes=$N"


def test_launcher_in_a_string() -> None:
    text = (
        'N=4\nLAUNCHER="torchrun --nnodes $N --node_rank \\$SLURM_PROCID"\nARGS="--tp 2"\n'
        'export CMD="$LAUNCHER train.py $ARGS"\nsrun --jobid $SLURM_JOBID bash -c "$CMD"\n'
    )
    inner = script(text).commands[1]
    assert plain(inner) == ["torchrun", "--nnodes", "4", "--node_rank", None, "train.py", "--tp", "2"]
    assert inner.words[4].value == Unresolved("the rank of the task")
    assert inner.words[1].span.line == 2
    assert inner.words[6].span.line == 3


def test_eval_and_plain_command_strings() -> None:
    text = "CMD=\"torchrun --n 4 'a b.py'\"\neval $CMD\n$CMD\nL='python -m torch.distributed.run'\n${L} x.py"
    assert [plain(command) for command in script(text).commands] == [
        ["torchrun", "--n", "4", "a b.py"],
        ["torchrun", "--n", "4", "'a", "b.py'"],
        ["python", "-m", "torch.distributed.run", "x.py"],
    ]


def test_only_exported_variables_are_passed_on() -> None:
    text = "export A=1\nB=2\nC=3 bash -c 'cmd $A $B $C'"
    assert plain(script(text).commands[1]) == ["cmd", "1", None, "3"]
    assert plain(script("export A=1\nssh h 'cmd $A'").commands[1]) == ["cmd", None]
    assert plain(script("export A=1\nsrun --export=NONE bash -c 'cmd $A'").commands[1]) == ["cmd", None]
    assert plain(script("srun --export=ALL,A=1 bash -c 'cmd $A'").commands[1]) == ["cmd", "1"]
    assert plain(script("env A=1 bash -c 'cmd $A'").commands[1]) == ["cmd", "1"]


def test_hostname_differs_under_srun() -> None:
    found = script("#!/bin/bash\n#SBATCH -N 2\na $(hostname)\nsrun bash -c 'b $(hostname)'\nbash -c 'c $(hostname)'")
    assert named(found, "a").words[1].value == Unresolved(FIRST_ALLOCATED_HOST)
    assert named(found, "b").words[1].value == Unresolved(THIS_HOST)
    assert named(found, "c").words[1].value == Unresolved(FIRST_ALLOCATED_HOST)


def test_arguments_of_inner_scripts() -> None:
    files = {"scripts/go.sh": 'N=${1:-1}\nshift\ntorchrun --nnodes $N "$@" $0'}
    inner = script("srun bash scripts/go.sh 4 --x 'a b'", files).commands[1]
    assert plain(inner) == ["torchrun", "--nnodes", "4", "--x", "a b", "scripts/go.sh"]
    assert inner.words[1].span.path == "scripts/go.sh"
    assert plain(script("bash -c 'cmd $0 $1' a b").commands[1])[-1] == "b"


def test_sourced_files() -> None:
    files = {"scripts/env.sh": "export PORT=6000\nhelper() { cmd $1; }", "scripts/run.sh": ""}
    text = 'DIR=$(dirname "$0")\nsource "$DIR/env.sh"\nhelper $PORT\n'
    found = script(text, files, "scripts/run.sh")
    assert plain(found.commands[-1]) == ["cmd", "6000"]
    assert [(r.target, r.role) for r in found.references] == [("scripts/env.sh", "source")]
    assert found.commands[-1].environment["PORT"].span.path == "scripts/env.sh"
    assert plain(script(". ./env.sh\ncmd $A", {"env.sh": "A=1"}).commands[-1]) == ["cmd", "1"]


def test_missing_and_outside_sources_are_noted() -> None:
    found = script("source gone.sh\nsource /etc/profile\nsource ../up.sh\ncmd")
    assert [(note.kind, note.span.line) for note in found.notes] == [
        (NoteKind.MISSING, 1),
        (NoteKind.OUTSIDE, 2),
        (NoteKind.OUTSIDE, 3),
    ]
    assert plain(found.commands[-1]) == ["cmd"]


def test_recursive_sources_and_scripts_terminate() -> None:
    found = script("source run.sh\nbash run.sh\ncmd")
    assert plain(found.commands[-1]) == ["cmd"]
    assert found.notes
    mutual = script("bash b.sh", {"b.sh": "bash run.sh"})
    assert len(mutual.commands) == 2


def test_written_files() -> None:
    text = (
        'N=8\ncat > conf/ds.json <<EOF\n{"train_batch_size": $N}\nEOF\n'
        "cat <<'EOF' > raw.json\n{\"a\": $N}\nEOF\n"
        'echo "n0 slots=$N" > hosts\necho "n1 slots=8" >> hosts\n'
        "printf '%s slots=%d\\n' n0 $N n1 4 > hostfile\n"
        'cat <<EOF > open.json\n{"a": $OUTSIDE}\nEOF\ncmd $(wc -l < hosts)'
    )
    found = script(text)
    assert {item.path: item.text for item in found.written} == {
        "conf/ds.json": '{"train_batch_size": 8}\n',
        "raw.json": '{"a": $N}\n',
        "hosts": "n0 slots=8\nn1 slots=8\n",
        "hostfile": "n0 slots=8\nn1 slots=4\n",
        "open.json": None,
    }
    assert found.written[0].span.line == 3
    assert plain(found.commands[-1]) == ["cmd", "2"]


def test_sbatch_here_document_has_directives() -> None:
    found = script("for n in 2; do sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=$n\nsrun cmd \\$SLURM_NNODES\nEOF\ndone")
    assert [(d.option, d.value, d.span.line) for d in found.directives] == [("--nodes", "2", 3)]
    assert plain(found.commands[1]) == ["srun", "cmd", "2"]


def test_an_unknown_inner_script_is_ignored() -> None:
    found = script('srun bash -c "$CMD"\nsrun $CMD\nbash $X\nbash -c "$A --n 2"')
    assert [len(command.words) for command in found.commands] == [4, 1, 2, 2, 3, 3]
    assert found.commands[1].words[0].many


def test_training_arguments_are_not_scripts() -> None:
    found = script("srun python train.py --hook hook.sh\ntorchrun x.py bash -c 'cmd'")
    assert len(found.commands) == 2
