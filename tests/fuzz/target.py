"""A fuzz target, and the run of one input."""

from __future__ import annotations

import contextlib
import itertools
import re
import traceback
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fuzz import mutation
from tests.fuzz.limits import MIB, Exceeded, Limits
from tests.fuzz.mutation import Mutator

_ROOT = Path(__file__).parents[2]
_OURS = tuple(str(_ROOT / name) for name in ("preflight", "checks", "rules", "reference_trainer"))


USUAL = Limits(2.0, 192 * MIB)


class Fault(Exception):
    """The result of the code is wrong. `kind` names the broken promise."""

    def __init__(self, kind: str, what: str = "") -> None:
        super().__init__(f"{kind}: {what:.600}")
        self.kind = kind


@dataclass(frozen=True)
class Target:
    """One thing to fuzz.

    Args:
        name: also that of its folders of cases and corpus.
        run: takes an input, and raises for a fault.
        seeds: initial inputs, also used for its dictionary.
        words: more words of its format.
        mutate: changes an input with dice.
        max_file_bytes: inputs are cut there.
        limits: those of one input.
        prepare: one-time setup, not charged to an input.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: Callable[[], Iterable[str]] = field(default=tuple)
    mutate: Mutator = mutation.text
    max_file_bytes: int = 16 * 1024
    limits: Limits = USUAL
    prepare: Callable[[], object] = bool

    def warm(self) -> None:
        """Import and prepare everything that runs need, so that no input pays for it."""
        self.prepare()
        for seed in itertools.islice(self.seeds(), 5):
            with contextlib.suppress(Exception):
                self.run(seed[: self.max_file_bytes])

    def tried(self, data: bytes, *, slower: float = 1.0) -> Finding | None:
        """The fault of this input, or None. `slower` is the slowdown of instrumented code."""
        limits = replace(self.limits, cpu_s=self.limits.cpu_s * slower)
        try:
            with limits.held():
                self.run(data[: self.max_file_bytes])
        except (Exception, Exceeded) as error:
            return Finding(_signature(error), "".join(traceback.format_exception(error, limit=-12)), data)
        return None


@dataclass(frozen=True)
class Finding:
    """An input with a fault; findings with the same `signature` probably have the same cause."""

    signature: str
    story: str
    data: bytes

    @property
    def slug(self) -> str:
        """The signature as the name of a folder."""
        plain = re.sub(r"[^A-Za-z0-9]+", "-", self.signature).strip("-").lower()
        return f"{plain[:60]}-{zlib.crc32(self.signature.encode()):08x}"


def _signature(error: BaseException) -> str:
    """The kind of error, and the innermost location in preflight; for a limit only the module."""
    while isinstance(inner := getattr(error, "exceptions", (None,))[0], BaseException):
        error = inner
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OURS)]
    where = ""
    if frames:
        last = frames[-1]
        module = str(Path(last.filename).relative_to(_ROOT))
        where = f" in {module}" if isinstance(error, Exceeded) else f" in {module}:{last.name}"
    if isinstance(error, Fault):
        return error.kind
    if isinstance(error, Exceeded):
        return str(error).partition(":")[0] + where
    return type(error).__name__ + where


def sometimes(data: bytes, *, every: int = 8) -> bool:
    """Whether to run an expensive check with this input; deterministic."""
    return zlib.crc32(data) % every == 0
