"""The GPU model that a job requests by name."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from preflight.model.job import Claim, Job, Scope
from preflight.model.job.value import texts
from preflight_rules.data_tables import gpu_rows

_SEPARATORS = r"(?:^|[-_=:/,.&| \"'\[\(])"
_ENDS = r"(?=$|[-_:/,.&| \"'\]\)*])"
#: Node labels whose value names a GPU or a machine type.
_LABELS = re.compile(r".*(?:accelerator|gpu[.-]product|gpu[.-]name|instance-type|gpu[.-]type|gpu[.-]family|sku).*=")


class Gpu(NamedTuple):
    """One GPU model: the memory of its largest variant, and its compute capability (7.0 is Volta)."""

    name: str
    memory_gib: float
    capability: float


def gpu_of(job: Job, scope: Scope) -> tuple[Gpu, Claim] | None:
    """The GPU that the files name for a launch, and the claim; None if they name none or several."""
    found: list[tuple[Gpu, Claim]] = []
    for claim in job.setting("gpu_type", scope):
        found.extend((gpu, claim) for text in texts(claim.value) if (gpu := named(text)) is not None)
    for claim in () if found else job.setting("partition", scope):
        # Sites choose partition names freely: only one that contains a GPU name such as `a100` counts.
        found.extend(
            (gpu, claim)
            for text in texts(claim.value)
            if re.search(r"[avhb][1-3]00", text.lower()) and (gpu := named(text)) is not None
        )
    for claim in job.about("node_label"):
        for text in texts(claim.value):
            gpu = named(text.partition("=")[2]) if _LABELS.match(text) else None
            if gpu is not None:
                found.append((gpu, claim))
    return found[0] if found and len({gpu.name for gpu, _ in found}) == 1 else None


@functools.lru_cache(maxsize=512)
def named(text: str) -> Gpu | None:
    """The GPU that a name such as `nvidia_a100-sxm4-80gb` or `p4d.24xlarge` means; None for any other name."""
    lowered = text.strip().lower()[:120]
    if re.search(r"[1-7]g\.\d+gb|[|!]", lowered):
        # A MIG slice is not a whole GPU, and `a100|h100` is ambiguous.
        return None
    for row in gpu_rows():
        if re.search(f"{_SEPARATORS}(?:nvidia|tesla|geforce|quadro)?(?:{row.pattern}){_ENDS}", lowered):
            return Gpu(row.name, row.memory_gib, row.capability)
    return None


def largest_memory_gib() -> float:
    """The memory of the largest GPU in the table."""
    return max(row.memory_gib for row in gpu_rows())
