"""Logs with their expected diagnosis: recorded from real runs, or written after public reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from preflight._util import toml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One run's logs. Without a symptom and not healthy, no cause may be named; `suspect` is then the process to
    examine. `completed`: a healthy run's log says that it completed.
    """

    name: str
    folder: Path
    origin: str
    symptom: str = ""
    healthy: bool = False
    completed: bool = False
    rank: int | None = None
    host: str = ""
    role: str = ""
    members: tuple[int, ...] = ()
    line: str = ""
    frame: str = ""
    time: str = ""
    before: tuple[str, ...] = ()
    suspect: int | None = None


def cases() -> list[Case]:
    """All cases of both kinds."""
    found: list[Case] = []
    for origin, needed in (("recorded", "how"), ("written", "source")):
        for row in toml.loads((FOLDER / f"{origin}.toml").read_text("utf-8"))["case"]:
            assert row.pop(needed), f"{row['name']} says not where it is from"
            lists = {key: tuple(row.pop(key)) for key in ("members", "before") if key in row}
            name = row.pop("name")
            found.append(Case(name, FOLDER / "logs" / origin / name, origin, **row, **lists))
    return found
