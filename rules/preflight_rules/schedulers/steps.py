"""The steps of a batch script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers

#: Commands of a step that do no work: inspection of nodes and small chores.
CHORES = frozenset(
    (
        *("cat", "chmod", "cp", "curl", "date", "df", "dmesg", "docker", "du", "echo", "enroot", "env", "find"),
        *("free", "git", "head", "hostname", "ibstat", "ibv_devinfo", "id", "ifconfig", "ip", "kill", "killall"),
        *("ln", "ls", "lscpu", "mkdir", "module", "mv", "nvidia-smi", "ping", "pip", "pkill", "podman", "printenv"),
        *("printf", "rm", "rocm-smi", "rsync", "sbcast", "scontrol", "sleep", "stat", "sync", "tail", "tar"),
        *("tee", "test", "touch", "true", "ulimit", "uname", "unzip", "wget", "which", "whoami"),
    )
)


class Step(NamedTuple):
    """One srun of a batch script. `claim` is what it starts; `launch` the launch that it carries, if any."""

    job: Job
    claim: Claim
    launch: Launch | None

    @property
    def subject(self) -> str:
        """The name of the step in a report."""
        return self.claim.scope.launch

    @property
    def scope(self) -> Scope:
        """The scope of its other claims."""
        return self.claim.scope

    def about(self, quantity: str) -> Claim | None:
        """The claims about this step."""
        return next((c for c in self.job.about(quantity, self.scope) if c.scope == self.scope), None)

    def definitely(self, quantity: str) -> bool:
        """Whether a quantity is certainly true for this step."""
        claim = self.about(quantity)
        return claim is not None and claim.value == Known(True)

    def several(self, quantity: str) -> bool:
        """Whether a count is certainly more than one."""
        claim = self.about(quantity)
        found = numbers(job_value((claim,))) if claim is not None else ()
        return bool(found) and min(found) > 1


def steps(job: Job) -> Iterator[Step]:
    """The steps other than short utility commands (`CHORES`), in file order."""
    for claim in job.about("step"):
        if claim.alternatives and all(str(item) in CHORES for item in claim.alternatives):
            continue
        launch = next((launch for launch in job.launches if launch.id == claim.scope.launch), None)
        yield Step(job, claim, launch)
