"""Programs that a script looks up before it starts them: `$(which torchrun)`, `$(command -v python)`.

The path is known only at run time, but the program is known: as a word of a command, the path stands for the program's
name. Any other text made from the path (`dirname $(which nvcc)`) stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.sources.base import UnknownKind, UnknownOrigin
from preflight.sources.shell.shell_document import Hole, Place, Text
from preflight.sources.shell.words import Field, hole, literal

#: Python code that prints the path of a torch launcher: `torch.distributed.run.__file__`, or a composed path.
_LAUNCHER_CODE = re.compile(r"torch\b.*\bdistributed\b.*\b(launch|run)\b", re.DOTALL)
_MAX_WORDS = 12


def path_text(program: str, place: Place, spelling: str) -> Text:
    """The path of an installed program: unknown, but of a known program."""
    origin = UnknownOrigin(UnknownKind.PROGRAM_PATH, program=program)
    return hole(f"where `{program}` is installed", place, spelling, origin=origin)


def looked_up(name: str, words: Sequence[str]) -> str | None:
    """The program whose path a command prints (`which torchrun`), or None; `words` are its arguments."""
    names = [word for word in words if not word.startswith("-")]
    if name == "which" or (name == "command" and words[:1] in (["-v"], ["-V"])) or (name == "type" and "-p" in words):
        return names[-1] if len(names) == 1 else None
    if name.startswith("python") and len(words) == 2 and words[0] == "-c":
        code = _LAUNCHER_CODE.search(words[1])
        return f"site-packages/torch/distributed/{code[1]}.py" if code is not None else None
    return None


def found_programs(fields: list[Field]) -> list[Field]:
    """The words of a command, with each path that was looked up replaced by the program's name."""
    for index, item in enumerate(fields[:_MAX_WORDS]):
        piece = item.text[0] if len(item.text) == 1 else None
        origin = piece.origin if isinstance(piece, Hole) else None
        if piece is not None and origin is not None and origin.kind is UnknownKind.PROGRAM_PATH:
            fields[index] = Field(literal(origin.program, item.place, piece.spelling), item.place)
    return fields
