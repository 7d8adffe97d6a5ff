"""How long ranks wait for each other before they give up, where nobody says otherwise: per framework, with source."""

from __future__ import annotations

from preflight.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Default:
    """One default. `words` name it behind a duration; where a release changed it, the shorter one is taken.

    Args:
        key: what looks it up, see `preflight/stakes.py`.
        source: where it stands, and the day on which it was looked at.
    """

    key: str
    seconds: int
    words: str
    source: str


DEFAULTS = {
    row.key: row
    for row in (
        Default(
            "rendezvous.static",
            900,
            "torchrun's default for a static rendezvous",
            "torch/distributed/launcher/api.py (LaunchConfig) of torch 2.13, 2026-11-22",
        ),
        Default(
            "rendezvous.dynamic",
            600,
            "torchrun's default for joining a rendezvous",
            "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py of torch 2.13, 2026-11-22",
        ),
        Default(
            "group.nccl",
            600,
            "torch's default for NCCL since 2.2, 30 min before",
            "https://github.com/pytorch/pytorch/pull/110947, 2026-11-22",
        ),
        Default(
            "group.gloo",
            1800,
            "torch's default for Gloo",
            "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group, 2026-11-22",
        ),
        Default(
            "group.deepspeed",
            600,
            "DeepSpeed's default since August 2026, 30 min before",
            "https://github.com/deepspeedai/DeepSpeed/pull/8253, 2026-11-22",
        ),
    )
}
