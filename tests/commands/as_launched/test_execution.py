"""`preflight smoke --as-launched --run` as people use it: bash, torchrun, mpirun and real ranks over Gloo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import is_gone

ROOT = Path(__file__).parents[3]
#: Much longer than anything here takes, even on a busy machine.
DEADLINE_S = 150

pytestmark = pytest.mark.thorough


def _require_no_gpu() -> None:
    if pytest.importorskip("torch").cuda.device_count():
        pytest.skip("torch finds a GPU here")


@pytest.fixture
def port() -> int:
    return free_port()


def smoke(folder: Path, script: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command over job.sh in the folder; `python` and `torchrun` are those of the tests."""
    pytest.importorskip("torch")
    (folder / "job.sh").write_text(script)
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name, words in (("python", ""), ("python3", ""), ("torchrun", "-m torch.distributed.run ")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (tools / name).chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_"))},
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("", "rules", "checks")),
        "VIRTUAL_ENV": sys.prefix,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **variables,
    }
    command = [sys.executable, "-m", "preflight", "smoke", "job.sh", "--as-launched", *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def run(folder: Path, script: str, *options: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script as well, which must end with this exit code."""
    done = smoke(folder, script, "--run", "--trust-job", *options, **variables)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def reports(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("preflight-smoke/reports/*/*/rank-*.json"))]


TORCHRUN = """\
#!/bin/bash
set -e
SCRIPT=train.py
ARGS=(--lr 1e-4
      --bs 4)
torchrun --standalone --nproc_per_node=2 \\
    $SCRIPT "${ARGS[@]}"
echo behind the launch
"""


def test_torchrun_with_arrays_and_variables(tmp_path: Path) -> None:
    done = run(tmp_path, TORCHRUN)
    assert "preflight smoke: GO: 2 ranks on 1 host connected through torch" in done.stdout
    assert "behind the launch" in done.stdout
    assert "GO: 2 ranks in 1 of 1 launches reported without an error" in done.stderr
    assert [(each["rank"], each["go"], each["launch"]) for each in reports(tmp_path)] == [(0, True, 1), (1, True, 1)]
    assert not (tmp_path / "train.py").exists()


def test_the_static_rendezvous_of_torchrun_and_its_older_spelling(tmp_path: Path, port: int) -> None:
    options = f"--nproc_per_node 2 --nnodes 1 --master_addr 127.0.0.1 --master_port {port}"
    script = f"python -m torch.distributed.launch {options} -m pkg.train --x 1\n"
    done = run(tmp_path, script)
    assert "preflight smoke: GO: 2 ranks" in done.stdout


def test_ranks_numbered_by_the_script_are_one_run_of_two_launches(tmp_path: Path, port: int) -> None:
    script = (
        f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=2\n"
        "RANK=0 python train.py --node 0 &\nRANK=1 python -u train.py --node 1 &\nwait\n"
    )
    done = run(tmp_path, script)
    assert "2 ranks in 2 of 2 launches reported" in done.stderr


NCCL = "import torch.distributed as dist\n\ndist.init_process_group('nccl')\n"


def test_nccl_without_a_gpu_is_named_by_all_ranks(tmp_path: Path) -> None:
    _require_no_gpu()
    (tmp_path / "train.py").write_text(NCCL)
    done = run(tmp_path, TORCHRUN, code=1)
    assert "NO-GO: rank" in done.stderr and "backend nccl is requested, but torch" in done.stderr
    assert "finds no GPU" in done.stderr


def test_the_user_may_replace_nccl_by_gloo(tmp_path: Path) -> None:
    _require_no_gpu()
    (tmp_path / "train.py").write_text(NCCL)
    done = run(tmp_path, TORCHRUN, "--smoke-backend", "gloo")
    assert "launch 1 asks for nccl, which is not tested: --smoke-backend gloo" in done.stderr


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_mpirun(tmp_path: Path, port: int) -> None:
    script = f"export MASTER_PORT={port}\nmpirun --allow-run-as-root --oversubscribe -np 2 python -u train.py --lr 1\n"
    done = run(tmp_path, script)
    assert "GO: 2 ranks on 1 host connected through mpirun (Open MPI)" in done.stdout


def test_a_missing_rank_is_named_by_all_others(tmp_path: Path, port: int) -> None:
    script = (
        f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=3\n"
        "RANK=0 python train.py &\nRANK=2 python train.py &\nwait\n"
    )
    done = run(tmp_path, script, "--wait-deadline", "8", code=1)
    assert "ranks [1] did not reach the store within 8 s" in done.stdout
    assert "preflight: NO-GO: rank" in done.stderr
    assert [each["rank"] for each in reports(tmp_path)] == [0, 2]


def test_a_different_world_size_is_named_and_ends_the_other_ranks(tmp_path: Path, port: int) -> None:
    script = (
        f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port}\n"
        "RANK=0 WORLD_SIZE=2 python train.py &\nRANK=1 WORLD_SIZE=3 python train.py &\nwait\n"
    )
    done = run(tmp_path, script, "--wait-deadline", "60", code=1)
    lines = [line for line in done.stdout.splitlines() if line.startswith("preflight smoke:")]
    assert any("this rank has world_size" in line for line in lines)
    assert sum("because of" in line for line in lines) == 1


def test_fewer_ranks_than_the_files_start_are_a_no_go(tmp_path: Path) -> None:
    # The rank does not get the script's variables, as in a container that hides them.
    script = "srun -n2 bash -c 'env -u SLURM_PROCID RANK=0 WORLD_SIZE=1 python train.py'\n"
    (tmp_path / "tools").mkdir()
    srun = tmp_path / "tools" / "srun"
    srun.write_text('#!/bin/sh\nshift\n"$@" && exec "$@"\n')
    srun.chmod(0o755)
    done = run(tmp_path, script, code=1)
    assert "the job's files start 2 ranks, but torch reports a world size of 1" in done.stderr


def test_a_stopped_rank_is_named(tmp_path: Path, port: int) -> None:
    script = (
        f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=2\n"
        "RANK=0 python train.py &\nPREFLIGHT_INJECTED_FAULT='{\"stall_before\": 9}' RANK=1 python train.py &\nwait\n"
    )
    done = run(tmp_path, script, "--wait-deadline", "10", code=1)
    said = [line for line in done.stdout.splitlines() if "NO-GO" in line]
    # Either of the two may report it first.
    assert said and all("rank 1 on" in line for line in said)


def test_a_killed_rank_is_named_by_the_other_rank(tmp_path: Path, port: int) -> None:
    (tmp_path / "kill_later.py").write_text(
        "import glob, os, signal, sys, time\n"
        "ends = time.monotonic() + 100\n"
        "while time.monotonic() < ends:\n"
        "    for path in glob.glob('preflight-smoke/reports/*/events-00001-*'):\n"
        "        if 'DDP step' in open(path).read():\n"
        "            os.kill(int(path.rpartition('-')[2].partition('.')[0]), signal.SIGKILL)\n"
        "            sys.exit()\n"
        "    time.sleep(0.05)\n"
    )
    script = (
        f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE=2\n"
        "RANK=0 python train.py &\nRANK=1 python train.py &\nenv -u MASTER_ADDR $HELPER kill_later.py\nwait\n"
    )
    done = run(tmp_path, script, "--steps", "100000", HELPER=sys.executable, code=1)
    assert "preflight smoke: NO-GO: rank 1 on" in done.stdout
    assert "it reported nothing for" in done.stdout


def test_a_launcher_that_starts_nothing_is_ended_at_the_deadline(tmp_path: Path, port: int) -> None:
    script = (
        f"torchrun --nnodes 2 --node_rank 0 --nproc_per_node 1 --master_addr 127.0.0.1 --master_port {port} train.py\n"
    )
    done = run(tmp_path, script, "--deadline", "8", code=1)
    assert "NO-GO: it did not finish within 8 s; 0 ranks in 0 of 1 launches reported" in done.stderr


def test_ending_preflight_ends_the_script(tmp_path: Path) -> None:
    script = (
        "echo $$ > pid\n[ -e /nowhere ] && torchrun --standalone train.py\nkill -TERM $PPID\n"
        f"exec {sys.executable} -c 'import time; time.sleep(100)'\n"
    )
    run(tmp_path, script, code=143)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_launch_that_is_never_reached_makes_the_run_incomplete(tmp_path: Path) -> None:
    done = run(tmp_path, "[ -e /nowhere ] && torchrun --standalone train.py\ntrue\n", code=3)
    assert "incomplete: the script ended (exit code 0)" in done.stderr


def test_without_run_the_script_is_printed_and_nothing_is_written(tmp_path: Path) -> None:
    done = smoke(tmp_path, TORCHRUN)
    assert done.returncode == 0
    old, new = TORCHRUN.splitlines(), done.stdout.splitlines()
    assert new == [*old[:6], f"    {tmp_path}/preflight-smoke/preflight_trainer.py", *old[7:]]
    assert "launch 1 at job.sh:7 (torchrun): `$SCRIPT --lr 1e-4 --bs 4` becomes" in done.stderr
    assert not (tmp_path / "preflight-smoke").exists()


def test_to_writes_script_and_trainer_that_work_by_themselves(tmp_path: Path) -> None:
    done = smoke(tmp_path, TORCHRUN.replace("--nproc_per_node=2", "--nproc_per_node=1"), "--to", "out")
    assert (done.returncode, done.stdout) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["job.sh", "preflight_trainer.py"]
    environment = {"PATH": "/usr/bin:/bin", "RANK": "0", "WORLD_SIZE": "1", "PREFLIGHT_REPORT_DIR": str(tmp_path / "r")}
    alone = subprocess.run(
        [sys.executable, str(tmp_path / "out" / "preflight_trainer.py"), "--local_rank=0", "ignored"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert "preflight smoke: GO: 1 rank on 1 host" in alone.stdout
    (verdict,) = (tmp_path / "r").glob("*/rank-00000.json")
    assert json.loads(verdict.read_text())["report"]["mismatches"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--run",), "--run also runs everything else in the job's script; add --trust-job"),
        (("--submit",), "--submit also runs everything else"),
        (("--run", "--submit", "--trust-job"), "--run and --submit are mutually exclusive"),
        (("--submit", "--trust-job"), "needs a script with #SBATCH lines"),
        (("--launch", "4"), "job.sh has no launch 4"),
        (("--to", "."), "is the job's own file; choose another --to folder"),
        (("other.sh",), "--as-launched takes exactly one script"),
    ],
)
def test_impossible_requests_are_rejected_before_anything_is_written(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = smoke(tmp_path, TORCHRUN, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.sh", "tools"]
