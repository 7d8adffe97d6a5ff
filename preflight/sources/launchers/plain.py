"""`python train.py` with nothing around it that makes ranks, where the script itself says that it is one.

Most plain python lines prepare data or evaluate and are of no interest; only a script whose text asks for a rank
variable by name is looked at.
"""

from __future__ import annotations

from preflight.job import Known, Reference
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, LaunchLine, Reading, SourceFile, Tree
from preflight.sources.launchers.options import text_of
from preflight.sources.launchers.paths import relative
from preflight.sources.launchers.programs import is_python, python_program
from preflight.sources.launchers.stating import Stating
from preflight.sources.launchers.wrappers import peel

_ASKS = lazy_pattern(r"environ\s*\[\s*[\"'](?:LOCAL_RANK|RANK|WORLD_SIZE)[\"']\s*\]")
#: What may stand in front without changing what the script finds in its environment.
_HARMLESS = frozenset({"env", "time", "nohup", "nice", "taskset", "numactl", "exec"})


def plain_program(command: Command, tree: Tree) -> Reading:
    """The claim that a script runs as one process, and the reference to it; nothing for any other command."""
    peeled = peel(command)
    if not is_python(peeled.words) or any(wrapper.name not in _HARMLESS for wrapper in peeled.wrappers):
        return Reading()
    found = python_program(peeled.words)
    if found is None or found.module or not found.words or command.outer is not None:
        return Reading()
    if any(name in command.environment for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")):
        return Reading()
    word = found.words[0]
    line = LaunchLine(f"{command.span.path}:{command.span.line}", peeled.words, command)
    path = relative(text_of(word) or "", line, tree)
    file = tree.read(path) if path is not None and path.endswith(".py") else None
    if path is None or not isinstance(file, SourceFile) or not _ASKS.search(file.text):
        return Reading()
    stating = Stating("python", condition=command.condition)
    first = peeled.words[0]
    stating.say("plain_program", Known(path), first.span, f"{first.spelling} {word.spelling}")
    return Reading(claims=tuple(stating.claims), references=(Reference(path, "script", word.span),))
