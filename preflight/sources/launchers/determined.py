"""`python3 -m determined.launch.torch_distributed python3 train.py`: one rank on each slot of a Determined experiment.

Source: determined/launch/torch_distributed.py, horovod.py and deepspeed.py of Determined 0.38. The launcher gets nodes,
slots and addresses from the cluster, so the experiment's `slots_per_trial` is the number of ranks. `--trial` names a
class instead of a program.
"""

from __future__ import annotations

from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.option_parser import scan, table
from preflight.sources.launchers.started_program import read_program

_OPTIONS = table({"trial": "--trial", "other": "--hvd-args"}, {"flag": "--autohorovod"}, abbreviations=False)


class DeterminedReader:
    """Reads the command line of Determined's launch layers."""

    name: str = "determined"
    names: tuple[str, ...] = (
        "-m determined.launch.torch_distributed",
        "-m determined.launch.horovod",
        "-m determined.launch.deepspeed",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the program that runs on every slot."""
        scanned = scan(line.words[1:], _OPTIONS)
        started = read_program(line, self.name, scanned.rest, tree, python=False)
        return Reading(claims=started.claims, launches=(started.launch,), references=started.references)
