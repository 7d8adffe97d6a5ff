"""What a script installs before it launches: `pip install ...`, `uv pip install ...`, `conda install ...`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from preflight.job import WHOLE_JOB, Claim, Known, Reference, Strength, Unresolved
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, Reading, Tree, Word
from preflight.sources.launchers.options import head, text_of
from preflight.sources.launchers.programs import is_python
from preflight.sources.launchers.wrappers import peel, program_name
from preflight.sources.packages import claims, conda_package_of, cuda_of, package_of

#: Options of `pip install` and `conda install` that take the next word, from their own help (pip 25.0, conda 24.11).
_WITH_VALUE = frozenset(
    (
        *("-c", "--constraint", "-r", "--requirement", "-e", "--editable", "-t", "--target", "--platform"),
        *("--python-version", "--implementation", "--abi", "--root", "--prefix", "--src", "--upgrade-strategy"),
        *("-C", "--config-settings", "--global-option", "--no-binary", "--only-binary", "--progress-bar", "--report"),
        *("--root-user-action", "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--log", "--proxy"),
        *("--retries", "--timeout", "--exists-action", "--trusted-host", "--cert", "--client-cert", "--cache-dir"),
        *("--use-feature", "--use-deprecated", "--python", "--keyring-provider", "--group", "--build-option"),
        *("-n", "--name", "-p", "--channel", "--file", "--index", "--default-index"),
    )
)
_MOST = 200
#: The name in front of a version that is not known: `torch==$VERSION`.
_NAMED = lazy_pattern(r"[A-Za-z][A-Za-z0-9-]*(?=(?:\[[^\]]*\])?[=<>~!]=)")
_INSTALL = Known("install")


def read_installs(commands: Iterable[Command], tree: Tree) -> Reading:
    """One claim for each installing line, one for each framework it names, and references to requirement files."""
    found: list[Claim] = []
    references: list[Reference] = []
    for command in commands:
        if len(found) >= _MOST:
            break
        if not any(word.value == _INSTALL for word in command.words[:12]):
            continue
        peeled = peel(command)
        rest = _installed(peeled.words)
        if rest is None:
            continue
        conda, words = rest
        spreading = [w.name for w in peeled.wrappers if w.name in ("srun", "mpirun", "horovodrun", "pdsh", "clush")]
        source = spreading[0] if spreading else "pip"
        texts = [text_of(word) for word in words]
        if words:
            shown = " ".join(word.spelling for word in peeled.words)
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
        _packages(words, command, source, tree, found, references, conda=conda)
    return Reading(claims=tuple(found), references=tuple(references))


def _installed(words: Sequence[Word]) -> tuple[bool, Sequence[Word]] | None:
    """Whether conda is asked, and the words behind `install`; None for any other command."""
    if not words:
        return None
    name = program_name(words)
    said = [text_of(word) for word in words[:5]]
    start = 1
    if is_python(words) and said[1:3] == ["-m", "pip"]:
        name, start = "pip", 3
    elif name == "uv" and said[1:2] == ["pip"]:
        name, start = "pip", 2
    conda = name in ("conda", "mamba", "micromamba")
    if not conda and not name.startswith("pip"):
        return None
    return (conda, words[start + 1 :]) if len(words) > start and text_of(words[start]) == "install" else None


def _packages(
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
            named = _NAMED.match(head(word)) if not option else None
            package = package_of(named[0]) if named is not None else None
            if package is not None:
                why = Unresolved(f"the version of {package.name} comes from outside")
                claim = Claim("package", why, word.span, word.spelling, source, condition=command.condition)
                found.append(claim)
            option = ""
            continue
        if option or text.startswith("-"):
            name, _, value = (option, "", text) if option else text.partition("=")
            option = name if not option and not value and name in _WITH_VALUE else ""
            if name in ("-r", "--requirement", "-c", "--constraint", "--file") and value:
                target = tree.resolve(_below(command, value), relative_to=word.span.path)
                if target is not None:
                    references.append(Reference(target, "requirements", word.span))
            elif name in ("-i", "--index-url", "--extra-index-url", "-f", "--find-links") and cuda_of(value):
                claim = Claim("wheel_cuda", Known(cuda_of(value)), word.span, word.spelling, source)
                found.append(claim)
            continue
        package = conda_package_of(text) if conda else package_of(text)
        if package is not None:
            found.extend(
                claims(package, word.span, word.spelling, source, scope=WHOLE_JOB, condition=command.condition)
            )


def _below(command: Command, path: str) -> str:
    """A path as the command sees it: relative to where it runs, when that is known."""
    return f"{command.directory}/{path}" if command.directory and not path.startswith("/") else path
