from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Strength, Unresolved
from preflight.sources.launchers.slurm import hosts_of, mebibytes_of, nodes_of, seconds_of
from tests.sources.launchers.reading_lines import only, read, values

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
