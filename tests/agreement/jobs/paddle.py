"""Paddle's launcher in both supported releases: collective and servers, on this machine and on virtual nodes."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of

_PROGRAMS = ("python -m paddle.distributed.launch", "python -u -m paddle.distributed.launch")


def _collective(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    before = script.exports()
    program = "fleetrun" if job.launcher.name.startswith("fleetrun") else random.choice(_PROGRAMS)
    each = random.choice([1, 2, 3])
    how = random.randrange(6)
    visible = random.sample(range(8), each + 1)
    if how == 0:
        # There is no GPU: each device in the variable counts as one.
        before += f"CUDA_VISIBLE_DEVICES={','.join(map(str, visible))} "
        devices = ",".join(map(str, random.sample(visible, each)))
        options = script.option(random.choice(["--devices", "--gpus"]), devices)
    elif how == 1:
        script.lines.append(f"export CUDA_VISIBLE_DEVICES={','.join(map(str, visible))}")
        options = ""
    else:
        options = script.option("--nproc_per_node", script.number(each))
    logs = script.option("--log_dir", "logs")
    script.finish(f"{before}{program} {options} {logs} witness.py {script.arguments()}")


def _servers(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    before = script.exports()
    program = random.choice([*_PROGRAMS, "fleetrun"])
    servers, trainers = random.choice([1, 2]), random.choice([1, 2, 3])
    if random.random() < 0.5:
        options = f"{script.option('--server_num', script.number(servers))} "
        options += script.option("--trainer_num", script.number(trainers))
    else:
        listed = [f"127.0.0.1:{port}" for port in ports(servers + trainers)]
        own = ",".join(listed[:servers])
        options = f'--servers="{own}" --trainers="{",".join(listed[servers:])}"'
        if random.random() < 0.5:
            script.lines.append(f"SERVERS={own}")
            options = options.replace(f'"{own}"', "$SERVERS")
    logs = script.option("--log_dir", "logs")
    script.finish(f"{before}{program} {options} {logs} witness.py {script.arguments()}")


def _collective_on_nodes(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    nodes, each = random.choice([2, 3]), random.choice([1, 2])
    inside = script.arguments(plain=True)
    ranked = random.random() < 0.6
    # By address: nodes do not recognise themselves by host name, and each would wait for another to serve.
    meet = script.option("--master", f"10.77.0.1:{port}")
    per = script.option("--nproc_per_node", script.number(each))
    names = [f"node{number + 1}" for number in range(nodes)]
    rank = " --rank $rank" if ranked else ""
    script.lines.append("rank=0")
    line = (
        f'for host in {" ".join(names)}; do ssh $host "cd $PWD && python -m paddle.distributed.launch {meet}'
        f' --nnodes {nodes}{rank} {per} --log_dir logs$rank witness.py {inside}" & rank=$((rank + 1)); done; wait'
    )
    script.finish(line)


def _servers_on_nodes(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    nodes = random.choice([2, 3])
    first, second = ports(2)
    inside = script.arguments(plain=True)
    addresses = [f"10.77.0.{number + 1}" for number in range(nodes)]
    servers = [f"{address}:{first}" for address in addresses[: random.choice([1, nodes])]]
    trainers = [f"{address}:{second}" for address in addresses]
    script.lines += [f"SERVERS={','.join(servers)}", f"TRAINERS={','.join(trainers)}"]
    options = '--servers="$SERVERS" --trainers="$TRAINERS"'.replace('"', "")
    line = (
        f'for host in {" ".join(addresses)}; do ssh $host "cd $PWD && python -m paddle.distributed.launch'
        f' {options} --log_dir logs_$host witness.py {inside}" & done; wait'
    )
    script.finish(line)


_COLLECTIVE = ("PADDLE_TRAINER_ID", "PADDLE_RANK_IN_NODE", "PADDLE_TRAINERS_NUM")
_SERVERS = ("PADDLE_TRAINER_ID", "", "PADDLE_TRAINERS_NUM")
_KINDS = (
    ("collective", _collective, _COLLECTIVE, Machines.HERE),
    ("servers", _servers, _SERVERS, Machines.HERE),
    ("collective on nodes", _collective_on_nodes, _COLLECTIVE, Machines.NODES),
    ("servers on nodes", _servers_on_nodes, _SERVERS, Machines.NODES),
)


def _launcher(name: str, kind: int, release: str, program: str = "python") -> Launcher:
    _, make, identity, where = _KINDS[kind]
    environment, version = f"paddle/{release}", release_of("paddlepaddle")
    return Launcher(name, make, *identity, where, environment, program, version)


LAUNCHERS = (
    *(
        _launcher(f"paddle {release[0]} {_KINDS[kind][0]}", kind, release)
        for release in ("3.3.1", "2.6.2")
        for kind in range(len(_KINDS))
    ),
    _launcher("fleetrun", 0, "3.3.1", "fleetrun"),
)
