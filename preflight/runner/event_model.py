"""The part of a smoke run's event that the head uses, with the range of every number, validated before anything reads
it.

Events carry more data, which is kept as evidence and is not read during the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from preflight._util.validation import format_errors
from preflight.agent import rank_events

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_PHASES = frozenset(("", rank_events.LISTENING, *rank_events.ORDER, *rank_events.PS_ORDER))


def _known_phase(phase: str) -> str:
    if phase not in _PHASES:
        raise ValueError("it is not a phase of a smoke run")
    return phase


#: Ranks of one run, and indexes within their roles.
_MAX_RANKS = 1 << 20


@cache
def _validator() -> TypeAdapter[Any]:
    """The model of an event; built, and pydantic imported, on first use."""
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

    _Text = Annotated[str, Field(max_length=4096)]
    _Rank = Annotated[int, Field(ge=-1, le=_MAX_RANKS)]
    _Count = Annotated[int, Field(ge=0, le=1 << 53)]
    _Seconds = Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)]

    class RankEvent(BaseModel):
        """An event of a rank, or of the agent about one. Every field is optional, but must have its type if present."""

        model_config = ConfigDict(extra="allow", strict=True, frozen=True)

        event: _Text = ""
        phase: Annotated[_Text, AfterValidator(_known_phase)] = ""
        what: _Text = ""
        progress: _Count = 0
        collective: _Count = 0
        beat: _Count = 0
        inside: bool = False
        loading: bool = False
        idle: bool = False
        again: bool = False
        consequence: bool = False
        waiting_for: Annotated[list[_Rank], Field(max_length=1 << 16)] = []
        seconds: _Seconds = 0.0
        since_s: _Seconds = 0.0
        starved_s: _Seconds = 0.0
        details: Annotated[dict[str, Any], Field(max_length=1000)] = {}
        rank: _Rank = 0
        to: _Rank = 0
        worker: _Rank | _Text | None = None
        spare: _Rank | None = None
        result: _Text = ""
        endpoint: _Text = ""
        problem: _Text = ""
        error: Annotated[str, Field(max_length=1 << 18)] = ""
        stacks: Annotated[str, Field(max_length=1 << 16)] = ""
        state: _Text = ""
        pid: Annotated[int, Field(ge=0, le=1 << 31)] = 0

    return TypeAdapter(RankEvent)


def problem_with(data: Mapping[str, Any], *, role: str = "") -> str:
    """Why a rank of this role, or an agent, cannot send this event, with the field; empty if it can."""
    from pydantic import ValidationError

    try:
        event = _validator().validate_python(dict(data))
    except ValidationError as error:
        return format_errors(error)
    if event.event == rank_events.DECIDED:
        return "event: only the head names the culprit"
    if event.event == rank_events.HEAD_PAUSED:
        return "event: only the head reports its own pauses"
    if event.event == rank_events.REPLACED and role != "server":
        return "event: only a server replaces a worker by a backup worker"
    return ""
