"""Reads the packages that a job installs, with their versions: requirement files, `pyproject.toml` and lock files.

Every distribution is stated under the name that the rules use; the rules determine which of them matter.

Sources: uv 0.9 and Poetry 2.2 (`[[package]]` with name and version), pixi 0.55 (lock file version 6: `packages` with
one address per package), pipenv 2025 (`default` with `version`). A package that a lock file lists in several versions,
for several platforms, has no single version here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from preflight._util.sequences import grouped
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import WHOLE_JOB, Claim, Known, Reference, Scope, Span, Strength
from preflight.sources.base import Reading, SourceFile, Tree, suppressions
from preflight.sources.formats.structured import Kind, Node, NodeClaims

#: Names in the package index or in conda of what has another name here; any other name is its own.
_OTHER_NAMES = {
    "pytorch-lightning": "lightning",
    "lightning-fabric": "lightning",
    "pytorch": "torch",
    "tensorflow-gpu": "tensorflow",
    "paddlepaddle-gpu": "paddlepaddle",
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,80}[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})[ \t]*(?:\[[^\[\]\n]{{0,200}}\])?[ \t]*\(?"
    r"(?P<version>(?:[=<>!~]{1,3}[\w.*+-]{1,60},?){0,20})\)?"
    r"[ \t]*(?P<rest>[;#@\\-].*)?"
)
_BLANKS = re.compile(r"[ \t]*([=<>!~]{1,3}|,)[ \t]*")
_WHEEL = re.compile(rf"(?:^|.*/)(?P<name>{_NAME}?)-(?P<version>\d[\w.+%]{{0,40}})-[^/]{{1,120}}\.whl(?:#.*)?")
_CONDA = re.compile(rf"(?:[\w.-]{{1,60}}::)?(?P<name>{_NAME})[ \t]*(?P<version>[=<>!~][^#\s]{{0,80}})?(?:[ \t#].*)?")
#: `cu118`, and `post118` of Paddle's wheels.
_CUDA = re.compile(r"\b(?:cu|post(?=\d{3}\b))(\d{2,3})\b")


class Package(NamedTuple):
    """A distribution. `version` is a specifier in pip's syntax; empty if none is given."""

    name: str
    version: str
    cuda: str = ""


def package_of(text: str) -> Package | None:
    """Return the distribution that a pip requirement names; None for any other line."""
    text = text.strip()
    wheel = _WHEEL.fullmatch(text.partition(" @ ")[2].strip() or text) if ".whl" in text else None
    if wheel is not None:
        return _package(wheel["name"], "==" + wheel["version"].replace("%2B", "+"))
    found = _REQUIREMENT.fullmatch(_BLANKS.sub(r"\1", text))
    if found is None or (found["rest"] or "").startswith("@"):
        return None
    return _package(found["name"], found["version"].strip(","))


def conda_package_of(text: str) -> Package | None:
    """Return the package of a conda requirement: `pytorch=2.1`, `pytorch-cuda=12.1`."""
    found = _CONDA.fullmatch(text.strip())
    if found is None:
        return None
    version = found["version"] or ""
    if re.match(r"=(?!=)", version):
        # `=2.1=build` means any 2.1, and so does `=2.1.*`.
        number = version[1:].partition("=")[0].removesuffix("*").rstrip(".")
        version = f"=={number}.*" if number else ""
    if found["name"].lower() in ("pytorch-cuda", "cudatoolkit"):
        return Package("cuda", version, re.sub(r"[=*<>!~]|\.$", "", version).rstrip("."))
    return _package(found["name"], version)


#: Paddle's own images for CPUs: those for GPUs and other devices say so in the tag. Then those of Python.
_CPU_IMAGE = re.compile(r"(?:\S+/)?paddlepaddle/paddle:(?P<version>\d+\.\d+\.\d+)(?:-jupyter)?")
_PYTHON_IMAGE = re.compile(r"(?:\S+/)?python:(?P<version>\d+\.\d+)(?:\.\d+)?(?:-[a-z0-9.-]+)?")


def package_of_image(image: str) -> Package | None:
    """Return the wheel in an image of Paddle for CPUs, and the interpreter in one of Python; None for any other
    image.
    """
    if (python := _PYTHON_IMAGE.fullmatch(image.strip())) is not None:
        return Package("python", f"=={python['version']}.*")
    found = _CPU_IMAGE.fullmatch(image.strip())
    return Package("paddlepaddle", f"=={found['version']}") if found is not None else None


def cuda_of(text: str) -> str:
    """Return `11.8` for a string that contains `cu118`; empty if there is no such part."""
    found = _CUDA.search(text)
    return f"{found[1][:-1]}.{found[1][-1]}" if found else ""


def claims(
    package: Package, span: Span, spelling: str, source: str, *, scope: Scope, condition: str = ""
) -> Iterator[Claim]:
    """Yield the claims of a requirement: the package, the CUDA version of its wheel, and Paddle's release if it is
    pinned.
    """

    def claim(quantity: str, value: str) -> Claim:
        return Claim(
            quantity, Known(value), span, spelling, source, scope=scope, strength=Strength.CONFIG, condition=condition
        )

    if package.cuda:
        yield claim("wheel_cuda", package.cuda)
    if package.name == "cuda":
        return
    yield claim("package", package.name + package.version)
    if package.name == "paddlepaddle" and (fixed := re.fullmatch(r"===?(\d[\w.+]*)", package.version)):
        yield claim("paddle_version", fixed[1])


#: What a list of packages says of releases.
_OF_RELEASES = ("package", "wheel_cuda", "paddle_version")


def without_installed(listed: Iterable[Claim], installed: Iterable[Claim]) -> list[Claim]:
    """Return the claims of lists of packages, without those about distributions that the job itself installs."""
    nearer = {_release_subject(claim) for claim in installed if claim.quantity in _OF_RELEASES}
    return [claim for claim in listed if claim.quantity not in _OF_RELEASES or _release_subject(claim) not in nearer]


def _release_subject(claim: Claim) -> str:
    """Return the distribution of a claim, or its other statement about releases."""
    if claim.quantity != "package":
        return f"({claim.quantity})"
    texts_of = (str(each) for each in claim.alternatives or (claim.spelling,))
    return re.split(r"[\[=<>!~\s]", next(texts_of).strip("\"'"))[0]


def _package(name: str, version: str) -> Package:
    own = re.sub(r"[-_.]+", "-", name).lower()
    known = _OTHER_NAMES.get(own, own)
    # Only wheels of Paddle give the CUDA release in `.post118`.
    tag = version if known == "paddlepaddle" else version.replace(".post", "")
    return Package(known, version, cuda_of(tag.replace("+", " ")))


_PIP = re.compile(r"(?:.*[-_.])?(?:requirements?|constraints?)(?:[-_.].*)?\.(?:txt|in)", re.IGNORECASE)
CONDA_NAME = re.compile(r"(?:.*[-_.])?(?:environment|env|conda)(?:[-_.].*)?\.ya?ml", re.IGNORECASE)
_CONDA_KEYS = re.compile(r"^dependencies:[ \t]*(?:#.*)?$", re.MULTILINE)
_INCLUDED = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:[ \t]*=[ \t]*|[ \t]*)(\S{1,300})")
#: An option that takes the address of wheels for one release of CUDA; pip accepts a long option in short.
_INDEX = re.compile(r"(?:-[if]|--(?:index|extra-index|find-l)[a-z-]{0,10})(?:[ \t]*=[ \t]*|[ \t]+)\S*\bcu\d{2,3}\b.*")
_ENTRY = re.compile(r"-[ \t]+(?P<quote>[\"']?)(?P<said>[^\"'\n]{1,300})(?P=quote)[ \t]*(?:#.*)?")
_QUOTED = re.compile(r"\"([^\"\n]{1,300})\"|'([^'\n]{1,300})'")
_POETRY = re.compile(
    r"(?P<name>[\w.-]{1,80})[ \t]*=[ \t]*(?:\{[^}\n]*\bversion[ \t]*=[ \t]*)?[\"'](?P<version>[^\"'\n]{0,80})[\"'].*"
)
_HEAD = 8192


class RequirementsSource:
    """Reads one file that lists packages."""

    name = "requirements"
    roles = ("requirements",)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has the name of a list of packages; YAML must also have conda's keys."""
        name = posixpath.basename(file.path)
        if name == "pyproject.toml" or _PIP.fullmatch(name):
            return True
        in_folder = name.endswith(".txt") and posixpath.basename(posixpath.dirname(file.path)) == "requirements"
        return in_folder or (bool(CONDA_NAME.fullmatch(name)) and bool(_CONDA_KEYS.search(file.text[:_HEAD])))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the frameworks that the file lists, and the files that it includes. Lines of unknown form are
        skipped.
        """
        stated: list[Claim] = []
        references: list[Reference] = []
        for span, text, package in _required_entries(file):
            if package is not None:
                stated.extend(claims(package, span, text, "requirements", scope=scope))
            elif included := _INCLUDED.fullmatch(text):
                target = tree.resolve(included[1], relative_to=file.path)
                if target is not None:
                    references.append(Reference(target, "requirements", span, scope))
            elif _INDEX.fullmatch(text):
                stated.extend(claims(Package("cuda", "", cuda_of(text)), span, text, "requirements", scope=scope))
        return Reading(claims=tuple(stated), references=tuple(references), suppressions=suppressions(file))


def _required_entries(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    name = posixpath.basename(file.path)
    if name == "pyproject.toml":
        return _pyproject(file)
    return _conda(file) if name.endswith((".yml", ".yaml")) else _pip(file)


def _required_lines(file: SourceFile) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file.text.split("\n"), start=1):
        yield number, line.rstrip("\r")


def _span(file: SourceFile, number: int, line: str, text: str) -> Span:
    column = line.find(text) + 1
    return Span(file.path, number, column, number, column + len(text), line[:MAX_SNIPPET_LENGTH])


def _pip(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    for number, line in _required_lines(file):
        text = re.split(r"(?:^|[ \t])#", line, maxsplit=1)[0].strip().removesuffix("\\").strip()
        # A marker may exclude it on this machine; such a line is not certain.
        if not text or ";" in text or len(text) > MAX_SNIPPET_LENGTH:
            continue
        yield _span(file, number, line, text), text, None if text.startswith("-") else package_of(text)


def _conda(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    inside, pip_indent = False, -1
    for number, line in _required_lines(file):
        text = line.strip()
        if not text or text.startswith("#") or len(text) > MAX_SNIPPET_LENGTH:
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0 and not text.startswith("-"):
            inside = text.startswith("dependencies:")
            continue
        if pip_indent >= 0 and indent <= pip_indent:
            pip_indent = -1
        if re.fullmatch(r"-[ \t]+pip:[ \t]*", text):
            pip_indent = indent
        elif inside and (entry := _ENTRY.fullmatch(text)):
            named = entry["said"].strip()
            package = package_of(named) if pip_indent >= 0 else conda_package_of(named)
            yield _span(file, number, line, named), named, package


def _pyproject(file: SourceFile) -> Iterator[tuple[Span, str, Package | None]]:
    section, listing = "", False
    for number, line in _required_lines(file):
        text = line.strip()
        if len(text) > MAX_SNIPPET_LENGTH:
            continue
        if text.startswith("[") and not listing:
            section = text.strip("[] \t")
        elif section == "tool.poetry.dependencies" and (entry := _POETRY.fullmatch(text)):
            version = re.sub(r"^[\^](\d)", r">=\1", entry["version"])
            version = f"=={version}" if version[:1].isdecimal() else version
            yield _span(file, number, line, text), text, package_of(entry["name"] + version.replace("*", ""))
        elif section == "project":
            if re.match(r"dependencies[ \t]*=", text):
                listing = True
            if listing:
                for quoted in _QUOTED.finditer(text):
                    claims = quoted[1] or quoted[2]
                    if ";" not in claims:
                        yield _span(file, number, line, claims), claims, package_of(claims)
                listing = not re.search(r"\][ \t]*(?:#.*)?$", text)


#: The role in which other files refer to such a file.
ROLE = "lock"
#: The lock of each tool that runs programs in its own environment.
LOCKS = {"uv": "uv.lock", "poetry": "poetry.lock", "pixi": "pixi.lock", "pipenv": "Pipfile.lock"}
_NAMES = frozenset((*LOCKS.values(), "pixi.toml"))
_LOCKED = re.compile(
    r"^name[ \t]*=[ \t]*\"(?P<name>[\w.-]{1,80})\"[ \t]*\r?\nversion[ \t]*=[ \t]*\"(?P<version>[^\"\n]{1,80})\"",
    re.MULTILINE,
)
_LOCKED_CONDA = re.compile(
    r"^-[ \t]+conda:[ \t]*\S*/(?P<name>[\w.-]{1,80}?)-(?P<version>\d[\w.]*)-[\w.]+\.(?:conda|tar\.bz2)", re.M
)
_PYPI = re.compile(
    r"^-[ \t]+pypi:[^\n]*\n(?:[ \t]+(?!name:)[^\n]*\n){0,4}[ \t]+name:[ \t]*(?P<name>[\w.-]{1,80})[ \t]*\r?\n"
    r"[ \t]+version:[ \t]*(?P<version>[\w.+!]{1,80})",
    re.MULTILINE,
)


class LockFileSource:
    """Reads one lock file."""

    name = "lock"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has the name of a lock file; such names have no other use."""
        return posixpath.basename(file.path) in _NAMES

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the frameworks that the file pins."""
        found = grouped((package.name, (package, span, spelling)) for package, span, spelling in _locked_entries(file))
        stated: list[Claim] = []
        for entries in found.values():
            if len({package for package, _, _ in entries}) == 1:
                package, span, spelling = entries[0]
                stated.extend(claims(package, span, spelling, self.name, scope=scope))
        return Reading(tuple(stated))


def _locked_entries(file: SourceFile) -> Iterator[tuple[Package, Span, str]]:
    name = posixpath.basename(file.path)
    if name in ("Pipfile.lock", "pixi.toml"):
        yield from _members(file)
        return
    node_claims = NodeClaims(file, "lock")
    for pattern in (_LOCKED_CONDA, _PYPI) if name == "pixi.lock" else (_LOCKED,):
        for match in pattern.finditer(file.text):
            package = package_of(f"{match['name']}=={match['version']}")
            if package is not None:
                yield package, node_claims.places.span(*match.span("version")), f"{match['name']} {match['version']}"


def _members(file: SourceFile) -> Iterator[tuple[Package, Span, str]]:
    from preflight.sources.formats import lenient_json, lenient_toml

    is_json = file.path.endswith(".lock")
    root = (lenient_json if is_json else lenient_toml).parse(file.text).root
    node_claims = NodeClaims(file, "lock")
    for section in ("default",) if is_json else ("dependencies", "pypi-dependencies"):
        for member in root.members_at(section) if root is not None else ():
            package = package_of(member.key + _version(member.node))
            if package is not None:
                yield package, node_claims.span(member.node.at("version") or member.node), node_claims.spelling(member)


def _version(node: Node) -> str:
    """Return `==2.4.0`, `>=2.1,<3`, `2.4.*` as pip writes it; empty if any version is allowed."""
    text = node.text("version") if node.kind is Kind.OBJECT else str(node.value or "")
    if re.fullmatch(r"\d[\w.]*(?:\.\*)?", text):
        return f"=={text}"
    return text if re.fullmatch(r"(?:[=<>!~]{1,3}[\w.*+]+,?){1,6}", text.replace(" ", "")) else ""
