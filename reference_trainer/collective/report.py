"""The report of one rank of the collective smoke run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional

from reference_trainer.collective import bandwidth, gpu_speed, pace, sharded
from reference_trainer.collective import steps as training
from reference_trainer.common.oracle import Mismatch
from reference_trainer.common.transport import Transport
from reference_trainer.pipeline.stage import PipelineReport


@dataclass(frozen=True)
class RankReport:
    """The results of one rank at the end of a smoke run. Times are seconds since this rank started.

    `digests` are those of all ranks on rank 0, and only the rank's own elsewhere: for many ranks they would otherwise
    make up most of a recording. `exact_digest` is that of the weights after the steps with known gradients, which a
    single process and parameter servers also reach. `windows` show how fast it computes by itself and exchanges data
    with another. `gpu` is the speed of its GPU; None in recordings of older versions, and with paddle. For many steps,
    `losses` and `step_s` hold the first and the last hundred; `steps` is their number.
    """

    rank: int
    world_size: int
    host: str
    backend: str
    device: str
    framework: str
    cuda_version: str = ""
    nccl_version: str = ""
    phase_at_s: Dict[str, float] = field(default_factory=dict)
    operations: int = 0
    mismatches: List[Mismatch] = field(default_factory=list)
    unsupported: List[str] = field(default_factory=list)
    exact_steps: int = 0
    steps: int = 0
    losses: List[float] = field(default_factory=list)
    step_s: List[float] = field(default_factory=list)
    unmoved: List[str] = field(default_factory=list)
    digests: List[str] = field(default_factory=list)
    difference_to_one_process: Optional[float] = None
    teardown: str = ""
    windows: List[pace.Window] = field(default_factory=list)
    sweep: bandwidth.Sweep = field(default_factory=bandwidth.Sweep)
    transport: Transport = field(default_factory=Transport)
    trainer: str = sharded.DDP
    trainer_note: str = ""
    timeline: List[training.StepTiming] = field(default_factory=list)
    pipeline: Optional[PipelineReport] = None
    exact_digest: str = ""
    gpu: Optional[gpu_speed.GpuReport] = None
    #: Why all ranks used gloo although some could have used nccl.
    backend_note: str = ""
