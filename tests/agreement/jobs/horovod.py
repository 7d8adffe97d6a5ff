"""horovodrun over Gloo, with a static list of hosts: on this machine, and over ssh on virtual nodes."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of


def _make(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    before = script.exports()
    python = random.choice(["python", "python3", "python -u"])
    if job.launcher.where is Machines.HERE:
        total = random.choice([1, 2, 3, 4])
        hosts = random.choice(["-H localhost:4", "--hosts localhost:4", "-H localhost:6"])
        other = ""
    else:
        names = [f"node{number + 1}" for number in range(random.choice([2, 3, 4]))]
        slots = [random.choice([1, 2, 3])] * len(names)
        if random.random() < 0.3:
            slots = [random.choice([1, 2, 3]) for _ in names]
        total = sum(slots) - random.choice([0, 0, 1])
        other = random.choice([" --network-interface eth0", " --network-interfaces eth0"])
        if random.random() < 0.6:
            listed = ",".join(f"{name}:{room}" for name, room in zip(names, slots, strict=True))
            hosts = f"-H {listed}"
        else:
            rows = [f"{name} slots={room}" for name, room in zip(names, slots, strict=True)]
            job.files["hosts.txt"] = "\n".join(rows) + "\n"
            hosts = random.choice(["--hostfile hosts.txt", "-hostfile ./hosts.txt"])
    count = f"{random.choice(['-np', '-np', '--num-proc'])} {script.number(total)}"
    script.finish(f"{before}horovodrun --gloo {count} {hosts}{other} {python} witness.py {script.arguments()}")


LAUNCHERS = tuple(
    Launcher(
        name,
        _make,
        rank="HOROVOD_RANK",
        local_rank="HOROVOD_LOCAL_RANK",
        world="HOROVOD_SIZE",
        where=where,
        environment="launchers/horovod",
        program="horovodrun",
        version=release_of("horovod"),
    )
    for name, where in (("horovodrun", Machines.HERE), ("horovodrun on nodes", Machines.NODES))
)
