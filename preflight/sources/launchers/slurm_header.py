"""What an `#SBATCH` header asks for beside sizes: signals, arrays, output files, memory, kinds of GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from preflight.job import Known, Plain, Strength, Unresolved, Value, lift
from preflight.sources.base import Directive
from preflight.sources.launchers import slurm
from preflight.sources.launchers.stating import Stating, as_text

_TEXTS = (
    ("signal", "hand_off_signal"),
    ("array", "job_array"),
    ("output", "output_file"),
    ("gpu_bind", "gpu_bind"),
)
_MEMORY = (("mem_per_cpu", "memory_per_cpu_mib"), ("mem_per_gpu", "memory_per_gpu_mib"))
_BARE = {"--requeue": ("requeue", True), "--no-requeue": ("requeue", False), "--exclusive": ("exclusive", True)}
#: `a100:8`, `gpu:a100:8`, `gpu:nvidia_a100-sxm4-80gb:4(S:0-1)`: the kind in the middle.
_KIND = re.compile(r"(?:^|,)(?:gres/)?(?:gpu:)?([A-Za-z0-9][\w.-]*):\d+")


def state_header(stating: Stating, asked: Mapping[str, slurm.Asked], directives: Sequence[Directive]) -> None:
    """State what the header says; sizes are `slurm.state`'s."""
    for dest, quantity in _TEXTS:
        option = asked.get(dest)
        if option is not None:
            _say(stating, quantity, option, as_text(option.value))
    for dest, quantity in _MEMORY:
        option = asked.get(dest)
        if option is not None:
            _say(stating, quantity, option, slurm.mebibytes_of(option.value))
    for dest in ("gpus_per_node", "gres", "gpus", "gpus_per_task"):
        option = asked.get(dest)
        if option is None:
            continue
        if isinstance(option.value, Unresolved):
            _say(stating, "gpu_type", option, option.value)
            break
        if isinstance(option.value, Known) and _kind(option.value.value):
            _say(stating, "gpu_type", option, lift(_kind, option.value))
            break
    else:
        # Where the resource is a bare number, the kind of node often tells.
        option = asked.get("constraint")
        if option is not None:
            _say(stating, "gpu_type", option, as_text(option.value))
    for directive in directives:
        bare = _BARE.get(directive.option)
        if bare is not None:
            stating.say(bare[0], Known(bare[1]), directive.span, directive.spelling, strength=Strength.SCHEDULER)


def _say(stating: Stating, quantity: str, option: slurm.Asked, value: Value) -> None:
    stating.say(quantity, value, option.span, option.spelling, strength=Strength.SCHEDULER)


def _kind(item: Plain) -> Plain:
    match = _KIND.search(str(item)[:200])
    return match[1].lower() if match and match[1].lower() not in ("gpu", "tmpdir", "nvme") else ""
