"""Programs that are started by hand, a process for each rank, and programs that spawn their ranks themselves."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of

_SPAWNS = '''\
"""Train on every device of this machine."""

import argparse
import torch.multiprocessing as mp

from witness import write


def run(rank, world, args):
    write(rank=rank, world=world)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default={default})
    args, _ = parser.parse_known_args()
    world = {world}
    mp.spawn(run, args=(world, args), nprocs=world, join=True)


if __name__ == "__main__":
    main()
'''


def _processes(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    world = random.choice([2, 3, 4])
    before = script.exports()
    size = script.number(world)
    arguments = script.arguments()
    script.lines += [f"export MASTER_ADDR=127.0.0.1 MASTER_PORT={port}", f"export WORLD_SIZE={size}"]
    program = random.choice(["witness.py"] * 3 + ["-m witness"])
    if random.random() < 0.5:
        ranks = " ".join(map(str, range(world)))
        script.finish(f"for r in {ranks}; do {before}RANK=$r LOCAL_RANK=$r python {program} {arguments} & done; wait")
    else:
        lines = [f"{before}RANK={rank} LOCAL_RANK={rank} python {program} {arguments}" for rank in range(world)]
        script.finish(" &\n".join(lines) + " &\nwait")


def _over_ssh(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    names = [f"node{number + 1}" for number in range(random.choice([2, 3, 4]))]
    inside = script.arguments(plain=True)
    world = script.number(len(names))
    script.lines += [f"NODES=({' '.join(names)})", f"WORLD={world}"]
    variables = "RANK=$r LOCAL_RANK=0 WORLD_SIZE=$WORLD MASTER_ADDR=node1 MASTER_PORT=29501"
    if random.random() < 0.5:
        line = (
            f'r=0; for n in "${{NODES[@]}}"; do ssh $n "cd $PWD && {variables} python witness.py {inside}"'
            " & r=$((r + 1)); done; wait"
        )
    else:
        line = (
            f'for r in $(seq 0 $((WORLD - 1))); do ssh ${{NODES[$r]}} "cd $PWD; {variables} python witness.py'
            f' {inside}" & done; wait'
        )
    script.finish(line)


def _spawned(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    before = script.exports()
    world = random.choice([1, 2, 3])
    how = random.randrange(3)
    job.files["train.py"] = _SPAWNS.format(default=world, world=["args.workers", str(world), "args.workers"][how])
    options = f"--workers {script.number(world)} " if how == 2 else ""
    program = random.choice(["python train.py", "python -m train", "python -u train.py"])
    script.finish(f"{before}{program} {options}{script.arguments()}")


LAUNCHERS = (
    Launcher("python", _processes, version=("{bin}/python", "-c", "import platform; print(platform.python_version())")),
    Launcher(
        "python over ssh",
        _over_ssh,
        where=Machines.NODES,
        version=("{bin}/python", "-c", "import platform; print(platform.python_version())"),
    ),
    Launcher("python with spawn", _spawned, version=release_of("torch")),
)
