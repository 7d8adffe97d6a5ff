"""Frameworks that a job installs, with their versions: claims from pip and conda requirements.

Claims are stated only for distributions whose versions must agree between ranks or match each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.job import Claim, Known, Scope, Span, Strength

#: Distribution (or conda package) to the name of its claim.
_TRACKED = {
    **{name: name for name in ("torch", "torchvision", "torchaudio", "deepspeed", "accelerate", "transformers")},
    **{name: name for name in ("horovod", "ray", "lightning", "megatron-core", "jax", "flash-attn", "apex", "peft")},
    **{name: name for name in ("axolotl", "llamafactory", "openrlhf", "paddlenlp", "paddleformers", "trl", "verl")},
    **{name: name for name in ("torchtitan", "skypilot", "dstack", "protobuf")},
    **{name: name for name in ("mosaicml", "colossalai", "mpi4py", "transformer-engine", "xformers")},
    "pytorch-lightning": "lightning",
    "lightning-fabric": "lightning",
    "pytorch": "torch",
    "tensorflow-gpu": "tensorflow",
    "tensorflow": "tensorflow",
    "paddlepaddle": "paddlepaddle",
    "paddlepaddle-gpu": "paddlepaddle",
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,80}[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})[ \t]*(?:\[[^\[\]\n]{{0,200}}\])?[ \t]*\(?"
    r"(?P<version>(?:[=<>!~]{1,3}[\w.*+-]{1,60},?){0,20})\)?"
    r"[ \t]*(?P<rest>[;#@\\ -].*)?"
)
_BLANKS = re.compile(r"[ \t]*([=<>!~]{1,3}|,)[ \t]*")
_WHEEL = re.compile(rf"(?:^|.*/)(?P<name>{_NAME}?)-(?P<version>\d[\w.+%]{{0,40}})-[^/]{{1,120}}\.whl(?:#.*)?")
_CONDA = re.compile(rf"(?:[\w.-]{{1,60}}::)?(?P<name>{_NAME})[ \t]*(?P<version>[=<>!~][^#\s]{{0,80}})?(?:[ \t#].*)?")
#: `cu118`, and `post118` of Paddle's wheels.
_CUDA = re.compile(r"\b(?:cu|post(?=\d{3}\b))(\d{2,3})\b")


class Package(NamedTuple):
    """A tracked distribution. `version` is a specifier in pip's syntax; empty if none is given."""

    name: str
    version: str
    cuda: str = ""


def package_of(text: str) -> Package | None:
    """The tracked distribution that a pip requirement names; None for any other."""
    text = text.strip()
    wheel = _WHEEL.fullmatch(text.partition(" @ ")[2].strip() or text) if ".whl" in text else None
    if wheel is not None:
        return _package(wheel["name"], "==" + wheel["version"].replace("%2B", "+"))
    found = _REQUIREMENT.fullmatch(_BLANKS.sub(r"\1", text))
    if found is None or (found["rest"] or "").startswith("@"):
        return None
    return _package(found["name"], found["version"].strip(","))


def conda_package_of(text: str) -> Package | None:
    """The same for a conda requirement: `pytorch=2.1`, `pytorch-cuda=12.1`."""
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


def cuda_of(text: str) -> str:
    """`11.8` for a string with `cu118` in it; empty without one."""
    found = _CUDA.search(text)
    return f"{found[1][:-1]}.{found[1][-1]}" if found else ""


def claims(
    package: Package, span: Span, spelling: str, source: str, *, scope: Scope, condition: str = ""
) -> Iterator[Claim]:
    """The claims of a requirement: the package, the CUDA version of its wheel, and Paddle's release if it is pinned."""

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
    if known is None:
        return None
    # Only wheels of Paddle give the CUDA release in `.post118`.
    tag = version if known == "paddlepaddle" else version.replace(".post", "")
    return Package(known, version, cuda_of(tag.replace("+", " ")))
