"""`sky launch task.yaml`, `dstack apply -f train.dstack.yml`, `mcli run -f run.yaml`: lines that submit a task file.

Sources: sky/client/cli/command.py (SkyPilot 0.14), dstack/_internal/cli/commands/apply.py (dstack 0.20), mcli's run
command. The task file determines what runs. If the line itself changes nodes, GPUs or variables, the file alone does
not determine the job, and remains a separate job.
"""

from __future__ import annotations

import posixpath

from preflight.model.job import Reference
from preflight.sources.base import Command, LaunchLine, Reading, SourceFile, Tree
from preflight.sources.launchers.option_parser import known_prefix, text_of, texts
from preflight.sources.launchers.paths import relative
from preflight.sources.launchers.wrappers import strip_wrappers
from preflight.sources.orchestrators.orchestrator import task_role

#: The orchestrator of each program.
_ORCHESTRATORS = {"sky": "skypilot", "dstack": "dstack", "mcli": "mcli"}
#: The program, and the words after it that start a task.
_SUBMITTING_WORDS = {
    "sky": (("launch",), ("exec",), ("jobs", "launch"), ("spot", "launch")),
    "dstack": (("apply",), ("run",)),
    "mcli": (("run",),),
}
#: Options that change the requests of the file.
_CHANGING_OPTIONS = (
    *("--num-nodes", "--gpus", "--env", "--env-file", "--instance-type", "-e", "--gpu", "--nodes", "--gpu-type"),
    *("--command",),
)
_SUFFIXES = (".yaml", ".yml")


def submitted_task(command: Command, tree: Tree) -> Reading:
    """A reference to the task file that a line submits; empty for any other line."""
    stripped = strip_wrappers(command)
    words = [text_of(word) or "" for word in stripped.words[:4]]
    program = posixpath.basename(words[0]) if words else ""
    verbs = _SUBMITTING_WORDS.get(program)
    if verbs is None or not any(tuple(words[1 : len(verb) + 1]) == verb for verb in verbs):
        return Reading()
    if any(known_prefix(word).partition("=")[0] in _CHANGING_OPTIONS for word in stripped.words[1:]):
        return Reading()
    line = LaunchLine(f"{command.span.path}:{command.span.line}", stripped.words, command)
    for word in stripped.words[2:]:
        for text in texts(word.value):
            target = relative(text, line, tree) if text.lower().endswith(_SUFFIXES) else None
            if target is not None and isinstance(tree.read(target), SourceFile):
                return Reading(references=(Reference(target, task_role(_ORCHESTRATORS[program]), word.span),))
    return Reading()
