"""One good file for every built-in source, and the files it names: the seeds of damaged, mutated and large files. They
are listed in samples.toml.

`tests/test_malformed.py` fails for a source without a sample, so that new sources join all of those tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from preflight._util import toml


@dataclass(frozen=True)
class Sample:
    """A file that the source recognises.

    `more` can be repeated between start and end (`{n}` is replaced by a number) to give a larger file of the
    same kind. `beside` holds the files that it names.
    """

    path: str
    start: str
    more: str
    beside: dict[str, str] = field(default_factory=dict)
    end: str = ""

    @property
    def text(self) -> str:
        """The good file."""
        return self.start + self.end

    def large(self, characters: int) -> str:
        """A file of the same kind with about this many characters."""
        count = max(0, characters - len(self.text)) // len(self.more) + 1
        return self.start + "".join(self.more.replace("{n}", str(number)) for number in range(count)) + self.end


SAMPLES: dict[str, Sample] = {name: Sample(**row) for name, row in toml.beside(__file__, "samples.toml").items()}
