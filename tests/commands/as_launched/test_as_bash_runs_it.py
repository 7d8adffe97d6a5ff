"""Changed scripts run by bash, with stubs instead of launchers that record their arguments.

Each launcher must get the same words as before, except the program and its arguments.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight.commands.as_launched.plan import plan

#: Records its words and variables, and starts the rest of its line if another command follows.
STUB = """#!{python}
import json, os, subprocess, sys
name = os.path.basename(sys.argv[0])
told = [name, *sys.argv[1:]]
kept = {{key: os.environ[key] for key in ("MASTER_ADDR", "NCCL_DEBUG", "LR") if key in os.environ}}
with open({log!r}, "a") as log:
    log.write(json.dumps([told, kept, os.getcwd()]) + "\\n")
skipped = {skipped}.get(name)
rest = sys.argv[1:]
if skipped is not None:
    while rest and (rest[0].startswith("-") or rest[0] in skipped):
        rest = rest[1:]
    if name == "ssh":
        rest = ["bash", "-c", " ".join(rest[1:])]
    sys.exit(subprocess.run(rest).returncode if rest else 0)
"""
#: Programs that start others, and those of their words that are not a program.
SKIPPED = {"srun": [], "apptainer": ["exec", "img.sif"], "docker": ["run", "img:1"], "ssh": [], "mpirun": ["4"]}
#: Prefixes of replaced programs, or the variable that contains one in a line for an inner shell.
PROGRAMS = ("train.py", "pkg.train", "$CMD")
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "python", "python3")

SCRIPTS = {
    "continued": r"""
A=(--lr 1 --x "a b")
srun -N2 torchrun --nproc_per_node=2 \
  train.py \
  "${A[@]}" \
  --y 2>&1 | cat
""",
    "in one variable": r"""
CMD="torchrun --nnodes 2 train.py --lr 1"
CMD="$CMD --x"
srun $CMD
""",
    "in quotes": r"""
export LR=3
export LAUNCH="torchrun --nnodes 2"
export CMD=" train.py --lr $LR \
 --b"
srun bash -c '$LAUNCH --node_rank 0 $CMD'
""",
    "by ssh": r"""
for host in a b; do
  ssh $host "cd /tmp && MASTER_ADDR=$host torchrun --nnodes 2 train.py --lr 1" &
  wait
done
""",
    "in a function": r"""
go() {
  local first=$1
  shift
  NCCL_DEBUG=INFO torchrun --nnodes 2 "$@"
}
go x train.py --lr 1
""",
    "in a container": r"""
srun -N2 apptainer exec --nv img.sif python -u train.py --lr 1
docker run --rm img:1 deepspeed --num_gpus=2 train.py --deepspeed_config d.json
""",
    "modules": r"""
torchrun --nnodes 2 -m pkg.train --x
accelerate launch --num_processes 2 -m pkg.train --x
srun -N2 python -u -m pkg.train --x
""",
    "here": r"""
srun bash <<EOF
cd /
torchrun --nnodes 2 train.py --lr 1
EOF
""",
    "written": r"""
cat > /tmp/unused <<EOF
x
EOF
cat > inner.sh <<'EOF'
torchrun --nnodes 2 train.py $1
EOF
srun bash inner.sh --lr
""",
    "branches": r"""
N=2
if [ $N -gt 1 ]; then
  X="--nnodes $N"
else
  X=""
fi
torchrun $X train.py --lr 1 && echo fine || exit 3
""",
    "of python ranks": r"""
export MASTER_ADDR=h
for r in 0 1; do
  RANK=$r WORLD_SIZE=2 python train.py --lr $r &
done
wait
""",
    "by mpi": r"""
mpirun -np 4 python3 -u train.py --lr 1
""",
    "by its own place": r"""
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$HERE"
bash $HERE/sub.sh --lr 1
""",
}


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder of stubs that comes first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*SKIPPED, *LAUNCHERS):
        path = folder / name
        text = STUB.format(python=sys.executable, log=str(tmp_path / "log"), skipped=SKIPPED)
        path.write_text(text)
        path.chmod(0o755)
    return folder


def recorded_calls(script: Path, folder: Path, stubs: Path) -> list[list[Any]]:
    """The words that the stubs got when bash ran the script, in order."""
    log = stubs.parent / "log"
    log.write_text("")
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(each) for each in log.read_text().splitlines()]


def line(words: Sequence[str], programs: tuple[str, ...], rest: Sequence[object]) -> str:
    """The record of a stub, with its words up to the program. A word with a line for a shell is split into its
    words.
    """
    parts = [part for word in words for part in word.split()]
    end = next((at for at, part in enumerate(parts) if part.startswith(programs)), len(parts))
    return json.dumps([[part for part in parts[:end] if part != "-m"], *rest])


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_launcher_gets_the_same_words_except_the_program(name: str, tmp_path: Path, stubs: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "sub.sh").write_text('torchrun --nnodes 2 train.py "$@"\n')
    (work / "job.sh").write_text(SCRIPTS[name])
    before = recorded_calls(work / "job.sh", work, stubs)
    out = tmp_path / "out"
    out.mkdir()
    found = plan(work, "job.sh", out)
    for copy in found.copies:
        (out / copy.name).write_text(copy.text)
    after = recorded_calls(out / "job.sh", work, stubs)
    trainer = str(out / "preflight_trainer")
    assert len(before) == len(after) > 0
    assert any(trainer in str(words) for words, *_ in after)
    started = [words for words, *_ in after if words[0] in LAUNCHERS]
    assert not any(word.endswith(".py") and word.startswith(("train", "pkg")) for words in started for word in words)
    assert not any(word.startswith("pkg.train") for words in started for word in words)
    assert sorted(line(words, PROGRAMS, rest) for words, *rest in before) == sorted(
        line(words, (trainer,), rest) for words, *rest in after
    )
