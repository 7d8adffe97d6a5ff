"""torchrun and its older forms, on this machine as one to three nodes, and over ssh on one to three virtual nodes."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of

_PROGRAMS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "python -m torch.distributed.run",
    "torch.distributed.launch": "python -m torch.distributed.launch",
}


def _on_this_machine(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    nodes, each = random.choice([1, 1, 2, 3]), random.choice([1, 2, 3])
    before = script.exports()
    if random.random() < 0.2:
        # The visible devices of a node, in an order of its own.
        before += f"CUDA_VISIBLE_DEVICES={','.join(random.sample('01234567', each))} "
    program = _PROGRAMS[job.launcher.name]
    per = script.option(random.choice(["--nproc_per_node", "--nproc-per-node"]), script.number(each))
    arguments = script.arguments()
    how = ""
    if job.launcher.name == "torch.distributed.launch":
        how = random.choice(["", "", " --use_env"])
    started = random.choice(["witness.py"] * 3 + ["-m witness"])
    if nodes == 1:
        own = random.choice(["", "--standalone", script.option("--nnodes", script.number(1))])
        own += f" --master_port={port}" if "standalone" not in own else ""
        script.finish(f"{before}{program}{how} {own} {per} {started} {arguments}".replace("  ", " "))
        return
    count = script.option("--nnodes", script.number(nodes))
    where = f"{script.option('--master_addr', '127.0.0.1')} {script.option('--master_port', str(port))}"
    if random.random() < 0.5:
        ranks = " ".join(map(str, range(nodes)))
        loop = random.choice(
            [f"for i in {ranks}; do", f"for i in $(seq 0 {nodes - 1}); do", f"for ((i=0; i<{nodes}; i++)); do"]
        )
        line = f"{before}{program}{how} {count} --node_rank $i {where} {per} {started} {arguments} &"
        script.finish(f"{loop} {line} done; wait")
    else:
        lines = [
            f"{before}{program}{how} {count} --node_rank={node} {where} {per} {started} {arguments}"
            for node in range(nodes)
        ]
        script.finish(" &\n".join(lines) + " &\nwait")


def _over_ssh(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    nodes, each = random.choice([2, 3]), random.choice([1, 2])
    names = [f"node{number + 1}" for number in range(nodes)]
    per = f"--nproc_per_node {script.number(each)}"
    inside = script.arguments(plain=True)
    variables = ""
    if random.random() < 0.5:
        # Variables that are only exported here do not reach the other nodes.
        variables = "TUNE_A=1 "
        job.exported = ("TUNE_A",)
    else:
        script.lines.append("export TUNE_B=2")
        job.exported = ("TUNE_B",)
    how = random.randrange(5)
    meet = f"--master_addr {script.word('node1')} --master_port {port}"
    if how == 4:
        meet = f"--rdzv_backend=c10d --rdzv_id=7 --rdzv_endpoint=node1:{port}"
    if how in (0, 4):
        script.lines.append(f"HOSTS=({' '.join(names)})")
        rank = "" if how == 4 else "--node_rank=$i "
        line = (
            f'for i in "${{!HOSTS[@]}}"; do ssh ${{HOSTS[$i]}} "cd $PWD && {variables}torchrun'
            f' --nnodes=${{#HOSTS[@]}} {rank}{per} {meet} witness.py {inside}" & done; wait'
        )
    elif how == 1:
        script.lines.append("i=0")
        line = (
            f'for host in {" ".join(names)}; do ssh $host "cd $PWD; {variables}torchrun --nnodes={nodes}'
            f' --node_rank=$i {per} {meet} witness.py {inside}" & i=$((i + 1)); done; wait'
        )
    elif how == 2:
        lines = [
            f"ssh {name} 'cd '$PWD' && {variables}torchrun --nnodes {nodes} --node_rank {number}"
            f" --nproc_per_node {each} --master_addr node1 --master_port {port} witness.py {inside}'"
            for number, name in enumerate(names)
        ]
        line = " &\n".join(lines) + " &\nwait"
    else:
        job.files["node.sh"] = (
            f"#!/bin/bash\ncd $(dirname $0)\n{variables}torchrun --nnodes={nodes} --node_rank=$1"
            f" --nproc_per_node={each} --master_addr=$2 --master_port={port} witness.py {inside}\n"
        )
        line = "\n".join(
            [f"ssh {name} bash $PWD/node.sh {number} node1 &" for number, name in enumerate(names)] + ["wait"]
        )
    script.finish(line)


LAUNCHERS = (
    *(Launcher(name, _on_this_machine, program="torchrun", version=release_of("torch")) for name in _PROGRAMS),
    Launcher("torchrun over ssh", _over_ssh, where=Machines.NODES, program="torchrun", version=release_of("torch")),
)
