"""The options of wrappers: how many words each takes, so that what stands behind them is found.

Sources: the manuals of Slurm 24.05, Open MPI, Horovod, OpenSSH 9, Apptainer 1.3, Docker 27, coreutils, util-linux,
numactl, Nsight Systems 2024, conda 24, uv 0.5.
"""

from __future__ import annotations

from preflight.lazy.dataclasses import dataclass
from preflight.sources.launchers import mpi, slurm
from preflight.sources.launchers.options import Table, table


@dataclass(frozen=True, slots=True)
class Kind:
    """How to read one wrapper: its options, how many plain words follow, and which one is image or host."""

    options: Table
    plain: int = 0
    image: bool = False
    host: bool = False
    subcommands: tuple[str, ...] = ()
    exports: str = ""
    passes_environment: bool = True


_NONE = table({}, {})
ENV = table(
    {"unset": "-u --unset", "chdir": "-C --chdir", "split": "-S --split-string"},
    {"clean": "-i --ignore-environment -", "flag": "-0 --null -v --debug"},
)
_CONTAINER = table(
    {
        "bind": "-B --bind",
        "workdir": "--pwd -W --workdir --cwd",
        "export": "--env",
        "env_file": "--env-file",
        "other": "-H --home --scratch -S"
        " --overlay -o --network --hostname --app --apply-cgroups --fakeroot-id"
        " --security --dns --add-caps --drop-caps --mount --fusemount --docker-username --config --pem-path",
    },
    {
        "cleanenv": "-e --cleanenv",
        "nv": "--nv --rocm --nvccli",
        "flag": "--writable -w --writable-tmpfs"
        " --contain -c --containall -C --fakeroot -f --no-home"
        " --ipc -i --pid -p --net -n --uts --userns -u --keep-privs --no-privs --compat --no-init --disable-cache"
        " --no-eval --unsquash --vm -d --debug -q --quiet -s --silent -v --verbose --no-umask --sharens --no-mount",
    },
    abbreviations=False,
)
_DOCKER = table(
    {
        "env_file": "--env-file",
        "export": "-e --env",
        "workdir": "-w --workdir",
        "volume": "-v --volume --mount",
        "gpus": "--gpus",
        "runtime": "--runtime",
        "device": "--device",
        "shm_size": "--shm-size",
        "ipc": "--ipc",
        "network": "--network --net",
        "ulimit": "--ulimit",
        "cap_add": "--cap-add",
        "tmpfs": "--tmpfs",
        "hooks": "--hooks-dir --annotation",
        "other": "--name --user -u -h"
        " --hostname --entrypoint -m --memory --cpus --cpuset-cpus -p --publish --expose"
        " --cap-drop --security-opt --restart --pid --uts --platform --pull --add-host --dns -l --label --log-driver"
        " --log-opt --group-add --userns --memory-swap --stop-timeout --cgroupns --cidfile --link --ip --mac-address"
        " --volumes-from --memory-swappiness --memory-reservation --kernel-memory -c --cpu-shares --cpu-period"
        " --cpu-quota --cpuset-mems --blkio-weight --cgroup-parent --device-cgroup-rule --detach-keys --dns-option"
        " --dns-search --domainname --health-cmd --health-interval --health-retries --health-timeout --ip6"
        " --isolation --label-file --network-alias --net-alias --oom-score-adj --pids-limit --stop-signal"
        " --storage-opt --sysctl --volume-driver -a --attach --rootfs --systemd --secret --authfile --arch --os",
    },
    {
        "privileged": "--privileged",
        "flag": "--rm -i -t -d --interactive --tty --publish-all --no-healthcheck --sig-proxy --quiet -q"
        " --detach --init -it -ti --read-only -P --oom-kill-disable --replace --tls-verify --disable-content-trust",
    },
    abbreviations=False,
)
_SSH = table(
    {
        "other": "-p -i -o -l -F -J -L -R -D -b -c -m -e -E -I -O -Q -S -w -W -B",
    },
    {"flag": "-t -T -n -N -f -q -v -x -X -Y -A -a -C -4 -6 -g -k -K -M -s -V -y -G"},
    abbreviations=False,
)
KINDS: dict[str, Kind] = {
    "srun": Kind(slurm.SRUN),
    "mpirun": Kind(mpi.MPI, exports="export"),
    "mpiexec": Kind(mpi.MPI, exports="export"),
    "mpiexec.hydra": Kind(mpi.MPI, exports="export"),
    "mpirun.openmpi": Kind(mpi.MPI, exports="export"),
    "orterun": Kind(mpi.MPI, exports="export"),
    "prterun": Kind(mpi.MPI, exports="export"),
    "horovodrun": Kind(mpi.HOROVOD),
    "ssh": Kind(_SSH, plain=1, host=True, passes_environment=False),
    "apptainer": Kind(_CONTAINER, plain=1, image=True, subcommands=("exec", "run"), exports="export"),
    "singularity": Kind(_CONTAINER, plain=1, image=True, subcommands=("exec", "run"), exports="export"),
    "docker": Kind(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "podman": Kind(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "nvidia-docker": Kind(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "shifter": Kind(table({"image": "--image -i", "other": "--volume -V --module -m --workdir -w"}, {}), image=False),
    "timeout": Kind(
        table({"other": "-s --signal -k --kill-after"}, {"flag": "--foreground --preserve-status -v --verbose"}),
        plain=1,
    ),
    "nice": Kind(table({"other": "-n --adjustment"}, {})),
    "ionice": Kind(table({"other": "-c --class -n --classdata"}, {"flag": "-t"})),
    "numactl": Kind(
        table(
            {"other": "-i --interleave -N --cpunodebind -C --physcpubind -m --membind -p --preferred"},
            {"flag": "-l --localalloc -a --all --show -s --hardware -H --balancing -b"},
        )
    ),
    "taskset": Kind(table({}, {"flag": "-c --cpu-list -a --all-tasks"}), plain=1),
    "stdbuf": Kind(table({"other": "-i --input -o --output -e --error"}, {})),
    "time": Kind(table({"other": "-f --format -o --output"}, {"flag": "-p -v -a --verbose --portability --append"})),
    "sudo": Kind(
        table(
            {"other": "-u --user -g --group -h --host -p --prompt -C -D --chdir"},
            {"flag": "-E --preserve-env -H -n -S -b -i -s"},
        )
    ),
    "exec": Kind(table({"other": "-a"}, {"flag": "-c -l"})),
    "nsys": Kind(
        table(
            {
                "other": "-o --output -t --trace -s --sample -c --capture-range -d --duration -y --delay -x --export"
                " --capture-range-end --stats --force-overwrite -f --cuda-memory-usage --gpu-metrics-device"
                " --gpu-metrics-devices --cudabacktrace --python-sampling --pytorch --cuda-graph-trace --kill -n"
                " --inherit-environment --stop-on-exit -w --show-output --backtrace --cpuctxsw --nvtx-domain-include"
                " --session-new -e --env-var --trace-fork-before-exec --wait --nic-metrics --stop-on-range-end"
            },
            {},
        ),
        subcommands=("profile", "launch"),
    ),
    "ncu": Kind(
        table({"other": "-o --export --set --section -k --kernel-name -c --launch-count --target-processes"}, {})
    ),
    "conda": Kind(
        table(
            {"name": "-n --name", "prefix": "-p --prefix", "cwd": "--cwd"},
            {"flag": "--no-capture-output --live-stream -v"},
        ),
        subcommands=("run",),
    ),
    "uv": Kind(
        table(
            {
                "env_file": "--env-file",
                "other": "--with --python -p --extra --group --project --directory --with-requirements",
            },
            {
                "flag": "--no-sync --frozen --isolated --active --no-project"
                " --locked --offline -q --quiet -v --all-extras"
            },
        ),
        subcommands=("run",),
    ),
    "poetry": Kind(_NONE, subcommands=("run",)),
    "pipenv": Kind(_NONE, subcommands=("run",)),
    "pixi": Kind(table({"other": "-e --environment --manifest-path"}, {}), subcommands=("run",)),
    "pdsh": Kind(
        table({"hosts": "-w", "other": "-x -f -R -l -t -u -g -M -N"}, {"flag": "-S -b -d"}), passes_environment=False
    ),
    "clush": Kind(
        table({"hosts": "-w", "other": "-g -f -x -X -l -t -u -o -m -O -R"}, {"flag": "-a -b -B -S -L -q -v"}),
        passes_environment=False,
    ),
    "parallel-ssh": Kind(
        table(
            {
                "hostfile": "-h --hosts",
                "other": "-H --host -l --user -p --par -o --outdir -e --errdir -t --timeout -O --option -x -X",
            },
            {"flag": "-i --inline -P --print -v --verbose -A --askpass -I --send-input"},
        ),
        passes_environment=False,
    ),
    "flock": Kind(table({"other": "-w --timeout -E"}, {"flag": "-n -x -s -u -o"}), plain=1),
    "jsrun": Kind(
        table(
            {
                "np": "-n --nrs -p --np",
                "other": "-r --rs_per_host -a --tasks_per_rs -g --gpu_per_rs -c --cpu_per_rs -d --launch_distribution"
                " -b --bind -l --latency_priority -E --env -e --exit_on_error -i --immediate -K --rs_per_socket -k"
                " --stdio_stderr -o --stdio_stdout -t --stdio_input -M --smpiargs -h --chdir -U --use_resources -A",
            },
            {},
        )
    ),
    "aprun": Kind(
        table(
            {"np": "-n", "per_node": "-N", "other": "-d -j -S -L -cc -e -p -F -m -r -sn -sl"}, {"flag": "-B -b -q -ss"}
        )
    ),
    "pbsdsh": Kind(table({"other": "-n -c -h"}, {"flag": "-s -u -v -o"}), passes_environment=False),
    "blaunch": Kind(table({"other": "-u -use-login-shell"}, {"flag": "-n -z"}), plain=0),
    "ibrun": Kind(table({"other": "-n -o"}, {})),
}
KINDS["pssh"] = KINDS["parallel-ssh"]
KINDS.update(mamba=KINDS["conda"], micromamba=KINDS["conda"])
PLAIN_NAMES = {
    "mpiexec": "mpirun",
    "mpiexec.hydra": "mpirun",
    "parallel-ssh": "pdsh",
    "pssh": "pdsh",
    "mpirun.openmpi": "mpirun",
    "orterun": "mpirun",
    "prterun": "mpirun",
    "singularity": "apptainer",
    "nvidia-docker": "docker",
}
SIMPLE = frozenset(["nohup", "command", "builtin", "setsid", "unbuffer", "catchsegv", "eatmydata", "!"])
