"""Packages that a script installs before it launches: `pip install ...`, `uv pip install ...`, `conda install ...`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from preflight._util.budget import note_skipped
from preflight.model.job import WHOLE_JOB, Claim, Known, Reference, Strength, Unresolved
from preflight.sources.base import Command, Reading, Tree, Word
from preflight.sources.configs.packages import claims, conda_package_of, cuda_of, package_of
from preflight.sources.launchers.option_parser import known_prefix, text_of
from preflight.sources.launchers.python_program import is_python
from preflight.sources.launchers.wrappers import program_name, strip_wrappers

#: Options of `pip install` and `conda install` that take the next word, from their own help (pip 25.0, conda 24.11).
_WITH_VALUE = frozenset(
    (
        *("-c", "--constraint", "-r", "--requirement", "-e", "--editable", "-t", "--target", "--platform"),
        *("--python-version", "--implementation", "--abi", "--root", "--prefix", "--src", "--upgrade-strategy"),
        *("-C", "--config-settings", "--global-option", "--no-binary", "--only-binary", "--progress-bar", "--report"),
        *("--root-user-action", "-i", "-f", "--log", "--proxy"),
        *("--retries", "--timeout", "--exists-action", "--trusted-host", "--cert", "--client-cert", "--cache-dir"),
        *("--use-feature", "--use-deprecated", "--python", "--keyring-provider", "--group", "--build-option"),
        *("-n", "--name", "-p", "--channel", "--file"),
    )
)
#: The beginnings of options that take the address of wheels.
_ADDRESSES = ("--index", "--extra-index", "--find-l", "--default-index")
_MAX_CLAIMS = 200
#: The name before an unknown version: `torch==$VERSION`.
_PACKAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*(?=(?:\[[^\]]*\])?[=<>~!]=)")
_INSTALL = Known("install")
#: Options, addresses and versions that ask for a build of the day.
_NIGHTLY = re.compile(
    r"--pre|--nightly|https?://\S*(?:/nightly/|develop\.html|/develop/)\S*|paddlepaddle(?:-gpu)?==0\.0\.0\S*"
)


def read_installs(commands: Iterable[Command], tree: Tree) -> Reading:
    """State one claim per install command and one per framework it names, and refer to requirement files."""
    found: list[Claim] = []
    references: list[Reference] = []
    for command in commands:
        if len(found) >= _MAX_CLAIMS:
            note_skipped(f"only the first {_MAX_CLAIMS} installed packages were read")
            break
        if not any(word.value == _INSTALL for word in command.words[:12]):
            continue
        stripped = strip_wrappers(command)
        rest = _install_words(stripped.words)
        if rest is None:
            continue
        conda, words = rest
        starters = [w.name for w in stripped.wrappers if w.name in ("srun", "mpirun", "horovodrun", "pdsh", "clush")]
        source = starters[0] if starters else "pip"
        texts = [text_of(word) for word in words]
        if words:
            shown = " ".join(word.spelling for word in stripped.words)
            line = tuple(text or "" for text in texts)
            found.append(
                Claim(
                    "installing_line",
                    Known(line),
                    command.span,
                    shown,
                    source,
                    strength=Strength.FLAG,
                    condition=command.condition,
                )
            )
        _read_packages(words, command, source, tree, found, references, conda=conda)
    return Reading(claims=tuple(found), references=tuple(references))


def _install_words(words: Sequence[Word]) -> tuple[bool, Sequence[Word]] | None:
    """Whether conda installs, and the words after `install`; None for any other command."""
    if not words:
        return None
    name = program_name(words)
    first_words = [text_of(word) for word in words[:5]]
    start = 1
    if is_python(words) and first_words[1:3] == ["-m", "pip"]:
        name, start = "pip", 3
    elif name == "uv" and first_words[1:2] == ["pip"]:
        name, start = "pip", 2
    conda = name in ("conda", "mamba", "micromamba")
    if not conda and not name.startswith("pip"):
        return None
    return (conda, words[start + 1 :]) if len(words) > start and text_of(words[start]) == "install" else None


def _read_packages(
    words: Sequence[Word],
    command: Command,
    source: str,
    tree: Tree,
    found: list[Claim],
    references: list[Reference],
    *,
    conda: bool,
) -> None:
    option = ""
    for word in words:
        text = text_of(word)
        if text is None:
            named = _PACKAGE_NAME.match(known_prefix(word)) if not option else None
            package = package_of(named[0]) if named is not None else None
            if package is not None:
                why = Unresolved(f"the version of {package.name} is known only at run time")
                claim = Claim("package", why, word.span, word.spelling, source, condition=command.condition)
                found.append(claim)
            option = ""
            continue
        if _NIGHTLY.fullmatch(text.partition("=")[2] if text.startswith("--index") else text):
            found.append(
                Claim("nightly_build", Known(text), word.span, word.spelling, source, condition=command.condition)
            )
        if option or text.startswith("-"):
            name, _, value = (option, "", text) if option else text.partition("=")
            option = name if not option and not value and _takes_value(name) else ""
            # conda's `-c` is a channel.
            names_file = name in ("-r", "--requirement", "--constraint", "--file") or (name == "-c" and not conda)
            if names_file and value:
                target = tree.resolve(_path_from_directory(command, value), relative_to=word.span.path)
                if target is not None:
                    references.append(Reference(target, "requirements", word.span))
            elif (name in ("-i", "-f") or name.startswith(_ADDRESSES)) and cuda_of(value):
                claim = Claim("wheel_cuda", Known(cuda_of(value)), word.span, word.spelling, source)
                found.append(claim)
            continue
        package = conda_package_of(text) if conda else package_of(text)
        if package is not None:
            found.extend(
                claims(package, word.span, word.spelling, source, scope=WHOLE_JOB, condition=command.condition)
            )


def _takes_value(name: str) -> bool:
    """Whether an option takes the next word; pip accepts a long one in short: `--extra-index`."""
    return name in _WITH_VALUE or name.startswith(_ADDRESSES)


def _path_from_directory(command: Command, path: str) -> str:
    """A path relative to the command's working directory, when that is known."""
    return f"{command.directory}/{path}" if command.directory and not path.startswith("/") else path
