"""The plan to run the ranks of a smoke run as stages of a pipeline, if the job uses one."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.model.job import Claim, Job
from preflight_checks.requirements.claims import claims_in_force, known_int, scopes
from reference_trainer.pipeline.expected_values import MAX_MICROBATCHES
from reference_trainer.pipeline.schedule import ONE_F_ONE_B
from reference_trainer.pipeline.stage import pipeline_problem

#: Quantities that state the microbatches per step, of Fleet and of DeepSpeed's pipeline engine.
_MICROBATCHES = ("pipeline_micro_batches", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Stages and microbatches of the pipeline in a smoke run. `reason` explains why there is none, for display.

    The schedule is 1F1B, the default of Megatron-LM, DeepSpeed and Fleet.
    """

    stages: int = 0
    microbatches: int = MAX_MICROBATCHES
    claims: tuple[Claim, ...] = ()
    reason: str = "no pipeline is planned"
    schedule: str = ONE_F_ONE_B

    @property
    def params(self) -> dict[str, object]:
        """The parameters of each rank; empty without a pipeline."""
        if self.reason:
            return {}
        return {
            "pipeline": {"stages": self.stages, "microbatches": self.microbatches, "schedule": self.schedule},
        }


def pipeline_plan(job: Job, world_size: int) -> PipelinePlan:
    """The pipeline of the launch with the most stages, if the ranks divide into that many stages."""
    stages, at = max(((known_int(job, "pipeline_parallel_size", s) or 1, -i) for i, s in enumerate(scopes(job))))
    if stages < 2:
        return PipelinePlan(reason="the job has no pipeline of known size")
    scope = scopes(job)[-at]
    claims = claims_in_force(job, "pipeline_parallel_size", scope)
    microbatches = MAX_MICROBATCHES
    for quantity in _MICROBATCHES:
        stated = known_int(job, quantity, scope)
        if stated is not None and stated > 1:
            microbatches = min(stated, MAX_MICROBATCHES)
            claims = (*claims, *claims_in_force(job, quantity, scope))
            break
    reason = pipeline_problem(world_size, stages, microbatches, ONE_F_ONE_B)
    return PipelinePlan(stages, microbatches, claims, reason)
