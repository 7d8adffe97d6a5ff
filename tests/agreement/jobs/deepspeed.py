"""The deepspeed launcher: on one node, and with a hostfile over pdsh, with --include and --exclude, and over ssh."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of

_INSTALLED = {"environment": "launchers/deepspeed", "program": "deepspeed", "version": release_of("deepspeed")}


def _one_node(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    before = script.exports()
    each = random.choice([1, 2, 3])
    program = random.choice(["deepspeed"] * 3 + ["python -m deepspeed.launcher.runner"])
    if random.random() < 0.4:
        # The machine has no GPU: without a hostfile there would be nothing to choose from.
        devices = ",".join(map(str, sorted(random.sample(range(4), each))))
        job.files["hostfile"] = "localhost slots=4\n"
        chosen = f"--exclude localhost:{devices}" if random.random() < 0.3 else f"--include localhost:{devices}"
        place = f"--hostfile hostfile --no_ssh_check --master_addr 127.0.0.1 {chosen}"
    else:
        place = script.option("--num_gpus", script.number(each))
    local = random.choice(["", "", " --no_local_rank"])
    started = random.choice(["witness.py"] * 3 + ["--module witness"])
    arguments = script.arguments()
    job.files["ds.json"] = '{"train_batch_size": 24, "train_micro_batch_size_per_gpu": 1}\n'
    config = random.choice(["", " --deepspeed --deepspeed_config ds.json", " --deepspeed_config=ds.json"])
    script.finish(f"{before}{program} {place} --master_port {port}{local} {started} {arguments}{config}")


def _hostfile(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    names = [f"node{number + 1}" for number in range(random.choice([2, 3, 4]))]
    if random.random() < 0.2:
        random.shuffle(names)
    slots = [random.choice([1, 2, 3])] * len(names)
    if random.random() < 0.25:
        slots = [random.choice([1, 2, 3]) for _ in names]
    rows = [f"{name} slots={room}" for name, room in zip(names, slots, strict=True)]
    job.files["hostfile"] = random.choice(["", "# two networks\n"]) + "\n".join(rows) + "\n"
    # The launcher passes exported variables with certain prefixes to other nodes.
    for name in random.sample(["TUNE_A", "UCX_TUNE", "PYTHONTUNE"], random.randrange(3)):
        script.lines.append(f"export {name}=1")
        job.exported = (*job.exported, name)
    if random.random() < 0.3:
        job.files[".deepspeed_env"] = "TUNE_C=3\n"
        job.exported = (*job.exported, "TUNE_C")
    chosen = _chosen(random, script, names, slots)
    address = random.choice([f" --master_addr {names[0]}", ""])
    local = random.choice(["", "", " --no_local_rank"])
    file = random.choice(["--hostfile hostfile", "--hostfile=./hostfile", "-H hostfile", "--hostfile $PWD/hostfile"])
    launcher = random.choice(["", " --launcher pdsh", " --launcher=pdsh"])
    script.finish(
        f"deepspeed {file}{chosen}{launcher}{address} --master_port {port}{local} witness.py"
        f" {script.arguments(plain=True)}"
    )


def _chosen(random: Random, script: Script, names: list[str], slots: list[int]) -> str:
    """Options that keep at least two of the hosts: the launcher starts a single remaining host on its own machine."""
    how = random.randrange(6)
    if how == 0:
        some = sorted(random.sample(range(len(names)), 2))
        if random.random() < 0.3:
            some.reverse()
        filtered = names[some[0]]
        last = names[some[1]]
        ids = sorted(random.sample(range(slots[some[1]]), random.randint(1, slots[some[1]])))
        filtered += f"@{last}" if random.random() < 0.3 else f"@{last}:{','.join(map(str, ids))}"
        return f' --include="{filtered}"' if random.random() < 0.5 else f" --include {filtered}"
    if how == 1:
        room = slots[1]
        if room > 1 and random.random() < 0.6:
            return f" --exclude={names[1]}:{random.randrange(room)}"
        return f" --exclude {names[-1]}" if len(names) > 2 else ""
    if how == 2:
        return f" --num_nodes {script.number(2)}"
    if how == 3:
        return f" --num_nodes=2 --num_gpus={script.number(1)}"
    if how == 4:
        return f" --num_gpus {script.number(max(1, min(slots) - 1))}"
    return ""


def _without_ssh(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    nodes, each = random.choice([2, 3]), random.choice([1, 2])
    names = [f"node{number + 1}" for number in range(nodes)]
    job.files["hostfile"] = "\n".join(f"{name} slots={each}" for name in names) + "\n"
    inside = script.arguments(plain=True)
    options = f"--hostfile hostfile --no_ssh --master_addr node1 --master_port {port}"
    if random.random() < 0.3:
        options += f" --num_gpus {script.number(1)}"
    if random.random() < 0.5:
        script.lines.append("rank=0")
        line = (
            f'for host in {" ".join(names)}; do ssh $host "cd $PWD && deepspeed {options} --node_rank=$rank'
            f' witness.py {inside}" & rank=$((rank + 1)); done; wait'
        )
    else:
        lines = [
            f'ssh {name} "cd $PWD && deepspeed {options} --node_rank={number} witness.py {inside}"'
            for number, name in enumerate(names)
        ]
        line = " &\n".join(lines) + " &\nwait"
    script.finish(line)


LAUNCHERS = (
    Launcher("deepspeed", _one_node, **_INSTALLED),
    Launcher("deepspeed with pdsh", _hostfile, where=Machines.NODES, **_INSTALLED),
    Launcher("deepspeed over ssh", _without_ssh, where=Machines.NODES, **_INSTALLED),
)
