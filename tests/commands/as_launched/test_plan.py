"""Launch lines of many styles: the program is replaced by the trainer, and nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight._util import toml
from preflight.commands.as_launched.execution import exclude_each_other
from preflight.commands.as_launched.plan import Relaunch, backends_of, plan, refuse_servers, spawned_by
from preflight.commands.as_launched.script_edits import Refusal
from preflight.config.resolve import jobs_in
from preflight.model.job import Job

TRAINER = "/out/preflight_trainer.py"


def plan_script(tmp_path: Path, text: str, *, launch: int | None = None, **others: str) -> Relaunch:
    """Plan the script job.sh with other files beside it (`inner_sh` is inner.sh)."""
    (tmp_path / "job.sh").write_text(text)
    for name, content in others.items():
        (tmp_path / name.replace("_", ".")).write_text(content)
    return plan(tmp_path, "job.sh", Path("/out"), launch=launch)


def changed(tmp_path: Path, text: str, *, launch: int | None = None) -> str:
    found = plan_script(tmp_path, text, launch=launch)
    assert [copy.path for copy in found.copies] == ["job.sh"]
    return found.copies[0].text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchrun --nproc_per_node=8 train.py --lr 1e-4", f"torchrun --nproc_per_node=8 {TRAINER}"),
        ("srun torchrun --nnodes 2 train.py > log 2>&1", f"srun torchrun --nnodes 2 {TRAINER} > log 2>&1"),
        ("torchrun -m pkg.train --lr 1 | tee log", f"torchrun {TRAINER} | tee log"),
        ("torchrun --nproc_per_node 2 -m pkg.train", f"torchrun --nproc_per_node 2 {TRAINER}"),
        (
            "python -u -m torch.distributed.run --nproc_per_node 2 train.py --a 'b c' &",
            f"python -u -m torch.distributed.run --nproc_per_node 2 {TRAINER} &",
        ),
        (
            "python -m torch.distributed.launch --use_env --nproc_per_node 2 -m a.b --x",
            f"python -m torch.distributed.launch --use_env --nproc_per_node 2 {TRAINER}",
        ),
        (
            "torchrun --no-python --nproc_per_node 2 python -u train.py --x",
            f"torchrun --no-python --nproc_per_node 2 python -u {TRAINER}",
        ),
        (
            "deepspeed --hostfile hosts --master_port 2950 train.py --deepspeed_config ds.json",
            f"deepspeed --hostfile hosts --master_port 2950 {TRAINER}",
        ),
        ("deepspeed --num_gpus 2 --module pkg.train --x", f"deepspeed --num_gpus 2 {TRAINER}"),
        (
            "accelerate launch --config_file acc.yaml --num_processes 4 train.py --model_name m",
            f"accelerate launch --config_file acc.yaml --num_processes 4 {TRAINER}",
        ),
        ("accelerate launch -m pkg.train --x", f"accelerate launch {TRAINER}"),
        (
            "python -m paddle.distributed.launch --gpus 0,1 train.py --epochs 3",
            f"python -m paddle.distributed.launch --gpus 0,1 {TRAINER}",
        ),
        ("fleetrun --ips=10.0.0.1,10.0.0.2 train.py -c x.yaml", f"fleetrun --ips=10.0.0.1,10.0.0.2 {TRAINER}"),
        (
            "mpirun -np 4 -x NCCL_DEBUG=INFO -H a:2,b:2 python3 -u train.py --lr 1",
            f"mpirun -np 4 -x NCCL_DEBUG=INFO -H a:2,b:2 python3 -u {TRAINER}",
        ),
        ("horovodrun -np 4 -H a:4 python train.py", f"horovodrun -np 4 -H a:4 python {TRAINER}"),
        ("srun -N2 --ntasks-per-node=4 python train.py", f"srun -N2 --ntasks-per-node=4 python {TRAINER}"),
        (
            "srun singularity exec --nv -B /data img.sif python -u train.py --lr 1",
            f"srun singularity exec --nv -B /data img.sif python -u {TRAINER}",
        ),
        (
            "docker run --rm --gpus all --shm-size 8g -v /d:/d repo/img:1 torchrun --nproc_per_node 8 train.py --x",
            f"docker run --rm --gpus all --shm-size 8g -v /d:/d repo/img:1 torchrun --nproc_per_node 8 {TRAINER}",
        ),
        (
            "srun --container-image=i --container-mounts=/a:/a bash -c 'cd /a && torchrun train.py --p \"$X\"'",
            f"srun --container-image=i --container-mounts=/a:/a bash -c 'cd /a && torchrun {TRAINER}'",
        ),
        (
            'ssh node1 "cd /w && torchrun --node_rank 1 --nnodes 2 train.py --lr 1"',
            f'ssh node1 "cd /w && torchrun --node_rank 1 --nnodes 2 {TRAINER}"',
        ),
        ("composer -n 2 train.py config.yaml", f"composer -n 2 {TRAINER}"),
        (
            "NCCL_DEBUG=INFO OMP_NUM_THREADS=4 torchrun train.py",
            f"NCCL_DEBUG=INFO OMP_NUM_THREADS=4 torchrun {TRAINER}",
        ),
    ],
)
def test_the_program_and_its_arguments_become_the_trainer(tmp_path: Path, line: str, expected: str) -> None:
    assert changed(tmp_path, f"#!/bin/bash\n{line}\n") == f"#!/bin/bash\n{expected}\n"


def test_lines_continued_arrays_and_variables(tmp_path: Path) -> None:
    before = (
        "#!/bin/bash\n#SBATCH --nodes=2\nmodule load cuda  # keep\nSCRIPT=train.py\nARGS=(--lr 1e-4\n      --bs 4)\n"
        "srun torchrun --nproc_per_node=8 \\\n    --nnodes=2 \\\n"
        '    $SCRIPT \\\n    "${ARGS[@]}" \\\n    --out "$OUT"\n'
        "echo done\n"
    )
    expected = (
        "#!/bin/bash\n#SBATCH --nodes=2\nmodule load cuda  # keep\nSCRIPT=train.py\nARGS=(--lr 1e-4\n      --bs 4)\n"
        f"srun torchrun --nproc_per_node=8 \\\n    --nnodes=2 \\\n    {TRAINER}\n"
        "echo done\n"
    )
    assert changed(tmp_path, before) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (
            'CMD="torchrun --nproc_per_node 2 train.py --lr 1"\nsrun $CMD\n',
            f'CMD="torchrun --nproc_per_node 2 {TRAINER}"\nsrun $CMD\n',
        ),
        (
            'CMD=(torchrun --nproc_per_node 2 train.py --lr 1)\nCMD+=(--x 2)\nsrun "${CMD[@]}" --y\n',
            f'CMD=(torchrun --nproc_per_node 2 {TRAINER})\nCMD+=()\nsrun "${{CMD[@]}}" \n',
        ),
        (
            'LAUNCH="torchrun --nproc_per_node 2"\nCMD=" \\\n  pretrain.py \\\n  --lr 1 \\\n"\n'
            'echo $CMD\nsrun bash -c "$LAUNCH --node_rank \\$SLURM_PROCID $CMD"\n',
            f'LAUNCH="torchrun --nproc_per_node 2"\nCMD=" \\\n  {TRAINER} \\\n"\n'
            'echo $CMD\nsrun bash -c "$LAUNCH --node_rank \\$SLURM_PROCID $CMD"\n',
        ),
        (
            'run() {\n  torchrun --nproc_per_node 2 "$@"\n}\nrun train.py --lr 1\n',
            f"run() {{\n  torchrun --nproc_per_node 2 {TRAINER}\n}}\nrun train.py --lr 1\n",
        ),
        (
            "srun bash <<'EOF'\ntorchrun --nproc_per_node 2 train.py --lr 1\nEOF\n",
            f"srun bash <<'EOF'\ntorchrun --nproc_per_node 2 {TRAINER}\nEOF\n",
        ),
        (
            "cat > inner.sh <<'EOF'\ntorchrun --nproc_per_node 2 train.py\nEOF\nsrun bash inner.sh\n",
            f"cat > inner.sh <<'EOF'\ntorchrun --nproc_per_node 2 {TRAINER}\nEOF\nsrun bash inner.sh\n",
        ),
        (
            'if [ "$1" = fast ]; then\n  torchrun --nproc_per_node 8 train.py --fast\nfi\n',
            f'if [ "$1" = fast ]; then\n  torchrun --nproc_per_node 8 {TRAINER}\nfi\n',
        ),
        (
            "for lr in 1 2 3; do\n  torchrun --nproc_per_node 2 train.py --lr $lr\ndone\n",
            f"for lr in 1 2 3; do\n  torchrun --nproc_per_node 2 {TRAINER}\ndone\n",
        ),
    ],
)
def test_the_program_is_replaced_where_it_is_written(tmp_path: Path, before: str, expected: str) -> None:
    assert changed(tmp_path, before) == expected


def test_each_launch_gets_its_own_trainer_and_one_can_be_chosen(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node 2 a.py --x\npython prepare.py\ndeepspeed b.py --y\n"
    first, second = "/out/preflight_trainer_1.py", "/out/preflight_trainer_2.py"
    both = plan_script(tmp_path, text)
    assert both.copies[0].text == f"torchrun --nproc_per_node 2 {first}\npython prepare.py\ndeepspeed {second}\n"
    assert [(each.number, each.trainer, each.place, each.removed) for each in both.replaced] == [
        (1, first, "job.sh:1", ("a.py", "--x")),
        (2, second, "job.sh:3", ("b.py", "--y")),
    ]
    one = plan_script(tmp_path, text, launch=2)
    assert one.copies[0].text == f"torchrun --nproc_per_node 2 a.py --x\npython prepare.py\ndeepspeed {TRAINER}\n"
    assert one.not_replaced == ("job.sh:1: launch 1 (torchrun)",)
    with pytest.raises(
        Refusal, match=r"job.sh has no launch 3; its launches are 1 \(torchrun, line 1\), 2 \(deepspeed"
    ):
        plan_script(tmp_path, text, launch=3)


def test_called_files_are_copied_and_the_calls_use_the_copies(tmp_path: Path) -> None:
    found = plan_script(
        tmp_path,
        '#!/bin/bash\nexport A=1\nsrun bash "./inner.sh" --x 1 > log\n',
        inner_sh='#!/bin/bash\nHERE=$(dirname "${BASH_SOURCE[0]}")\nsource $HERE/env.sh\n'
        'torchrun --nproc_per_node 2 train.py "$@"\n',
        env_sh="export B=2\n",
    )
    assert {copy.path: copy.text for copy in found.copies} == {
        "job.sh": "#!/bin/bash\nexport A=1\nsrun bash /out/inner.sh --x 1 > log\n",
        "inner.sh": f'#!/bin/bash\nHERE=$(dirname "{tmp_path}/inner.sh")\nsource $HERE/env.sh\n'
        f"torchrun --nproc_per_node 2 {TRAINER}\n",
    }


def test_a_sourced_file_with_the_launch_is_copied(tmp_path: Path) -> None:
    found = plan_script(
        tmp_path, "source ./lib.sh\ngo\n", lib_sh="go() { torchrun --nproc_per_node 2 train.py --lr 1; }\n"
    )
    assert [copy.text for copy in found.copies] == [
        "source /out/lib.sh\ngo\n",
        f"go() {{ torchrun --nproc_per_node 2 {TRAINER}; }}\n",
    ]


def test_arguments_stay_if_removing_them_would_change_other_text(tmp_path: Path) -> None:
    text = 'REST="--lr 1"\nCMD="torchrun train.py $REST"\n$CMD\npython report.py $REST\n'
    found = plan_script(tmp_path, text)
    assert found.copies[0].text == f'REST="--lr 1"\nCMD="torchrun {TRAINER} $REST"\n$CMD\npython report.py $REST\n'
    assert found.replaced[0].kept == ("--lr", "1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello\n", "job.sh has no line that starts the ranks of a Python program"),
        ("bash submit_all.sh\nsbatch train.sbatch\n", "name that file if it contains the launch"),
        (
            "FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train a.yaml\n",
            "job.sh:1: launch 1 cannot be replaced: llamafactory-cli",
        ),
        (
            'NAME=train.py\nCMD="torchrun --log-dir $NAME $NAME"\nsrun $CMD --lr 1\npython count.py $CMD\n',
            "job.sh:2: launch 1 cannot be replaced alone: job.sh:4: the words of this command",
        ),
        ('srun bash "$DIR/go.sh" --x\n', r"\$DIR/go.sh is an unknown file; name that file instead"),
        ("mpirun -np 4 ./all_reduce_perf -b 8\n", r"its launches are 1 \(mpirun, line 1\); --launch N"),
        ("cd ${0#x}\ntorchrun train.py\n", r"job.sh:1: \$\{0#x\} depends on the script's location"),
    ],
)
def test_an_irreplaceable_program_is_reported_with_its_location(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        plan_script(tmp_path, text)


def test_a_file_that_is_not_a_script_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("a: 1\n")
    with pytest.raises(Refusal, match=r"job\.yaml is not a shell script"):
        plan(tmp_path, "job.yaml", Path("/out"))
    with pytest.raises(Refusal, match="does not exist"):
        plan(tmp_path, "nothing.sh", Path("/out"))


def test_a_folder_with_shell_characters_in_its_name_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("torchrun train.py\n")
    with pytest.raises(Refusal, match="choose another --to folder"):
        plan(tmp_path, "job.sh", Path("/my folder"))


def test_a_batch_script_keeps_dollar_zero(tmp_path: Path) -> None:
    text = '#!/bin/bash\n#SBATCH -N2\necho "$0"\nsrun torchrun --nnodes 2 train.py\n'
    assert changed(tmp_path, text).splitlines()[2] == 'echo "$0"'


SPAWN = "import torch.multiprocessing as mp\n\nif __name__ == '__main__':\n    mp.spawn(print, nprocs={})\n"


def planned(tmp_path: Path, text: str, program: str) -> tuple[Relaunch, tuple[Job, ...]]:
    made = plan_script(tmp_path, text, train_py=program)
    return made, jobs_in((tmp_path / "job.sh",), root=tmp_path)


@pytest.mark.parametrize(("count", "expected"), [("4", 4), ("torch.cuda.device_count()", "gpus")])
def test_a_program_that_spawns_its_ranks_is_replaced(tmp_path: Path, count: str, expected: object) -> None:
    made, jobs = planned(
        tmp_path, "python prepare.py\npython -u train.py --lr 1\n", "import torch\n" + SPAWN.format(count)
    )
    assert made.copies[0].text == f"python prepare.py\npython -u {TRAINER}\n"
    assert [launch.spawns for launch in made.replaced] == [True]
    assert spawned_by(jobs, made.replaced[0]) == expected


def test_an_unknown_number_of_spawned_ranks_is_refused(tmp_path: Path) -> None:
    made, jobs = planned(tmp_path, "python train.py\n", SPAWN.format("read_count()"))
    with pytest.raises(Refusal, match="their number is unknown"):
        spawned_by(jobs, made.replaced[0])


def test_launches_of_servers_are_refused(tmp_path: Path) -> None:
    made, jobs = planned(tmp_path, "fleetrun --server_num 1 --worker_num 2 train.py\n", "import paddle\n")
    with pytest.raises(Refusal, match="starts parameter servers"):
        refuse_servers(jobs, made.replaced)
    made, jobs = planned(tmp_path, "torchrun train.py\n", "import torch\n")
    refuse_servers(jobs, made.replaced)


def test_each_launch_has_the_backend_that_its_program_asks_for(tmp_path: Path) -> None:
    program = "import torch.distributed as dist\n\ndist.init_process_group({})\n"
    for said, expected in (('"nccl"', ["nccl"]), ('"gloo"', ["gloo"]), ("", [])):
        _, jobs = planned(tmp_path, "torchrun --nproc_per_node 2 train.py\n", program.format(said))
        assert list(backends_of(jobs).values()) == expected


def test_branches_that_exclude_each_other_are_known(tmp_path: Path) -> None:
    text = (
        "if [ $A ]; then\n torchrun train.py\nelif [ $B ]; then\n torchrun train.py\nelse\n torchrun train.py\nfi\n"
        'case "$C" in\n x) torchrun train.py ;;\n *) torchrun train.py ;;\nesac\n'
        "[ -n $D ] && torchrun train.py || torchrun train.py\ntorchrun train.py\n"
    )
    conditions = [launch.condition for launch in plan_script(tmp_path, text).replaced]
    pairs = {
        (one, other)
        for one, first in enumerate(conditions, start=1)
        for other, second in enumerate(conditions, start=1)
        if one < other and exclude_each_other(first, second)
    }
    assert pairs == {(1, 2), (1, 3), (2, 3), (4, 5), (6, 7)}


# Changed scripts run by bash, with stubs instead of launchers that record their arguments.


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

SCRIPTS: dict[str, str] = toml.beside(__file__, "scripts.toml")


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
