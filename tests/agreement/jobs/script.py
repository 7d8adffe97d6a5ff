"""Writes a job script line by line, in randomly chosen ways.

Jobs differ in how sizes reach the launch line (literals, variables, defaults, arithmetic, arrays, sourced files), in
how the line is reached (a function, a branch, a second script, a here-document), in the program's arguments and in
exported variables.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

#: Returns free ports for a job.
Ports = Callable[[int], Sequence[int]]


@dataclass
class GeneratedJob:
    """A job: its files by name, and the variables that the caller of `run.sh` sets."""

    launcher: Launcher
    files: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    #: Names of variables that the job exports, which the plan must contain.
    exported: tuple[str, ...] = ()


_NAMES = ("N", "GPUS", "COUNT", "SIZE", "WIDTH", "TOTAL", "HOW_MANY", "K", "PER", "AMOUNT", "NUM", "M", "P", "Q")


class Script:
    """A script under construction, whose sizes are written in randomly chosen ways."""

    def __init__(self, random: Random, job: GeneratedJob, header: Sequence[str] = ()) -> None:
        self.random = random
        self.job = job
        self.header = list(header)
        self.lines: list[str] = []
        self._names = iter(_NAMES)

    def number(self, value: int) -> str:
        """A shell word whose value is this number."""
        name = next(self._names)
        how = self.random.randrange(11)
        if how <= 1:
            return str(value)
        if how == 2:
            self.lines.append(f"{name}={value}")
            return f"${name}"
        if how == 3:
            return f"${{{name}:-{value}}}"
        if how == 4:
            self.lines.append(f"{name}=$(({value + 3} - 3))")
            return f'"${{{name}}}"'
        if how == 5:
            self.lines.append(f"{name}=({' '.join('x' * value)})")
            return f"${{#{name}[@]}}"
        if how == 6:
            self.job.given[f"GIVEN_{name}"] = str(value)
            return f"$GIVEN_{name}"
        if how == 7:
            self.lines += [f"{name}_A={value * 2}", f": ${{{name}:=$(({name}_A / 2))}}"]
            return f"${name}"
        if how == 8:
            devices = ",".join(map(str, range(value)))
            self.lines += [f'{name}_LIST="{devices}"', f"{name}=$(echo ${name}_LIST | tr ',' '\\n' | wc -l)"]
            return f"${name}"
        if how == 9:
            self.lines += [f"IFS=',' read -ra {name} <<< \"{','.join(map(str, range(value)))}\""]
            return f"${{#{name}[@]}}"
        self.job.files[f"{name.lower()}.env"] = f"export {name}={value}\n"
        self.lines.append(f"source ./{name.lower()}.env")
        return f"${name}"

    def word(self, value: str) -> str:
        """A shell word whose value is this text, which contains no blank."""
        name = next(self._names)
        how = self.random.randrange(4)
        if how == 0:
            self.lines.append(f'{name}="{value}"')
            return f"${name}"
        if how == 1:
            return f"${{{name}:-{value}}}"
        return value

    def option(self, name: str, value: str) -> str:
        """An option with its value, in one word or two."""
        return f"{name}={value}" if self.random.random() < 0.5 else f"{name} {value}"

    def exports(self, *, in_front: bool = True) -> str:
        """Export some variables; returns those that are set before the command on the launch line."""
        before = ""
        names = []
        for name in self.random.sample(["TUNE_A", "TUNE_B", "TUNE_C", "TUNE_D"], self.random.randrange(4)):
            value = self.random.choice(["1", "eth0", "a:b", "two words", "x=y", ""])
            names.append(name)
            if in_front and (before or self.random.random() < 0.3):
                before += f"{name}={shlex.quote(value)} "
            elif self.random.random() < 0.5:
                self.lines.append(f"export {name}={shlex.quote(value)}")
            else:
                self.lines += [f"{name}={shlex.quote(value)}", f"export {name}"]
        self.job.exported = (*self.job.exported, *names)
        return before

    def arguments(self, *, plain: bool = False) -> str:
        """The program's arguments as shell words; `plain`: only words that need no quotes in a second shell."""
        found = []
        words = ["--lr 0.1", "--flag", "--steps=10", "--data /srv/data"]
        if not plain:
            words += ["--name 'a b'", '--data "$HERE/data"', "--x '$y'"]
        for _ in range(self.random.randrange(4)):
            word = self.random.choice(words)
            if "$HERE" in word and "HERE=/srv" not in self.lines:
                self.lines.append("HERE=/srv")
            found.append(word)
        how = self.random.randrange(4)
        text = " ".join(found)
        if plain:
            return text
        if how == 0 and text:
            self.lines.append(f"ARGS=({text})")
            return '"${ARGS[@]}"'
        if how == 1 and text and "'" not in text and '"' not in text:
            self.lines.append(f'OPTIONS="{text}"')
            return "$OPTIONS"
        if how == 2:
            return text.replace(" --", " \\\n  --")
        return text

    def finish(self, line: str, *, batch: bool = False) -> None:
        """Write the script, sometimes with the launch in a function, a branch or a script of its own."""
        how = self.random.randrange(8)
        if how == 0:
            self.lines += ["launch() {", f"  {line}", "}", "launch"]
        elif how == 1:
            self.lines += ["MODE=train", 'if [ "$MODE" = "train" ]; then', f"  {line}", "else", "  echo nothing", "fi"]
        elif how == 2 and not batch:
            self.job.files["inner.sh"] = "\n".join(["#!/bin/bash", "set -e", *self.lines, line]) + "\n"
            self.lines = ["bash inner.sh"]
        elif how == 3:
            self.lines += ["KIND=${KIND:-real}", "case $KIND in", f"  real) {line} ;;", "  *) echo nothing ;;", "esac"]
        elif how == 4 and line.count("\n") == 0 and " & " not in line and "&&" not in line:
            self.lines += [f"{line} 2>&1 | tee log.txt"]
        else:
            self.lines.append(line)
        self.job.files["run.sh"] = "\n".join(["#!/bin/bash", *self.header, "set -e", *self.lines]) + "\n"


# Describes a launcher for tests: where it runs, where it is installed, and how its ranks get their identity.


if TYPE_CHECKING:
    from tests.agreement.jobs.script import GeneratedJob, Ports


class Machines(Enum):
    """The machines that a job is started on."""

    HERE = "this machine"
    NODES = "the head of the virtual cluster"
    SLURM = "sbatch, on the head of the virtual cluster"


@dataclass(frozen=True)
class Launcher:
    """One launcher, in one release.

    Args:
        name: its name in the table.
        make: fills a job.
        rank, local_rank, world: variables with the identity of a rank; empty if there is none.
        where: the machines on which its jobs run.
        environment: the folder below `.venv` that it is installed in; empty for that of the tests.
        program: a program that must exist.
        version: a command that prints its release, with `{bin}` for the folder of programs.
    """

    name: str
    make: Callable[[Random, GeneratedJob, Ports], None]
    rank: str = "RANK"
    local_rank: str = "LOCAL_RANK"
    world: str = "WORLD_SIZE"
    where: Machines = Machines.HERE
    environment: str = ""
    program: str = "python"
    version: tuple[str, ...] = ()


def release_of(distribution: str) -> tuple[str, ...]:
    """The command that prints the release of an installed distribution."""
    return ("{bin}/python", "-c", f"import importlib.metadata as m; print(m.version({distribution!r}))")
