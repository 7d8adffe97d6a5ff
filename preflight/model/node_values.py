"""The properties of a node that a user may require of all nodes, and the job that states these requirements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from preflight._util.spans import Span, span_of
from preflight._util.suggest import nearest
from preflight.model.job import Claim, Job, Known
from preflight.model.smoke_options import COMMAND_LINE

#: What may be required of a node, and what the value means. Sizes are in GiB, rates in Gbit/s.
PROPERTIES = {
    "gpus": "number of GPUs",
    "gpu": "model of the GPUs, or a part of its name",
    "gpu-memory": "memory of the smallest GPU, in GiB",
    "driver": "version of the GPU driver",
    "cuda": "newest CUDA version that the driver supports",
    "os": "distribution and its version, or a part of this text",
    "kernel": "release of the kernel",
    "processor": "model of the processor, or a part of its name",
    "cpus": "processors that are online",
    "memory": "memory, in GiB",
    "rdma": "RDMA ports that are active",
    "rdma-rate": "rate of the slowest active RDMA port, in Gbit/s",
    "python": "version of the Python that the agent runs with",
}
#: Properties that are versions, of which `driver=550` requires only the first part, and those that are numbers.
VERSIONS = ("driver", "cuda", "kernel", "python")
NUMBERS = ("gpus", "gpu-memory", "cpus", "memory", "rdma", "rdma-rate")

#: The value of a property of something that a node does not have.
NONE = "none"

_REQUIREMENT = re.compile(r"\s*([A-Za-z][\w-]{0,40})\s*(>=|==|=)\s*(\S.{0,200}?)\s*", re.ASCII)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What every node must have.

    Args:
        name: one of `PROPERTIES`.
        comparison: `>=` if the value is the least that is accepted; `=` if it may be a part: of a version its first
            numbers, of a text any part; `==` if it must be the whole value.
        value: as the user wrote it.
    """

    name: str
    comparison: Literal["=", "==", ">="]
    value: str

    @property
    def text(self) -> str:
        """As on the command line: `driver>=535`."""
        return f"{self.name}{self.comparison}{self.value}"


def parse_requirement(text: str) -> Requirement:
    """Parse `gpus=8` or `driver>=535`. Raises ValueError with what is wrong and the known names."""
    found = _REQUIREMENT.fullmatch(text)
    if found is None:
        raise ValueError("expected NAME=VALUE, NAME==VALUE or NAME>=VALUE, as in gpus=8 or driver>=535")
    name, comparison, value = found.groups()
    name = name.lower().replace("_", "-")
    if name not in PROPERTIES:
        near = nearest(name, PROPERTIES)
        hint = f"did you mean {near!r}? " if near else ""
        raise ValueError(f"unknown property {name!r}; {hint}known: {', '.join(PROPERTIES)}")
    if name in NUMBERS and not _NUMBER.fullmatch(value):
        raise ValueError(f"{name} is a number ({PROPERTIES[name]}), not {value!r}")
    if comparison == ">=" and name not in (*NUMBERS, *VERSIONS):
        raise ValueError(f"{name} is a text and has no order; use {name}={value}")
    if name in VERSIONS and not value[0].isdigit() and value != NONE:
        raise ValueError(f"{name} is a version, which begins with a digit, or {NONE!r}, not {value!r}")
    return Requirement(name, comparison, value)  # type: ignore[arg-type]


def job_of_nodes(requirements: Sequence[Requirement], golden: str = "", profile: Sequence[Claim] = ()) -> Job:
    """The job of a run that examines nodes alone: it states what the user requires of them.

    Args:
        golden: the node whose properties all others must have; empty for none.
        profile: requirements that a file states, as `requirement_claim` makes them.
    """
    words = [("node_requirement", item.text, f"--expect {item.text}") for item in requirements]
    words += [("golden_node", golden, f"--golden {golden}")] if golden else []
    line = " ".join(("preflight nodes", *(spelling for _, _, spelling in words)))
    claims = [Claim("examines_nodes", Known(True), span_of(COMMAND_LINE, line, 0, len(line)), line, "command line")]
    start = 0
    for quantity, value, spelling in words:
        start = line.index(spelling, start)
        span = span_of(COMMAND_LINE, line, start, start + len(spelling))
        claims.append(Claim(quantity, Known(value), span, spelling, "command line"))
    claims += profile
    # Checks of GPUs compare what a node has with the number that the job uses.
    for claim, item in zip(claims[1:], requirements, strict=False):
        if item.name == "gpus" and float(item.value).is_integer():
            claims.append(
                Claim("gpus_per_node", Known(int(float(item.value))), claim.span, claim.spelling, claim.source)
            )
    return Job("nodes", claims=tuple(claims))


def requirement_claim(requirement: Requirement, span: Span) -> Claim:
    """The claim that a file requires something of every node."""
    return Claim("node_requirement", Known(requirement.text), span, requirement.text, "profile")
