"""Asks the real slurmctld about batch scripts: `sbatch --test-only` on the head of a virtual cluster.

The cluster has more of everything than any script asks for, and every partition that the scripts name. A script that it
refuses nevertheless is wrong on every cluster; a refusal because of a name that only a site can know depends on the
cluster.
"""

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.cluster import Cluster
from tests.cluster.node import wait_until
from tests.cluster.slurm import Slurm

_CONFIGURATION = """\
ClusterName=virtual
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/slurm/state
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
MpiDefault=none
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
DefMemPerCPU=1000
NodeName=n[1-512] Sockets=2 CoresPerSocket=64 ThreadsPerCore=2 RealMemory=8000000 TmpDisk=4000000 Gres=gpu:h100:16 \
Feature=h100,nvlink State=CLOUD
PartitionName=gpu Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP
PartitionName=debug Nodes=ALL MaxTime=UNLIMITED State=UP
"""
#: What only the site can say: names of partitions, accounts, features, reservations, and how much there is.
_OF_THE_SITE = re.compile(
    r"invalid partition|[Ii]nvalid account|[Ii]nvalid qos|[Ii]nvalid feature|reservation|licen[cs]e"
    r"|node count specification|AllowSpecResourcesUsage|configuration is not available|time limit is invalid"
    r"|Access/permission"
    r"|Unable to open file|burst buffer|wckey|"
    r"[Ii]nvalid node name|Cluster .* not|dependency|Unspecified error|cpu frequency",
    re.IGNORECASE,
)


def main():
    source, target = map(Path, sys.argv[1:3])
    cases = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(1))
        head = cluster.head
        running = Slurm(cluster, {})
        head.must(["mkdir", "-p", "/run/munge", "/run/slurm/state", "/run/slurm/spool"])
        head.path("/run/munge/munge.key").write_bytes(b"k" * 1024)
        head.path("/run/munge/munge.key").chmod(0o600)
        head.write_text("/etc/slurm/slurm.conf", _CONFIGURATION)
        head.write_text("/etc/slurm/gres.conf", "")
        head.write_text("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        running.start(head, "/usr/sbin/munged", "--foreground", "--force", "--key-file=/run/munge/munge.key")
        wait_until(lambda: head.path("/run/munge/munge.socket.2").exists(), 10, "munged")
        running.start(head, "/usr/sbin/slurmctld", "-D")
        stack.callback(lambda: running.stop(head, "munged"))
        stack.callback(lambda: running.stop(head, "slurmctld"))
        wait_until(lambda: head.run(["sinfo", "-h"], timeout=10).stdout.strip() != "", 20, "slurmctld")
        with target.open("w", encoding="utf-8") as out:
            for case in cases:
                head.write_text("/tmp/job.sh", next(iter(case["files"].values())))
                done = head.run(["sbatch", "--test-only", "/tmp/job.sh"], timeout=30)
                said = "" if done.returncode == 0 else first_line(done.stderr)
                here = said or ""
                out.write(json.dumps({"id": case["id"], "message": "" if depends(said) else said, "here": here}) + "\n")


def depends(said):
    return bool(_OF_THE_SITE.search(said))


def first_line(text):
    """Return the line with the error: the first one, without consequences."""
    lines = [line for line in text.splitlines() if line.startswith(("sbatch:", "allocation"))]
    errors = [line for line in lines if "error" in line or "unrecognized" in line or "invalid" in line.lower()]
    return (errors or lines or text.splitlines() or ["refused without a message"])[0][:300]


if __name__ == "__main__":
    main()
