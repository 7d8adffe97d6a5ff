"""Which frameworks are to be installed, and in which versions: requirement texts of pip and conda become claims.

Only distributions whose version ranks have to agree on, or that have to fit one another, are stated; what else a job
installs is its own business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Known, Scope, Span, Strength
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern

#: Distribution (or conda package) to the name it is stated under.
_TRACKED = {
    **{name: name for name in ("torch", "torchvision", "torchaudio", "deepspeed", "accelerate", "transformers")},
    **{name: name for name in ("horovod", "ray", "lightning", "megatron-core", "jax", "flash-attn", "apex", "peft")},
    **{name: name for name in ("mosaicml", "colossalai", "mpi4py", "transformer-engine", "xformers")},
    "pytorch-lightning": "lightning",
    "pytorch": "torch",
    "tensorflow-gpu": "tensorflow",
    "tensorflow": "tensorflow",
    "paddlepaddle": "paddlepaddle",
    "paddlepaddle-gpu": "paddlepaddle",
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,80}[A-Za-z0-9])?"
_REQUIREMENT = lazy_pattern(
    rf"(?P<name>{_NAME})[ \t]*(?:\[[^\[\]\n]{{0,200}}\])?[ \t]*\(?"
    r"(?P<version>(?:[=<>!~]{1,3}[\w.*+-]{1,60},?){0,20})\)?"
    r"[ \t]*(?P<rest>[;#@\\ -].*)?"
)
_BLANKS = lazy_pattern(r"[ \t]*([=<>!~]{1,3}|,)[ \t]*")
_WHEEL = lazy_pattern(rf"(?:^|.*/)(?P<name>{_NAME}?)-(?P<version>\d[\w.+%]{{0,40}})-[^/]{{1,120}}\.whl(?:#.*)?")
_CONDA = lazy_pattern(rf"(?:[\w.-]{{1,60}}::)?(?P<name>{_NAME})[ \t]*(?P<version>[=<>!~][^#\s]{{0,80}})?(?:[ \t#].*)?")
_CUDA = lazy_pattern(r"\bcu(\d{2,3})\b")


@dataclass(frozen=True, slots=True)
class Package:
    """A tracked distribution. `version` is a specifier as pip takes it; empty where none is given."""

    name: str
    version: str
    cuda: str = ""


def package_of(text: str) -> Package | None:
    """The tracked distribution that one requirement of pip names; None for any other."""
    text = text.strip()
    wheel = _WHEEL.fullmatch(text.partition(" @ ")[2].strip() or text) if ".whl" in text else None
    if wheel is not None:
        return _package(wheel["name"], "==" + wheel["version"].replace("%2B", "+"))
    found = _REQUIREMENT.fullmatch(_BLANKS.sub(r"\1", text))
    if found is None or (found["rest"] or "").startswith("@"):
        return None
    return _package(found["name"], found["version"].strip(","))


def conda_package_of(text: str) -> Package | None:
    """The same for one entry of conda's: `pytorch=2.1`, `pytorch-cuda=12.1`."""
    found = _CONDA.fullmatch(text.strip())
    if found is None:
        return None
    version = found["version"] or ""
    if re.match(r"=(?!=)", version):
        # `=2.1=build` means any 2.1; `=2.1.*` the same.
        number = version[1:].partition("=")[0].removesuffix("*").rstrip(".")
        version = f"=={number}.*" if number else ""
    if found["name"].lower() in ("pytorch-cuda", "cudatoolkit"):
        return Package("cuda", version, re.sub(r"[=*<>!~]|\.$", "", version).rstrip("."))
    return _package(found["name"], version)


def cuda_of(text: str) -> str:
    """`11.8` for a text with `cu118` in it; empty without."""
    found = _CUDA.search(text)
    return f"{found[1][:-1]}.{found[1][-1]}" if found else ""


def claims(
    package: Package, span: Span, spelling: str, source: str, *, scope: Scope, condition: str = ""
) -> Iterator[Claim]:
    """What a requirement says: the package, the CUDA its wheel is built for, and Paddle's release where it is fixed."""

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


def _package(name: str, version: str) -> Package | None:
    known = _TRACKED.get(re.sub(r"[-_.]+", "-", name).lower())
    return Package(known, version, cuda_of(version.replace("+", " "))) if known is not None else None
