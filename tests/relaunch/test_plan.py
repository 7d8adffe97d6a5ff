"""Launch lines as people write them: what of them becomes the trainer, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.relaunch.edits import Refusal
from preflight.relaunch.plan import Relaunch, plan

TRAINER = "/out/preflight_trainer.py"


def made(tmp_path: Path, text: str, *, launch: int | None = None, **others: str) -> Relaunch:
    """What becomes of the script job.sh with other files beside it (`inner_sh` is inner.sh)."""
    (tmp_path / "job.sh").write_text(text)
    for name, content in others.items():
        (tmp_path / name.replace("_", ".")).write_text(content)
    return plan(tmp_path, "job.sh", Path("/out"), launch=launch)


def changed(tmp_path: Path, text: str, *, launch: int | None = None) -> str:
    found = made(tmp_path, text, launch=launch)
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


def test_each_launch_gets_a_trainer_of_its_own_and_one_can_be_chosen(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node 2 a.py --x\npython prepare.py\ndeepspeed b.py --y\n"
    first, second = "/out/preflight_trainer_1.py", "/out/preflight_trainer_2.py"
    both = made(tmp_path, text)
    assert both.copies[0].text == f"torchrun --nproc_per_node 2 {first}\npython prepare.py\ndeepspeed {second}\n"
    assert [(each.number, each.trainer, each.place, each.removed) for each in both.replaced] == [
        (1, first, "job.sh:1", ("a.py", "--x")),
        (2, second, "job.sh:3", ("b.py", "--y")),
    ]
    one = made(tmp_path, text, launch=2)
    assert one.copies[0].text == f"torchrun --nproc_per_node 2 a.py --x\npython prepare.py\ndeepspeed {TRAINER}\n"
    assert one.left == ("job.sh:1: launch 1 (torchrun)",)
    with pytest.raises(Refusal, match=r"no launch 3 in job.sh; its launches are 1 \(torchrun, line 1\), 2 \(deepspeed"):
        made(tmp_path, text, launch=3)


def test_files_that_are_called_are_copied_and_the_call_leads_to_the_copy(tmp_path: Path) -> None:
    found = made(
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


def test_a_sourced_file_that_holds_the_launch_is_copied(tmp_path: Path) -> None:
    found = made(tmp_path, "source ./lib.sh\ngo\n", lib_sh="go() { torchrun --nproc_per_node 2 train.py --lr 1; }\n")
    assert [copy.text for copy in found.copies] == [
        "source /out/lib.sh\ngo\n",
        f"go() {{ torchrun --nproc_per_node 2 {TRAINER}; }}\n",
    ]


def test_arguments_stay_where_taking_them_away_would_change_something_else(tmp_path: Path) -> None:
    text = 'REST="--lr 1"\nCMD="torchrun train.py $REST"\n$CMD\npython report.py $REST\n'
    found = made(tmp_path, text)
    assert found.copies[0].text == f'REST="--lr 1"\nCMD="torchrun {TRAINER} $REST"\n$CMD\npython report.py $REST\n'
    assert found.replaced[0].kept == ("--lr", "1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello\n", "job.sh holds no line that starts the ranks of a Python program"),
        ("bash submit_all.sh\nsbatch train.sbatch\n", "name that file, if the launch stands there"),
        (
            "FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train a.yaml\n",
            "job.sh:1: launch 1 cannot be replaced: llamafactory-cli",
        ),
        (
            'NAME=train.py\nCMD="torchrun --log-dir $NAME $NAME"\nsrun $CMD --lr 1\npython count.py $CMD\n',
            "job.sh:2: launch 1 cannot be replaced by itself: job.sh:4: the words of this command",
        ),
        ('srun bash "$DIR/go.sh" --x\n', r"which file \$DIR/go.sh is cannot be told: name that file"),
        ("mpirun -np 4 ./all_reduce_perf -b 8\n", r"its launches are 1 \(mpirun, line 1\); --launch N"),
        ("cd ${0#x}\ntorchrun train.py\n", r"job.sh:1: \$\{0#x\} depends on where the script lies"),
    ],
)
def test_what_cannot_be_replaced_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Refusal, match=said):
        made(tmp_path, text)


def test_no_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("a: 1\n")
    with pytest.raises(Refusal, match=r"job\.yaml is no shell script"):
        plan(tmp_path, "job.yaml", Path("/out"))
    with pytest.raises(Refusal, match="does not exist"):
        plan(tmp_path, "nothing.sh", Path("/out"))


def test_a_folder_whose_name_means_something_to_a_shell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("torchrun train.py\n")
    with pytest.raises(Refusal, match="choose another --to folder"):
        plan(tmp_path, "job.sh", Path("/my folder"))


def test_a_batch_script_keeps_its_own_zero_which_is_a_copy_of_the_scheduler_s(tmp_path: Path) -> None:
    text = '#!/bin/bash\n#SBATCH -N2\necho "$0"\nsrun torchrun --nnodes 2 train.py\n'
    assert changed(tmp_path, text).splitlines()[2] == 'echo "$0"'
