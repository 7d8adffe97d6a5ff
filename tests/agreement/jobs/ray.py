"""Ray: a cluster of one node, a program that is submitted to it."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of

_DRIVER = '''\
"""Start an actor for each worker, all in one placement group."""

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from witness import write

WORKERS = {workers}


@ray.remote(num_cpus=1)
class Worker:
    def run(self, rank, arguments):
        write(arguments, rank=rank, world=WORKERS)


def main():
    import sys

    ray.init(address="{address}")
    group = placement_group([{{"CPU": 1}}] * WORKERS, strategy="{strategy}")
    ray.get(group.ready(), timeout=60)
    strategy = PlacementGroupSchedulingStrategy(placement_group=group)
    workers = [Worker.options(scheduling_strategy=strategy).remote() for _ in range(WORKERS)]
    ray.get([worker.run.remote(rank, sys.argv[1:]) for rank, worker in enumerate(workers)], timeout=60)


if __name__ == "__main__":
    main()
'''


def _make(random: Random, job: GeneratedJob, ports: Ports) -> None:
    script = Script(random, job)
    (port,) = ports(1)
    workers = random.choice([1, 2, 3])
    strategy = random.choice(["PACK", "SPREAD"])
    job.files["train.py"] = _DRIVER.format(workers=workers, address=f"127.0.0.1:{port}", strategy=strategy)
    # Actors have the environment that Ray was started in, not that of the program.
    script.exports(in_front=False)
    script.lines.append(
        f"ray start --head --port={port} --num-cpus={script.number(4)} --include-dashboard=false"
        " --min-worker-port=0 --max-worker-port=0"
        " --node-ip-address=127.0.0.1 > /dev/null"
    )
    script.finish(f"python train.py {script.arguments()}")
    job.files["run.sh"] = job.files["run.sh"].replace("set -e\n", "set -e\ntrap 'ray stop > /dev/null' EXIT\n", 1)


#: On a machine of its own, because `ray stop` ends all of Ray that it sees.
LAUNCHERS = (Launcher("ray", _make, local_rank="", where=Machines.NODES, program="ray", version=release_of("ray")),)
