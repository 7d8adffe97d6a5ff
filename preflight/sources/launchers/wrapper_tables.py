"""The options of wrappers: how many words each takes, to find the program after them.

Sources: the manuals of Slurm 24.05, Open MPI, Horovod, OpenSSH 9, Apptainer 1.3, Docker 27, coreutils, util-linux,
numactl, Nsight Systems 2024, conda 24, uv 0.5.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.sources.launchers import mpi, slurm
from preflight.sources.launchers.option_parser import Table, table
from preflight.sources.shell.lookup import MPI_ALTERNATIVES


class WrapperSyntax(NamedTuple):
    """How to parse one wrapper.

    Args:
        options: its options.
        plain: the number of plain words after the options.
        image: whether the first of these is a container image.
        host: whether the first of these is a host.
        subcommands: the subcommands that start a program; empty if it has no subcommands.
        exports: the `dest` of the option that sets variables of the program.
        passes_environment: whether the program inherits the environment.
        variables: whether words of the form `NAME=value` before the program set its variables.
        separator: the string between variables in the value of `exports`; empty if it holds only one.
    """

    options: Table
    plain: int = 0
    image: bool = False
    host: bool = False
    subcommands: tuple[str, ...] = ()
    exports: str = ""
    passes_environment: bool = True
    variables: bool = False
    separator: str = ""


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
        "cleanenv": "-e --cleanenv -C --containall",
        "nv": "--nv --rocm --nvccli",
        "flag": "--writable -w --writable-tmpfs"
        " --contain -c --fakeroot -f --no-home"
        " --ipc -i --pid -p --net -n --uts --userns -u --keep-privs --no-privs --compat --no-init --disable-cache"
        " --no-eval --unsquash --vm -d --debug -q --quiet -s --silent -v --verbose --no-umask --sharens --no-mount",
    },
    abbreviations=False,
)
_ENROOT = table(
    {"export": "-e --env", "bind": "-m --mount", "other": "-c --rc --conf"},
    {"flag": "-r --root -w --rw"},
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
        "publish": "-p --publish",
        "restart": "--restart",
        "other": "--name --user -u -h"
        " --hostname --entrypoint -m --memory --cpus --cpuset-cpus --expose"
        " --cap-drop --security-opt --pid --uts --platform --pull --add-host --dns -l --label --log-driver"
        " --log-opt --group-add --userns --memory-swap --stop-timeout --cgroupns --cidfile --link --ip --mac-address"
        " --volumes-from --memory-swappiness --memory-reservation --kernel-memory -c --cpu-shares --cpu-period"
        " --cpu-quota --cpuset-mems --blkio-weight --cgroup-parent --device-cgroup-rule --detach-keys --dns-option"
        " --dns-search --domainname --health-cmd --health-interval --health-retries --health-timeout --ip6"
        " --isolation --label-file --network-alias --net-alias --oom-score-adj --pids-limit --stop-signal"
        " --storage-opt --sysctl --volume-driver -a --attach --rootfs --systemd --secret --authfile --arch --os",
    },
    {
        "privileged": "--privileged",
        "detach": "-d --detach",
        "rm": "--rm",
        "flag": "-i -t --interactive --tty --publish-all --no-healthcheck --sig-proxy --quiet -q"
        " --init --read-only -P --oom-kill-disable --replace --tls-verify --disable-content-trust",
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
WRAPPER_SYNTAX: dict[str, WrapperSyntax] = {
    "srun": WrapperSyntax(slurm.SRUN, exports="export", separator=","),
    "mpirun": WrapperSyntax(mpi.MPI, exports="export"),
    "mpiexec": WrapperSyntax(mpi.MPI, exports="export"),
    **{name: WrapperSyntax(mpi.MPI, exports="export") for name in MPI_ALTERNATIVES},
    "orterun": WrapperSyntax(mpi.MPI, exports="export"),
    "prterun": WrapperSyntax(mpi.MPI, exports="export"),
    "horovodrun": WrapperSyntax(mpi.HOROVOD),
    "jsrun": WrapperSyntax(mpi.JSRUN, exports="export"),
    "ssh": WrapperSyntax(_SSH, plain=1, host=True, passes_environment=False),
    "apptainer": WrapperSyntax(
        _CONTAINER, plain=1, image=True, subcommands=("exec", "run"), exports="export", separator=","
    ),
    "singularity": WrapperSyntax(
        _CONTAINER, plain=1, image=True, subcommands=("exec", "run"), exports="export", separator=","
    ),
    "docker": WrapperSyntax(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "podman": WrapperSyntax(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "nvidia-docker": WrapperSyntax(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "enroot": WrapperSyntax(_ENROOT, plain=1, image=True, subcommands=("start",), exports="export"),
    "shifter": WrapperSyntax(
        table(
            {
                "image": "--image -i",
                "export": "--env -e",
                "env_file": "--env-file",
                "other": "--volume -V --module -m --workdir -w",
            },
            {},
        ),
        exports="export",
    ),
    "timeout": WrapperSyntax(
        table({"other": "-s --signal -k --kill-after"}, {"flag": "--foreground --preserve-status -v --verbose"}),
        plain=1,
    ),
    "nice": WrapperSyntax(table({"other": "-n --adjustment"}, {})),
    "ionice": WrapperSyntax(table({"other": "-c --class -n --classdata"}, {"flag": "-t"})),
    "numactl": WrapperSyntax(
        table(
            {"other": "-i --interleave -N --cpunodebind -C --physcpubind -m --membind -p --preferred"},
            {"flag": "-l --localalloc -a --all --show -s --hardware -H --balancing -b"},
        )
    ),
    "taskset": WrapperSyntax(table({}, {"flag": "-c --cpu-list -a --all-tasks"}), plain=1),
    "stdbuf": WrapperSyntax(table({"other": "-i --input -o --output -e --error"}, {})),
    "time": WrapperSyntax(
        table({"other": "-f --format -o --output"}, {"flag": "-p -v -a --verbose --portability --append"})
    ),
    "sudo": WrapperSyntax(
        table(
            {"other": "-u --user -g --group -h --host -p --prompt -C -D --chdir"},
            {"flag": "-E --preserve-env -H -n -S -b -i -s"},
        ),
        variables=True,
    ),
    "exec": WrapperSyntax(table({"other": "-a"}, {"flag": "-c -l"})),
    "nsys": WrapperSyntax(
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
    "ncu": WrapperSyntax(
        table({"other": "-o --export --set --section -k --kernel-name -c --launch-count --target-processes"}, {})
    ),
    "conda": WrapperSyntax(
        table(
            {"name": "-n --name", "prefix": "-p --prefix", "cwd": "--cwd"},
            {"flag": "--no-capture-output --live-stream -v"},
        ),
        subcommands=("run",),
    ),
    "uv": WrapperSyntax(
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
    "poetry": WrapperSyntax(_NONE, subcommands=("run",)),
    "pipenv": WrapperSyntax(_NONE, subcommands=("run",)),
    "pixi": WrapperSyntax(table({"other": "-e --environment --manifest-path"}, {}), subcommands=("run",)),
    "pdsh": WrapperSyntax(
        table({"hosts": "-w", "other": "-x -f -R -l -t -u -g -M -N"}, {"flag": "-S -b -d"}), passes_environment=False
    ),
    "clush": WrapperSyntax(
        table({"hosts": "-w", "other": "-g -f -x -X -l -t -u -o -m -O -R"}, {"flag": "-a -b -B -S -L -q -v"}),
        passes_environment=False,
    ),
    "parallel-ssh": WrapperSyntax(
        table(
            {
                "hostfile": "-h --hosts",
                "other": "-H --host -l --user -p --par -o --outdir -e --errdir -t --timeout -O --option -x -X",
            },
            {"flag": "-i --inline -P --print -v --verbose -A --askpass -I --send-input"},
        ),
        passes_environment=False,
    ),
    "flock": WrapperSyntax(table({"other": "-w --timeout -E"}, {"flag": "-n -x -s -u -o"}), plain=1),
    "aprun": WrapperSyntax(
        table(
            {"np": "-n", "per_node": "-N", "other": "-d -j -S -L -cc -e -p -F -m -r -sn -sl"}, {"flag": "-B -b -q -ss"}
        )
    ),
    "pbsdsh": WrapperSyntax(table({"other": "-n -c -h"}, {"flag": "-s -u -v -o"}), passes_environment=False),
    "blaunch": WrapperSyntax(table({"other": "-u -use-login-shell"}, {"flag": "-n -z"}), plain=0),
    "ibrun": WrapperSyntax(table({"other": "-n -o"}, {})),
}
WRAPPER_SYNTAX["pssh"] = WRAPPER_SYNTAX["parallel-ssh"]
WRAPPER_SYNTAX.update(mamba=WRAPPER_SYNTAX["conda"], micromamba=WRAPPER_SYNTAX["conda"])
PLAIN_NAMES = {
    "mpiexec": "mpirun",
    "parallel-ssh": "pdsh",
    "pssh": "pdsh",
    **dict.fromkeys(MPI_ALTERNATIVES, "mpirun"),
    "orterun": "mpirun",
    "prterun": "mpirun",
    "singularity": "apptainer",
    "nvidia-docker": "docker",
}
SIMPLE = frozenset(["nohup", "command", "builtin", "setsid", "unbuffer", "catchsegv", "eatmydata", "!"])
