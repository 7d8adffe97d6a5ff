"""Which GPU a job asks for, as far as a name in its files tells."""

from __future__ import annotations

import functools
import re

from preflight.job import Claim, Job, Scope
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight_rules.reading import texts
from preflight_rules.tables import gpu_rows

_SEPARATORS = r"(?:^|[-_=:/,.&| \"'\[\(])"
_ENDS = r"(?=$|[-_:/,.&| \"'\]\)*])"
#: Labels of nodes whose value names a GPU or a machine.
_LABELS = lazy_pattern(r".*(?:accelerator|gpu[.-]product|gpu[.-]name|instance-type|gpu[.-]type|gpu[.-]family|sku).*=")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU: memory of its largest variant, and its compute capability (7.0 is Volta)."""

    name: str
    memory_gib: float
    capability: float


def gpu_of(job: Job, scope: Scope) -> tuple[Gpu, Claim] | None:
    """The GPU that the files name for a launch, and where; None where they name none, or several."""
    found: list[tuple[Gpu, Claim]] = []
    for claim in job.setting("gpu_type", scope):
        found.extend((gpu, claim) for text in texts(claim.value) if (gpu := named(text)) is not None)
    for claim in () if found else job.setting("partition", scope):
        # Partitions have names of their own making: only one that says as much as `a100` counts.
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
    """The GPU that a name such as `nvidia_a100-sxm4-80gb` or `p4d.24xlarge` means; None when it means none."""
    lowered = text.strip().lower()[:120]
    if re.search(r"[1-7]g\.\d+gb|[|!]", lowered):
        # A slice of one is no whole GPU, and `a100|h100` is either.
        return None
    for row in gpu_rows():
        if re.search(f"{_SEPARATORS}(?:nvidia|tesla|geforce|quadro)?(?:{row.pattern}){_ENDS}", lowered):
            return Gpu(row.name, row.memory_gib, row.capability)
    return None


def largest_memory_gib() -> float:
    """The memory of the largest GPU in the table."""
    return max(row.memory_gib for row in gpu_rows())
