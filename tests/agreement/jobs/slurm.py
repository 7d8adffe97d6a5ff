"""srun in batch scripts, where it starts the ranks itself or starts torchrun on every node."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines, Ports, Script, release_of

_VERSION = ("sh", "-c", "dpkg-query -W -f '${source:Upstream-Version}' slurm-client")


def _ranks(random: Random, job: GeneratedJob, ports: Ports) -> None:
    # A single task counts as a preparation step, not as a launch.
    nodes, each = random.choice([(1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1), (4, 2)])
    short, sign = random.random() < 0.3, random.choice(["=", " "])
    header = ["#SBATCH --job-name=train", f"#SBATCH -N {nodes}" if short else f"#SBATCH --nodes{sign}{nodes}"]
    sizes = random.randrange(4)
    uneven = nodes > 1 and each > 1 and random.random() < 0.2
    if sizes == 0:
        header.append(f"#SBATCH --ntasks={nodes * each - int(uneven)}")
    elif sizes == 1:
        header.append(f"#SBATCH -n {nodes * each - int(uneven)}")
    elif sizes == 2:
        header.append(f"#SBATCH --ntasks-per-node={each}")
    if random.random() < 0.3:
        header.append(random.choice(["#SBATCH --gres=gpu:2", "#SBATCH --gpus-per-node=2"]))
    header.append("#SBATCH --time=00:05:00")
    # Without it a step could not request more cores than the header's tasks have.
    header.append("#SBATCH --exclusive")
    script = Script(random, job, header)
    script.exports(in_front=False)
    own = ""
    if sizes == 3:
        own = random.choice(
            [
                f" --ntasks-per-node={script.number(each)}",
                f" --ntasks=$((SLURM_NNODES * {each}))",
                f" -n {nodes * each}",
                f" -N {nodes} -n {nodes * each}",
                "",
            ]
        )
    elif nodes > 1 and random.random() < 0.25:
        own = random.choice([f" -n {script.number(nodes)}", " -N 1 -n 2", f" --nodes={nodes} --ntasks={nodes}"])
    if random.random() < 0.3:
        own += random.choice([" --kill-on-bad-exit=1", " -u", " --label", " --export=ALL", " -l --unbuffered"])
    how = random.randrange(6)
    if how == 0:
        inside = script.arguments(plain=True)
        job.exported = (*job.exported, "TUNE_F")
        line = (
            f"srun{own} bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
            f" TUNE_F=6; python witness.py {inside}'"
        )
    elif how == 1:
        inside = script.arguments(plain=True)
        line = f'srun{own} bash -c "python witness.py {inside} --nodes $SLURM_NNODES"'
    elif how == 2:
        inside = script.arguments(plain=True)
        script.lines += [
            "cat > step.sh <<'END'",
            "#!/bin/bash",
            "export RANK=$SLURM_PROCID",
            f"exec python witness.py {inside}",
            "END",
        ]
        line = f"srun{own} bash step.sh"
    elif how == 3:
        job.files["step.sh"] = '#!/bin/bash\npython -u witness.py --out run "$@"\n'
        line = f"srun{own} bash step.sh {script.arguments(plain=True)}"
    else:
        line = f"srun{own} python witness.py {script.arguments()}"
    script.finish(line, batch=True)


def _torchrun(random: Random, job: GeneratedJob, ports: Ports) -> None:
    nodes, each = random.choice([1, 2, 3]), random.choice([1, 2, 3])
    (port,) = ports(1)
    header = [f"#SBATCH --nodes={nodes}"]
    single = random.random() < 0.6
    if single:
        header.append("#SBATCH --ntasks-per-node=1")
    if random.random() < 0.4:
        header.append(random.choice([f"#SBATCH --gres=gpu:{each}", f"#SBATCH --gpus-per-node={each}"]))
    script = Script(random, job, header)
    script.exports(in_front=False)
    own = "" if single else random.choice([" --ntasks-per-node=1", ' --ntasks="$SLURM_NNODES"', ""])
    head = random.randrange(3)
    if head == 0:
        script.lines.append('MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    elif head == 1:
        script.lines += ["nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))", "MASTER_ADDR=${nodes[0]}"]
    else:
        script.lines.append("MASTER_ADDR=$(hostname)")
    script.lines += [f"export MASTER_PORT={port} MASTER_ADDR"]
    count = random.choice(["$SLURM_NNODES", "$SLURM_JOB_NUM_NODES", str(nodes)])
    per = f"--nproc_per_node={script.number(each)}"
    how = random.randrange(4)
    if how == 0:
        inside = script.arguments(plain=True)
        line = (
            f"srun{own} bash -c 'torchrun --nnodes=$SLURM_NNODES --nproc_per_node={each} --node_rank=$SLURM_NODEID"
            f" --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT witness.py {inside}'"
        )
    elif how == 1:
        inside = script.arguments(plain=True)
        line = (
            f'srun{own} bash -c "torchrun --nnodes {count} {per} --node_rank \\$SLURM_PROCID'
            f' --master_addr $MASTER_ADDR --master_port $MASTER_PORT witness.py {inside}"'
        )
    else:
        arguments = script.arguments()
        line = (
            f"srun{own} torchrun --nnodes={count} {per} --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d"
            f" --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT witness.py {arguments}"
        )
        if how == 2:
            line = line.replace("witness.py", "\\\n    witness.py")
    script.finish(line, batch=True)


LAUNCHERS = (
    Launcher(
        "srun",
        _ranks,
        rank="SLURM_PROCID",
        local_rank="SLURM_LOCALID",
        world="SLURM_NTASKS",
        where=Machines.SLURM,
        program="srun",
        version=_VERSION,
    ),
    Launcher("torchrun in Slurm", _torchrun, where=Machines.SLURM, program="torchrun", version=release_of("torch")),
)
