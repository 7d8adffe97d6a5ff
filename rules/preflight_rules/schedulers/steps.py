"""The steps of a batch script, gathered from their claims."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Known, Launch, Scope
from preflight.lazy.dataclasses import dataclass
from preflight_rules.reading import job_value, numbers

#: What a step may start without training anything: a look at the nodes, or a small chore.
CHORES = frozenset(
    (
        *("cat", "chmod", "cp", "curl", "date", "df", "dmesg", "docker", "du", "echo", "enroot", "env", "find"),
        *("free", "git", "head", "hostname", "ibstat", "ibv_devinfo", "id", "ifconfig", "ip", "kill", "killall"),
        *("ln", "ls", "lscpu", "mkdir", "module", "mv", "nvidia-smi", "ping", "pip", "pkill", "podman", "printenv"),
        *("printf", "rm", "rocm-smi", "rsync", "sbcast", "scontrol", "sleep", "stat", "sync", "tail", "tar"),
        *("tee", "test", "touch", "true", "ulimit", "uname", "unzip", "wget", "which", "whoami"),
    )
)


@dataclass(frozen=True, slots=True)
class Step:
    """One srun of a batch script. `claim` is what it starts; `launch` the launch that it carries, if any."""

    job: Job
    claim: Claim
    launch: Launch | None

    @property
    def subject(self) -> str:
        """Its name in a report."""
        return self.claim.scope.launch

    @property
    def scope(self) -> Scope:
        """Where its other claims stand."""
        return self.claim.scope

    def about(self, quantity: str) -> Claim | None:
        """What is said of this very step."""
        return next((c for c in self.job.about(quantity, self.scope) if c.scope == self.scope), None)

    def surely(self, quantity: str) -> bool:
        """Whether something is certainly said of it."""
        claim = self.about(quantity)
        return claim is not None and claim.value == Known(True)

    def several(self, quantity: str) -> bool:
        """Whether a count is certainly more than one."""
        claim = self.about(quantity)
        found = numbers(job_value((claim,))) if claim is not None else ()
        return bool(found) and min(found) > 1


def steps(job: Job) -> Iterator[Step]:
    """The steps that do some work, in file order."""
    for claim in job.about("step"):
        if claim.alternatives and all(str(item) in CHORES for item in claim.alternatives):
            continue
        launch = next((launch for launch in job.launches if launch.id == claim.scope.launch), None)
        yield Step(job, claim, launch)
