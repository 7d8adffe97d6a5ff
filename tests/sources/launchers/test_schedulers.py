"""None"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from preflight.model.job import Claim, Known, OneOf, Strength, Unresolved
from preflight.model.job.value import FIRST_ALLOCATED_HOST
from preflight.sources.launchers.slurm import hosts_of, mebibytes_of, nodes_of, seconds_of
from tests.sources.launchers.reading_lines import only, read, values, why

HEADER = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n#SBATCH --gres=gpu:a100:8\n"


def test_directives_have_the_scope_of_the_job() -> None:
    reading = read(HEADER + "#SBATCH -t 1-12 --mem=64G -p gpu -c 6 -w n[01-02,07]\necho hello")
    found = {c.quantity: c for c in reading.claims if c.quantity not in ("batch_option", "batch_directive")}
    asked = ("--nodes=4", "--ntasks-per-node=8", "--gres=gpu:a100:8", "--time=1-12", "--mem=64G", "--partition=gpu")
    asked += ("--cpus-per-task=6", "--nodelist=n[01-02,07]")
    stated = {c.value for c in reading.claims if c.quantity == "batch_option"}
    assert stated <= {Known(option) for option in asked} and Known("--nodelist=n[01-02,07]") in stated
    assert {name: c.value for name, c in found.items()} == {
        "nodes": Known(4),
        "tasks_per_node": Known(8),
        "tasks": Known(32),
        "gpus_per_node": Known(8),
        "gpu_type": Known("a100"),
        "time_limit_s": Known(36 * 3600),
        "time_limit": Known("1-12"),
        "memory_per_node_mib": Known(64 * 1024),
        "partition": Known("gpu"),
        "cpus_per_task": Known(6),
        "hosts": Known(("n01", "n02", "n07")),
    }
    assert all(c.scope.launch == "" and c.strength is Strength.SCHEDULER for c in found.values())
    assert (found["nodes"].span.line, found["nodes"].spelling) == (2, "--nodes=4")


def test_srun_options_have_the_scope_of_their_launch() -> None:
    reading = read(HEADER + "srun -N2 --ntasks-per-node=1 torchrun --nproc_per_node=8 t.py")
    assert only(reading, "nodes", launch="").value == Known(4)
    step = [c for c in reading.claims if c.source == "slurm" and c.scope.launch]
    assert {(c.quantity, c.value) for c in step} >= {
        ("nodes", Known(2)),
        ("tasks_per_node", Known(1)),
        ("tasks", Known(2)),
    }
    assert all(c.strength is Strength.SCHEDULER for c in step)


def test_a_bare_launcher_in_a_batch_script_runs_on_the_first_node_only() -> None:
    reading = read(HEADER + "torchrun --nnodes=4 --nproc_per_node=8 t.py")
    bare = [c for c in reading.claims if c.source == "slurm" and c.quantity == "nodes" and c.scope.launch]
    assert [(c.value, c.strength) for c in bare] == [(Known(1), Strength.SCHEDULER)]
    assert "(without srun: runs on the first node only)" in bare[0].spelling
    assert bare[0].span.line == 5
    assert [because.span.line for because in bare[0].because] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "srun torchrun --nnodes=4 t.py",
        "$LAUNCHER torchrun --nnodes=4 t.py",
        "mpirun -np 4 torchrun --nnodes=4 t.py",
        "deepspeed --hostfile hf t.py",
        'torchrun --nnodes=4 t.py &\nssh n2 "torchrun --nnodes=4 t.py"',
        "torchrun --nnodes=4 t.py &\nsrun -N3 bash worker.sh",
        "torchrun --nnodes=4 t.py &\npdsh -w n[2-4] bash worker.sh",
    ],
)
def test_no_claim_when_other_nodes_may_be_reached(line: str) -> None:
    reading = read(HEADER + line)
    assert not [c for c in reading.claims if "(without srun: runs on the first node only)" in c.spelling]


def test_harmless_commands_on_other_nodes_start_no_ranks() -> None:
    reading = read(HEADER + "srun hostname\nsrun nvidia-smi -L\ntorchrun --nnodes=4 t.py")
    assert [c for c in reading.claims if "(without srun: runs on the first node only)" in c.spelling]


def test_without_a_header_there_are_no_scheduler_claims() -> None:
    assert not [c for c in read("torchrun --nnodes=4 t.py").claims if c.source == "slurm"]


def test_one_step_per_node_is_part_of_the_job() -> None:
    reading = read(HEADER + 'for i in 0 1; do srun -N1 -n1 -w "$n" torchrun --nnodes=4 --node_rank=$i t.py & done')
    assert not [c for c in reading.claims if c.source == "slurm" and c.scope.launch and c.quantity == "nodes"]
    assert {c.value for c in reading.claims if c.quantity == "node_rank"} == {Known(0), Known(1)}


def test_fewer_tasks_than_nodes_use_fewer_nodes() -> None:
    reading = read("#SBATCH -N 4\nsrun -n 1 torchrun --nnodes=4 t.py", path="job.sbatch")
    step = [c for c in reading.claims if c.source == "slurm" and c.scope.launch and c.quantity == "nodes"]
    assert [c.value for c in step] == [Known(1)]


def test_srun_without_any_count_starts_one_task_on_each_node() -> None:
    reading = read("#!/bin/bash\n#SBATCH -N 4\nsrun torchrun --nnodes=4 t.py")
    found = [c for c in reading.claims if c.quantity == "tasks_per_node" and c.source == "slurm"]
    assert [(c.value, c.strength) for c in found] == [(Known(1), Strength.DEFAULT)]


def test_an_unresolved_srun_option_overrides_the_header() -> None:
    reading = read(HEADER + "srun -N $N torchrun --nnodes=$N t.py")
    step = [c for c in reading.claims if c.source == "slurm" and c.scope.launch and c.quantity == "nodes"]
    assert len(step) == 1 and isinstance(step[0].value, Unresolved)


def test_total_gpus_are_spread_over_the_nodes() -> None:
    assert values(read("#SBATCH -N 2 -G 16\ntrue", path="j.sbatch"))["gpus_per_node"] == 8
    assert "gpus_per_node" not in values(read("#SBATCH -N 2 --gres=nvme:1\ntrue", path="j.sbatch"))


def test_a_heterogeneous_job_claims_no_counts() -> None:
    assert not values(read("#!/bin/bash\n#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 4\ntrue")).get("nodes")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("10:30", 630), ("2:00:00", 7200), ("1-0", 86400), ("1-2:30", 95400), ("1-0:0:5", 86405)],
)
def test_time_limits(text: str, seconds: int) -> None:
    assert seconds_of(Known(text)) == Known(seconds)


def test_values_that_mean_something_else_stay_unresolved() -> None:
    for value in (
        seconds_of(Known("UNLIMITED")),
        mebibytes_of(Known("0")),
        hosts_of(Known("-x;rm")),
        nodes_of(Known("a")),
    ):
        assert isinstance(value, Unresolved)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["n" + "[1-9]" * 60, "," * 100_000, "n[1-9][" * 5000, "a[" + "1," * 50_000])
def test_hostile_lists_are_parsed_quickly(text: str) -> None:
    hosts_of(Known(text))
    values(read(f"#SBATCH --gres={text}\n#SBATCH -w {text}\ntrue", path="j.sbatch"))


def test_ranges() -> None:
    assert nodes_of(Known("2-4")) == OneOf((2, 3, 4))
    assert hosts_of(Known("a[1-2]b[08-09],c")) == Known(("a1b08", "a1b09", "a2b08", "a2b09", "c"))
    assert isinstance(hosts_of(Known("n[1-9999999]")), Unresolved)
    assert mebibytes_of(Known("2G")) == Known(2048)


# Batch headers of other schedulers than Slurm, and their effect on launches.


def header(text: str, source: str) -> dict[str, object]:
    """The claims of a header about the whole job."""
    reading = read(f"#!/bin/bash\n{text}\n")
    found = {c.quantity: c for c in reading.claims if c.source == source and not c.scope.launch}
    assert all(claim.strength is Strength.SCHEDULER for claim in found.values())
    return {name: c.value.value if isinstance(c.value, Known) else None for name, c in found.items()}


def test_pbs_chunks() -> None:
    assert header("#PBS -l select=4:ncpus=64:ngpus=8:mem=500gb,walltime=02:30:00\n#PBS -q gpu", "pbs") == {
        "nodes": 4,
        "gpus_per_node": 8,
        "memory_per_node_mib": 512000,
        "time_limit_s": 9000,
        "partition": "gpu",
    }


def test_small_chunks_may_share_a_host_unless_scattered() -> None:
    assert header("#PBS -l select=8:ngpus=1", "pbs") == {"nodes": None}
    assert header("#PBS -l select=8:ngpus=1\n#PBS -l place=scatter", "pbs") == {"nodes": 8, "gpus_per_node": 1}
    assert header("#PBS -l select=2:ngpus=8+1:ngpus=4 -l place=scatter", "pbs") == {"nodes": 3}


def test_torque() -> None:
    assert header("#PBS -l nodes=2:ppn=8:gpus=4,walltime=1:00:00", "pbs") == {
        "nodes": 2,
        "gpus_per_node": 4,
        "batch_slots": 16,
        "time_limit_s": 3600,
    }
    assert header("#PBS -l nodes=n1+n2", "pbs") == {}


def test_lsf() -> None:
    text = '#BSUB -n 32\n#BSUB -R "rusage[mem=4000] span[ptile=8]"\n#BSUB -gpu "num=8:mode=shared"\n#BSUB -W 12:00'
    assert header(text, "lsf") == {
        "nodes": 4,
        "gpus_per_node": 8,
        "batch_slots": 32,
        "time_limit_s": 43200,
    }
    assert header("#BSUB -n 32", "lsf") == {}
    assert header('#BSUB -n 8 -R "span[hosts=1]"', "lsf") == {"nodes": 1}
    assert header("#BSUB -nnodes 4\n#BSUB -W 90", "lsf") == {"nodes": 4, "time_limit_s": 5400}


def test_other_schedulers() -> None:
    assert header("#COBALT -n 4 -t 60 -q debug", "cobalt") == {"nodes": 4, "time_limit_s": 3600, "partition": "debug"}
    assert header("# flux: --nodes=4\n# flux: -t 30m", "flux") == {"nodes": 4, "time_limit_s": 1800}
    assert header("#$ -l h_rt=3600,gpu=2\n#$ -q all.q", "sge") == {"time_limit_s": 3600, "partition": "all.q"}


@pytest.mark.parametrize(
    "text",
    ["#PBS", "#PBS -l", "#PBS -l select=", "#PBS -l select=x:ngpus=y", "#BSUB -n\n#BSUB -R [", "#$ -", "#COBALT -n x"],
)
def test_malformed_headers_claim_nothing_known(text: str) -> None:
    assert not any(isinstance(value, int) for value in header(text, text[1:].split()[0].lower()).values())


def test_placeholders_are_unresolved() -> None:
    reading = read("#!/bin/bash\n#PBS -l select={{ nodes }}:ngpus=8\n")
    assert not any(isinstance(c.value, Known) and c.quantity == "nodes" for c in reading.claims)


def test_a_slurm_header_overrides_another_one() -> None:
    reading = read("#!/bin/bash\n#SBATCH --nodes=2\n#PBS -l nodes=4:ppn=8\n")
    assert only(reading, "nodes").source == "slurm"


def test_a_bare_launcher_runs_on_the_first_node_and_mpiexec_does_not() -> None:
    head = "#!/bin/bash\n#PBS -l select=4:ngpus=8\n"
    bare = read(head + "torchrun --nnodes=4 --nproc_per_node=8 t.py\n")
    assert [c.value for c in bare.claims if c.quantity == "nodes" and c.scope.launch and c.source == "pbs"] == [
        Known(1)
    ]
    spread = read(head + "mpiexec -n 4 -ppn 1 torchrun --nnodes=4 --nproc_per_node=8 t.py\n")
    assert not [c for c in spread.claims if c.quantity == "nodes" and c.scope.launch and c.source == "pbs"]
    assert values(spread, source="mpirun")["tasks_per_node"] == 1


@pytest.mark.parametrize(
    "head",
    [
        "$(head -n1 $PBS_NODEFILE)",
        "$(head -n 1 $PBS_NODEFILE | cut -d. -f1)",
        "$(cat $PBS_NODEFILE | sort -u | head -n1)",
        "$(uniq $PBS_NODEFILE | head -1)",
        "$(sed -n 1p $LSB_DJOB_HOSTFILE)",
        "$(hostname)",
    ],
)
def test_the_first_host_of_the_node_file(head: str) -> None:
    reading = read(
        "#!/bin/bash\n#PBS -l select=4:ngpus=8\n"
        f"HEAD={head}\ntorchrun --nnodes=4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:6000 t.py\n"
    )
    assert FIRST_ALLOCATED_HOST in why(only(reading, "master_addr"))


def test_lines_of_the_node_file_are_slots_and_not_hosts() -> None:
    head = "#!/bin/bash\n#PBS -l select=4:ngpus=8\n"
    slots = read(head + "torchrun --nnodes=$(cat $PBS_NODEFILE | wc -l) t.py\n")
    hosts = read(head + "torchrun --nnodes=$(sort -u $PBS_NODEFILE | wc -l) t.py\n")
    found = [c for c in hosts.claims if c.quantity == "nodes" and c.source == "torchrun"]
    assert isinstance(found[0].value, Unresolved) and "the number of hosts" in found[0].value.why
    other = [c for c in slots.claims if c.quantity == "nodes" and c.source == "torchrun"]
    assert isinstance(other[0].value, Unresolved) and "the number of hosts" not in other[0].value.why


STEPS_HEADER = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"


def steps(script: str) -> dict[str, dict[str, Claim]]:
    """The claims about each step, by its line."""
    found: dict[str, dict[str, Claim]] = {}
    for claim in read(script).claims:
        if claim.quantity.startswith("step"):
            found.setdefault(claim.scope.launch.partition(":")[2], {})[claim.quantity] = claim
    return found


def test_a_step_without_python_is_claimed() -> None:
    said = steps(STEPS_HEADER + "srun -N2 ./train\n")["4"]
    assert said["step"].value == Known("train")
    assert (said["step_nodes"].value, said["step_nodes"].spelling) == (Known(2), "-N2")
    assert (said["step_tasks"].value, said["step_tasks_per_node"].value) == (Known(16), Known(8))
    assert said["step_kills_on_failure"].value == Known(False)


def test_background_and_pipe_belong_to_their_statement() -> None:
    found = steps(
        STEPS_HEADER + "srun a &\n{ srun b; } &\nsrun c 2>&1 | tee -a log\nsrun d |& cat\nsrun e > log\n(srun f) &\n"
        "for i in $ALL; do\n  srun g $i &\ndone\n"
    )
    behind = {said["step"].value for said in found.values() if said["step_background"].value == Known(True)}
    assert behind == {Known("a"), Known("b"), Known("f"), Known("g")}
    piped = {said["step"].value: said["step_pipe"].value for said in found.values() if "step_pipe" in said}
    assert piped == {Known("c"): Known("tee"), Known("d"): Known("cat")}
    assert [line for line, said in found.items() if "step_repeated" in said] == ["11"]


def test_a_shell_inside_srun_has_its_own_pipes_and_options() -> None:
    found = steps(STEPS_HEADER + "srun bash -c 'set -o pipefail; python x.py | tee log'\nsrun a | tee log\n")
    assert "step_pipe" not in found["4"]
    assert found["5"]["step_pipe_hides_failure"].value == Known(True)


def test_pipefail_counts_from_where_it_is_set() -> None:
    found = steps(STEPS_HEADER + "srun a | cat\nset -euo pipefail\nsrun b | cat\nset +o pipefail\nsrun c | cat\n")
    assert [found[line]["step_pipe_hides_failure"].value for line in ("4", "6", "8")] == [
        Known(True),
        Known(False),
        Known(True),
    ]


def test_kill_on_bad_exit_in_every_spelling() -> None:
    found = steps(
        STEPS_HEADER
        + "srun -K a\nsrun -K1 b\nsrun --kill-on-bad-exit=1 c\nsrun --kill-on-bad-exit=0 d\nsrun $OPTIONS python e.py\n"
        "SLURM_KILL_BAD_EXIT=1 srun f\n"
    )
    values = [found[str(line)]["step_kills_on_failure"].value for line in range(4, 10)]
    assert values[:4] == [Known(True), Known(True), Known(True), Known(False)]
    assert isinstance(values[4], Unresolved)
    assert values[5] == Known(True)


def test_cores_of_a_step_come_from_srun_or_its_variable_alone() -> None:
    found = steps(STEPS_HEADER + "#SBATCH -c 6\nsrun a\nsrun -c 4 b\nexport SRUN_CPUS_PER_TASK=6\nsrun c\n")
    assert "step_cpus_per_task" not in found["5"]
    assert found["6"]["step_cpus_per_task"].value == Known(4)
    assert found["8"]["step_cpus_per_task"].value == Known(6)


def test_without_a_header_steps_are_not_claimed() -> None:
    assert steps("srun -N2 ./train | tee log\nwait\n") == {}


def test_waits_and_traps_are_claimed() -> None:
    reading = read(STEPS_HEADER + "trap 'exit 1' SIGTERM 10\ntrap cleanup EXIT\nsrun a &\nwait\nwait $!\n")
    said = [(c.quantity, c.value, c.span.line) for c in reading.claims if c.source == "shell"]
    assert said == [
        ("background_awaited", Known(True), 7),
        ("trapped_signal", Known("TERM"), 4),
        ("trapped_signal", Known("USR1"), 4),
        ("failure_watch", Known("trap EXIT"), 5),
        ("trapped_signal", Known("EXIT"), 5),
        ("plain_wait", Known(True), 7),
        ("failure_watch", Known("wait"), 8),
    ]


def test_header_options_other_than_sizes() -> None:
    reading = read(
        "#!/bin/bash\n#SBATCH --gres=gpu:a100:4,nvme:1 --signal=B:USR1@90\n#SBATCH -a 0-7%2 -o log_%j.txt --requeue\n"
        "#SBATCH --mem-per-gpu=60G --exclusive --gpu-bind=single:1\ntrue\n"
    )
    said = {claim.quantity: claim.value for claim in reading.claims}
    assert said["gpu_type"] == Known("a100")
    assert said["hand_off_signal"] == Known("B:USR1@90")
    assert said["job_array"] == Known("0-7%2")
    assert said["output_file"] == Known("log_%j.txt")
    assert said["requeue"] == said["exclusive"] == Known(True)
    assert said["memory_per_gpu_mib"] == Known(60 * 1024)
    assert said["gpu_bind"] == Known("single:1")


def test_a_script_that_launches_nothing_states_what_it_exports_for_communication() -> None:
    reading = read("export NCCL_SOCKET_IFNAME=bond0\nexport LD_LIBRARY_PATH=/opt\nNCCL_DEBUG=INFO\nexport FI_TOKEN=x\n")
    said = [(c.quantity, c.value, c.span.line) for c in reading.claims]
    assert said == [("env.NCCL_SOCKET_IFNAME", Known("bond0"), 1)]


def test_ignored_directives() -> None:
    reading = read(
        "#!/bin/bash\n#SBATCH --nodes=2\n# SBATCH --time=1:00:00\n##SBATCH -p gpu\n#sbatch -n 4\n"
        "cat <<'END' > other.sbatch\n#SBATCH --nodes=8\nEND\n#SBATCH --gres=gpu:4\n# SBATCH is read at the top\n"
    )
    found = [(c.span.line, c.value) for c in reading.claims if c.quantity == "directive_unread"]
    assert found == [
        (3, Known("there is a space between # and SBATCH")),
        (5, Known("SBATCH must be in capitals")),
        (9, Known("it comes after the first command")),
    ]


def test_setup_commands_of_the_script() -> None:
    reading = read(STEPS_HEADER + "mkdir -p logs/ out\nsrun mkdir far\nscontrol requeue $SLURM_JOB_ID\n")
    said = [(c.quantity, c.value) for c in reading.claims if c.source == "shell" and c.quantity != "variable_read"]
    assert said == [
        ("directory_made", Known("logs")),
        ("directory_made", Known("out")),
        ("requeues_itself", Known(True)),
    ]


# `mpirun -np 1 a : -np 2 b`: several programs of one world.


LINE = "mpirun -np 1 -x A=1 -x B=2 {program} : -np 2 -x A=2 -x B=2 {program}\n"


def test_the_processes_of_all_programs_are_one_world() -> None:
    reading = read(LINE.format(program="python train.py"), train_dot_py="import horovod.torch\n")
    assert len(reading.launches) == 1
    assert values(reading)["tasks"] == 3
    assert isinstance(only(reading, "env.A").value, Unresolved)
    assert only(reading, "env.B").value == Known("2")
    assert reading.notes == ()


def test_a_program_without_a_count_leaves_the_world_open() -> None:
    reading = read("mpirun -np 1 python a.py : -H x,y python a.py\n", a_dot_py="import mpi4py\n")
    assert isinstance(only(reading, "tasks").value, Unresolved)


def test_other_programs_are_named() -> None:
    reading = read("mpirun -np 1 python a.py : -np 2 python b.py\n", a_dot_py="import mpi4py\n")
    assert values(reading)["tasks"] == 3
    assert "1 more program" in reading.notes[0].message


HETEROGENEOUS = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2\n"


def test_the_components_of_a_heterogeneous_job_are_one_world() -> None:
    line = "srun --het-group=0 -n 2 python train.py : --het-group=1 -n 8 python train.py\n"
    reading = read(HETEROGENEOUS + line, train_dot_py="import torch\n")
    assert [launch.program for launch in reading.launches] == ["train.py"]
    assert values(reading)["tasks"] == 10
    assert not [note for note in reading.notes if "not read" in note.message]


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        ("srun --het-group=0 -n 2 python a.py : --het-group=1 python a.py\n", 0),
        ("srun -n 2 python a.py : -n 8 python b.py\n", 1),
    ],
)
def test_components_without_a_count_and_with_other_programs(line: str, programs: int) -> None:
    reading = read(HETEROGENEOUS + line, a_dot_py="import torch\n", b_dot_py="import torch\n")
    assert isinstance(only(reading, "tasks").value, Unresolved) is (programs == 0)
    assert len([note for note in reading.notes if "of this srun not read" in note.message]) == programs


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="Open MPI is not installed")
def test_open_mpi_makes_one_world_of_them() -> None:
    program = "sh -c 'echo $OMPI_COMM_WORLD_SIZE $A $B'"
    line = LINE.format(program=program).replace("mpirun", "mpirun.openmpi --allow-run-as-root --oversubscribe")
    found = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(found.stdout.split("\n")) == ["", "3 1 2", "3 2 2", "3 2 2"]


# Workloads that xpk creates.


@pytest.mark.parametrize(
    ("device", "slices", "hosts"),
    [
        ("v6e-256", 1, 64),
        ("v6e-256", 2, 128),
        ("v6e-1", 1, 1),
        ("v6e-4", 1, 1),
        ("v5litepod-16", 1, 4),
        ("v5p-128", 1, 16),
        ("v4-8", 1, 1),
        ("tpu7x-4x4x8", 2, 64),
        ("tpu7x-8", 1, 1),
    ],
)
def test_hosts_of_slices(device: str, slices: int, hosts: int) -> None:
    found = read(
        f"python3 ~/xpk/xpk.py workload create --cluster=c --device-type={device} --num-slices={slices} \\\n"
        ' --workload=w --command="python3 -m MaxText.train base.yml steps=10"'
    )
    assert [launch.launcher for launch in found.launches] == ["xpk"]
    assert only(found, "nodes").alternatives == (hosts,)
    assert only(found, "processes_per_node").strength is Strength.DEFAULT


def test_a_slice_that_the_caller_names() -> None:
    found = read("xpk workload create --tpu-type $TPU_TYPE --num-slices 2 --workload w --command 'python x.py'")
    assert "$TPU_TYPE" in why(only(found, "nodes"))


def test_nodes_of_gpus() -> None:
    found = read("xpk workload create --device-type=h100-mega-80gb-8 --num-nodes=4 --command 'python x.py'")
    assert only(found, "nodes").alternatives == (4,)


def test_an_unknown_device_has_unknown_hosts() -> None:
    found = read("xpk workload create --device-type=b200-8 --command 'python x.py'")
    assert "b200-8" in why(only(found, "nodes"))


def test_a_launcher_in_the_command_is_the_launch() -> None:
    found = read(
        "xpk workload create --device-type=h100-80gb-8 --num-nodes=2"
        ' --command="torchrun --nnodes=2 --nproc_per_node=8 t.py"'
    )
    assert [launch.launcher for launch in found.launches] == ["torchrun"]


@pytest.mark.parametrize("line", ["xpk workload list --cluster c", "xpk cluster create --device-type=v6e-4", "xpk"])
def test_other_commands_start_nothing(line: str) -> None:
    assert read(line).launches == ()


def test_a_command_for_the_hosts_of_a_tpu() -> None:
    found = read("gcloud compute tpus tpu-vm ssh n --worker=all --command='torchrun --nproc_per_node=4 t.py'")
    assert [launch.launcher for launch in found.launches] == ["torchrun"]
