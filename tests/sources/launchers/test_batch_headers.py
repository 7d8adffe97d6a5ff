"""Batch headers of other schedulers than Slurm, and their effect on launches."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Strength, Unresolved
from preflight.model.job.value import FIRST_ALLOCATED_HOST
from tests.sources.launchers.reading_lines import only, read, values, why


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
