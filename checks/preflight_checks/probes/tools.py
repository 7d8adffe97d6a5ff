"""How long the vendor's management tool takes to answer: a driver that is about to hang is slow first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

from preflight.agent import command
from preflight.agent.wire import ProbeUnavailable

#: The cheapest query of each tool; the second is used if the first does not exist.
TOOLS = (("nvidia-smi", "-L"), ("rocm-smi", "-i"), ("/opt/rocm/bin/rocm-smi", "-i"))
ANSWER_S = 6.0


@dataclass(frozen=True)
class ToolAnswer:
    """One run of a tool. `exit_code` is None if it did not end within the deadline; `said` is its last line."""

    tool: str
    took_s: float
    exit_code: Optional[int]
    said: str = ""


def management_tool(params: Dict[str, Any]) -> ToolAnswer:
    """Run the first existing tool. Raises ProbeUnavailable if there is none, which is not a fault."""
    for words in TOOLS:
        try:
            ran = command.run(words, deadline_s=ANSWER_S)
        except ProbeUnavailable as error:
            if error.kind == "missing":
                continue
            if error.kind == "timeout":
                return ToolAnswer(words[0], ANSWER_S, None, error.reason)
            raise
        lines = (ran.output + ran.error).strip().splitlines()
        reported = lines[-1][:200] if lines and ran.exit_code else ""
        return ToolAnswer(words[0], round(ran.took_s, 3), ran.exit_code, reported)
    raise ProbeUnavailable("missing", "neither nvidia-smi nor rocm-smi is on the PATH")
