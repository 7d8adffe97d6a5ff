"""Targets: output: reports of hostile text in every format, and texts with secrets."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from unittest import mock
from xml.etree import ElementTree

from markdown_it import MarkdownIt

from preflight._util.redaction import redact, scrub
from preflight.engine.report import Report
from preflight.plugins import registry
from preflight.reporters.base import Style
from tests.fuzz import seeds
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.shown import Elements, elements, no_commands, no_control_characters
from tests.fuzz.target import Fault, Target
from tests.fuzz.words import ODD
from tests.reporters import generated

_STYLES = (
    Style(),
    Style(width=40, color=True, verbosity=2),
    Style(concise=True),
    Style(height=12, verbosity=-1),
    Style(statistics=True),
)
_JSON = ("json", "sarif", "gitlab")
SPLIT = b"\x1f"
_MARKUP = ("html_inline", "html_block", "image", "link_open", "fence", "code_block")


def targets() -> Iterator[Target]:
    """Each format, and redaction."""
    for name in ("text", "html", "github", "github-summary", "junit", "openmetrics", *_JSON, "hosts"):
        yield Target(
            f"report-{name}",
            functools.partial(_rendered, name),
            texts,
            max_file_bytes=8192,
            limits=Limits(4.0, 192 * MIB),
            prepare=_harmless if name == "html" else bool,
        )
    yield Target("redact", _redacted, _secrets, max_file_bytes=64 * 1024)


def texts() -> Iterator[bytes]:
    """Odd texts, as inputs of `hostile`."""
    for number in range(12):
        yield bytes((number * 7,)) + SPLIT.join(odd.encode("utf-8", "replace") for odd in ODD[number::6])
    for number in range(6):
        yield bytes((number * 11,)) + SPLIT.join(odd.encode("utf-8", "replace") for odd in generated.ODD[number::4])


def hostile(data: bytes) -> Report:
    """A report whose kind depends on the first byte, with `data` in every untrusted text."""
    pieces = [part.decode("utf-8", "surrogateescape") for part in data[1:].split(SPLIT)]
    supply = itertools.cycle(pieces or [""])
    with mock.patch.object(generated, "_text", lambda dice: next(supply)):
        return generated.report(data[0] % 50 * 2 if data else 0)


def _rendered(name: str, data: bytes) -> None:
    report = hostile(data)
    for reporter in _reporters(name):
        for style in _STYLES if name == "text" else _STYLES[:1]:
            written = reporter.render(report, style)
            if written != reporter.render(report, style):
                raise Fault("one report is written in two ways", name)
            _judged(name, written.decode("utf-8"))


def _reporters(name: str):  # type: ignore[no-untyped-def]
    found = registry.load(registry.REPORTERS).items
    return [one for one in found if one.name == name or (name == "hosts" and one.name.endswith("-hosts"))]


def _judged(name: str, text: str) -> None:
    if name == "text":
        no_control_characters(text)
        no_commands(text)
    elif name == "html":
        _page(elements(text), _harmless())
    elif name == "github":
        no_control_characters(text)
        for line in text.split("\n")[:-1]:
            if not line.startswith(("::notice ", "::warning ", "::error ")):
                raise Fault("a line is not a command of ours", line[:80])
    elif name == "github-summary":
        no_control_characters(text)
        _markdown(text)
    elif name == "junit":
        ElementTree.fromstring(text)
    elif name == "openmetrics":
        no_control_characters(text)
        if not text.endswith("# EOF\n") or text.count("\n# EOF") > 1:
            raise Fault("metrics do not end once")
    elif name in _JSON:
        json.loads(text)
    else:
        no_control_characters(text)


@functools.cache
def _harmless() -> Elements:
    """All elements of pages without hostile text."""
    found = Elements()
    (reporter,) = _reporters("html")
    for seed in range(0, generated.COUNT, 2):
        page = elements(reporter.render(hostile(bytes((seed // 2,)) + b"plain"), Style()).decode())
        found.names |= page.names
        found.targets |= page.targets
    return found


def _page(found: Elements, known: Elements) -> None:
    strange = found.names - known.names
    if strange:
        raise Fault("a page holds an element that is not ours", repr(sorted(strange)[:4]))
    if found.targets - known.targets:
        raise Fault("a page leads somewhere that is not ours", repr(sorted(found.targets - known.targets)[:4]))


def _markdown(text: str) -> None:
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        for inner in (token, *(token.children or ())):
            if inner.type in _MARKUP and inner.content != "<br>":
                raise Fault("a summary holds markup of a stranger", f"{inner.type}: {inner.content[:80]}")


def _redacted(data: bytes) -> None:
    """Redaction does not crash, is bounded, and is idempotent."""
    text = data.decode("utf-8", "replace")
    once = scrub(text)
    if scrub(once) != once:
        raise Fault("redaction is not idempotent", f"{once[:200]!r} -> {scrub(once)[:200]!r}")
    name, _, value = text.partition("=")
    redact(name, value)


def _secrets() -> Iterator[bytes]:
    yield b"export HF_TOKEN=hf_abcdefghijklmnopqrstuvwx WANDB_API_KEY='0123456789abcdef0123456789abcdef01234567'"
    yield b'git clone https://user:pa%40ss@host.example/x.git --password "a b" --token=$TOKEN -p secret'
    yield b'{"api_key": "sk-abcdefghijklmnopqrstuvwx", "password": ["a", "b"], "n": 3}'
    yield b"env:\n  - name: DB_PASSWORD\n    value: hunter2\n  - {name: TOKEN, valueFrom: {secretKeyRef: {name: a}}}\n"
    yield b"-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----\n"
    yield b"Authorization: Bearer abc.def.ghi\n"
    yield from itertools.islice(seeds.with_suffix(".sh", ".yaml", ".py", ".json", ".env"), 60)
