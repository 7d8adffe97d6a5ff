"""Whether the ranks of a smoke run are made stages of a pipeline, as the job's own claims say."""

from __future__ import annotations

from preflight.job import Claim, Job
from preflight.lazy.dataclasses import dataclass
from preflight_checks.demands import deciding, known_int, scopes
from reference_trainer.pipeline import refused
from reference_trainer.pipeline_oracle import MOST_MICROBATCHES
from reference_trainer.pipeline_schedule import ONE_F_ONE_B

#: What says how many microbatches go through the pipeline in a step: Fleet's, and DeepSpeed's pipeline engine.
_MICROBATCHES = ("pipeline_micro_batches", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Stages and microbatches of the pipeline in a smoke run. `reason` is why there is none, for people.

    The schedule is 1F1B, which Megatron-LM, DeepSpeed and Fleet follow unless told otherwise.
    """

    stages: int = 0
    microbatches: int = MOST_MICROBATCHES
    claims: tuple[Claim, ...] = ()
    reason: str = "no pipeline is planned"
    schedule: str = ONE_F_ONE_B

    @property
    def params(self) -> dict[str, object]:
        """What is told to each rank; nothing where there is no pipeline."""
        if self.reason:
            return {}
        return {
            "pipeline": {"stages": self.stages, "microbatches": self.microbatches, "schedule": self.schedule},
        }


def pipeline_plan(job: Job, world_size: int) -> PipelinePlan:
    """The pipeline of the launch that has the most stages, where so many ranks can be its stages."""
    stages, at = max(((known_int(job, "pipeline_parallel_size", s) or 1, -i) for i, s in enumerate(scopes(job))))
    if stages < 2:
        return PipelinePlan(reason="the job has no pipeline of known size")
    scope = scopes(job)[-at]
    claims = deciding(job, "pipeline_parallel_size", scope)
    microbatches = MOST_MICROBATCHES
    for quantity in _MICROBATCHES:
        said = known_int(job, quantity, scope)
        if said is not None and said > 1:
            microbatches = min(said, MOST_MICROBATCHES)
            claims = (*claims, *deciding(job, quantity, scope))
            break
    reason = refused(world_size, stages, microbatches, ONE_F_ONE_B)
    return PipelinePlan(stages, microbatches, claims, reason)
