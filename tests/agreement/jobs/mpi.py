"""Open MPI's mpirun, on this machine, on virtual nodes with host lists and hostfiles, and in an allocation of Slurm."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script

_VERSION = ("sh", "-c", "mpirun --version | sed -n '1s/.* //p'")
_IDENTITY = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "world": "OMPI_COMM_WORLD_SIZE",
    "program": "mpirun",
    "version": _VERSION,
}


def _on_this_machine(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    before = script.exports()
    count = script.number(random.choice([2, 3, 4]))
    flag = random.choice(["-np", "-n", "--np"])
    slots = random.choice(["--oversubscribe", "-H localhost:8", "--host localhost:8"])
    passed = "".join(f" -x {name}" for name in job.exported) if random.random() < 0.5 else ""
    python = random.choice(["python", "python3", "python -u"])
    script.finish(
        f"{before}mpirun --allow-run-as-root {slots} {flag} {count}{passed} {python} witness.py {script.arguments()}"
    )


def _on_nodes(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    names = [f"node{number + 1}" for number in range(random.choice([2, 3, 4]))]
    if random.random() < 0.3:
        random.shuffle(names)
    slots = [random.choice([1, 2, 3])] * len(names)
    if random.random() < 0.3:
        slots = [random.choice([1, 2, 3]) for _ in names]
    before = script.exports()
    passed = "".join(f" -x {name}" for name in job.exported if random.random() < 0.7)
    if job.exported and passed and random.random() < 0.3:
        passed += " -x TUNE_E=5"
        job.exported = (*job.exported, "TUNE_E")
    total = sum(slots)
    how = random.randrange(4)
    if how == 0:
        hosts = script.option("--host", ",".join(f"{name}:{room}" for name, room in zip(names, slots, strict=True)))
        hosts = hosts.replace("=", " ")
    elif how == 1:
        listed = [name for name, room in zip(names, slots, strict=True) for _ in range(room)]
        hosts = f"-H {','.join(listed)}"
    else:
        form = random.choice(["{} slots={}", "{}  slots={} max_slots=8", "{} slots={}"])
        rows = [form.format(name, room) for name, room in zip(names, slots, strict=True)]
        job.files["hosts.txt"] = "# hosts of this run\n" + "\n".join(rows) + "\n"
        hosts = random.choice(["--hostfile hosts.txt", "-hostfile ./hosts.txt", "--machinefile hosts.txt"])
    placing = random.randrange(6)
    count = f"-np {script.number(random.choice([total, total, max(1, total - 1)]))}"
    if placing == 0:
        placed = f" {count} --map-by node"
    elif placing == 1 and min(slots) > 1:
        placed = " --map-by ppr:2:node"
    elif placing == 2:
        placed = f" -npernode {script.number(min(slots))}"
    elif placing == 3:
        placed = f" {count} --bind-to none --map-by slot"
    else:
        placed = f" {count}" if random.random() < 0.8 else ""
    script.finish(
        f"{before}mpirun --allow-run-as-root {hosts}{placed}{passed} --mca btl_tcp_if_include eth0"
        f" python witness.py {script.arguments()}"
    )


def _in_slurm(random: Random, job: GeneratedJob, ports: Ports) -> None:
    # A single task counts as a preparation step, not as a launch.
    nodes, each = random.choice([(1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])
    header = [f"#SBATCH --nodes={nodes}", f"#SBATCH --ntasks-per-node={each}"]
    script = Script(random, job, header)
    script.exports(in_front=False)
    count = random.choice(["", "-np $SLURM_NTASKS ", "-np $((SLURM_NNODES * SLURM_NTASKS_PER_NODE)) "])
    passed = "".join(f"-x {name} " for name in job.exported)
    script.finish(f"mpirun --allow-run-as-root {count}{passed}python witness.py {script.arguments()}", batch=True)


LAUNCHERS = (
    Launcher("mpirun", _on_this_machine, **_IDENTITY),
    Launcher("mpirun on nodes", _on_nodes, where=Machines.NODES, **_IDENTITY),
    Launcher("mpirun in Slurm", _in_slurm, where=Machines.SLURM, **_IDENTITY),
)
