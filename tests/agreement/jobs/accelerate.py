"""`accelerate launch`, by options and by its configuration file, on one machine and with a rank for each of several."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of

_INSTALLED = {"environment": "launchers/accelerate", "program": "accelerate", "version": release_of("accelerate")}
#: A plain `no` would be false, which the launcher cannot read.
_PRECISIONS = ("'no'", "bf16")
_PROGRAMS = ("accelerate launch", "accelerate launch", "python -m accelerate.commands.launch", "accelerate-launch")


def _configuration(random: Random, machines: int, processes: int, port: int, address: str) -> str:
    lines = [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {random.choice(['MULTI_GPU', 'FSDP', 'MULTI_GPU'])}",
        "downcast_bf16: 'no'",
        "machine_rank: 0",
        "main_training_function: main",
        f"mixed_precision: {random.choice(_PRECISIONS)}",
        f"num_machines: {machines}",
        f"num_processes: {processes}",
        f"main_process_port: {port}",
        "rdzv_backend: static",
        "same_network: true",
        "use_cpu: false",
    ]
    if address:
        lines.append(f"main_process_ip: {address}")
    if random.random() < 0.2:
        random.shuffle(lines)
    return "\n".join(lines) + "\n"


def _on_this_machine(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    before = script.exports()
    processes = random.choice([1, 2, 3, 4])
    program = random.choice(_PROGRAMS)
    arguments = script.arguments()
    how = random.randrange(4)
    if how == 0:
        job.files["accelerate.yaml"] = _configuration(random, 1, processes, port, "")
        options = script.option("--config_file", "accelerate.yaml")
    elif how == 1:
        job.files["accelerate.yaml"] = _configuration(random, 1, 2, port, "")
        options = f"--config_file accelerate.yaml {script.option('--num_processes', script.number(processes))}"
    elif processes == 1:
        options = f"--num_processes {script.number(1)} --num_machines 1 --main_process_port {port}"
    else:
        kind = random.choice(["--multi_gpu", "--multi_gpu", "--use_fsdp"])
        options = f"{kind} {script.option('--num_processes', script.number(processes))} --main_process_port {port}"
        if random.random() < 0.3:
            chosen = ",".join(random.sample("01234567", processes))
            options += f" --gpu_ids {chosen}"
        if random.random() < 0.5:
            options += f" --num_machines {script.number(1)} --mixed_precision=bf16"
    script.finish(f"{before}{program} {options} witness.py {arguments}")


def _on_nodes(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    machines, each = random.choice([2, 3]), random.choice([1, 2])
    total = machines * each
    inside = script.arguments(plain=True)
    configured = random.random() < 0.6
    if configured:
        job.files["accelerate.yaml"] = _configuration(random, machines, total, port, "node1")
        options = "--config_file accelerate.yaml --machine_rank {rank}"
    else:
        count = script.number(total)
        options = (
            f"--multi_gpu --num_machines {machines} --num_processes {count} --machine_rank {{rank}}"
            f" --main_process_ip node1 --main_process_port {port} --same_network"
        )
    names = [f"node{number + 1}" for number in range(machines)]
    if random.random() < 0.5:
        script.lines.append("rank=0")
        line = (
            f'for host in {" ".join(names)}; do ssh $host "cd $PWD && accelerate launch'
            f' {options.replace("{rank}", "$rank")} witness.py {inside}" & rank=$((rank + 1)); done; wait'
        )
    else:
        lines = [
            f'ssh {name} "cd $PWD && accelerate launch {options.replace("{rank}", str(number))} witness.py {inside}"'
            for number, name in enumerate(names)
        ]
        line = " &\n".join(lines) + " &\nwait"
    script.finish(line)


LAUNCHERS = (
    Launcher("accelerate", _on_this_machine, **_INSTALLED),
    Launcher("accelerate on nodes", _on_nodes, where=Machines.NODES, **_INSTALLED),
)
