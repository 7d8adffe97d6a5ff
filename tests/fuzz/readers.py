"""Targets: readers of one untrusted file, line or word."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from preflight._util.hostnames import expand_hosts, folded, is_host_range, is_hostname, split_endpoint
from preflight._util.toml import TomlError, parse
from preflight.executors.base import ExecutorError
from preflight.executors.slurm import parse_fields, parse_node, read_node_list
from preflight.sources.base import Reading, SourceFile, suppressions
from preflight.sources.formats import lenient_json, lenient_yaml
from preflight.sources.formats.lenient_toml import Positions
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell.sbatch_directives import gpus_of_gres
from tests.fuzz import seeds, words
from tests.fuzz.target import Fault, Target, sometimes
from tests.samples import SAMPLES


def targets() -> Iterator[Target]:
    """One for each source, and the readers that sources share."""
    for name in SAMPLES:
        yield Target(
            f"source-{name}",
            functools.partial(_source, name),
            functools.partial(seeds.recognised_by, name),
            words.options,
        )
    yield Target("launch-line", _launch_line, _launch_lines, words.options)
    yield Target("json", _json, functools.partial(seeds.with_suffix, ".json"), max_file_bytes=64 * 1024)
    yield Target("yaml", _yaml, functools.partial(seeds.with_suffix, ".yaml", ".yml"), max_file_bytes=32 * 1024)
    yield Target("toml", _toml, _tomls, max_file_bytes=32 * 1024)
    yield Target("comments", _comments, _commented, max_file_bytes=64 * 1024)
    yield Target("hosts", _hosts, lambda: _HOSTS, max_file_bytes=4096)


def _source(name: str, data: bytes) -> None:
    sample = SAMPLES[name]
    tree = MemoryTree({**sample.beside, sample.path: data})
    file = tree.read(sample.path)
    if not isinstance(file, SourceFile):
        return
    reader = seeds.source(name)
    reader.recognises(file)
    role = next(iter(getattr(reader, "roles", ())), "")
    reading = reader.read(file, tree, role=role)
    _places_are_inside(reading, file)
    if sometimes(data):
        again = reader.read(file, tree, role=role)
        if reading != again:
            raise Fault("a file read twice gives two readings", sample.path)


def _places_are_inside(reading: Reading, file: SourceFile) -> None:
    lines = file.text.count("\n") + 1
    for item in (*reading.claims, *reading.notes, *reading.references):
        if item.span.path == file.path and not (1 <= item.span.line <= lines and item.span.column >= 1):
            raise Fault("a place outside its file", repr(item))


def _launch_line(data: bytes) -> None:
    _source("shell", b"#!/bin/bash\n#SBATCH --nodes=2\n" + data)


def _launch_lines() -> Iterator[bytes]:
    """Command lines of the cases: lines that begin with a launcher's name, with their continuations."""
    names = (
        "torchrun",
        "deepspeed",
        "accelerate",
        "srun",
        "mpirun",
        "mpiexec",
        "python",
        "paddle",
        "colossalai",
        "composer",
    )
    names += ("fleetrun", "horovodrun", "ray", "torchx", "sbatch", "apptainer", "docker", "ssh", "pdsh", "env", "nohup")
    found: dict[bytes, None] = {}
    for files in seeds.job_folders():
        for path, content in files.items():
            if path.endswith((".sh", ".sbatch", ".slurm")):
                for line in content.replace(b"\\\n", b" ").split(b"\n"):
                    if line.strip().startswith(tuple(name.encode() for name in names)):
                        found.setdefault(line.strip())
    yield from list(found)[:400]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _json(data: bytes) -> None:
    document = lenient_json.parse(_text(data))
    for _ in document.root.leaves() if document.root is not None else ():
        pass


def _yaml(data: bytes) -> None:
    for document in lenient_yaml.parse_all(_text(data)):
        for _ in document.root.leaves() if document.root is not None else ():
            pass


def _toml(data: bytes) -> None:
    text = _text(data)
    try:
        whole = parse(text)
    except TomlError:
        return
    positions, lines = Positions(text), text.count("\n") + 1
    for path in _key_paths(whole):
        line, column = positions.of(path, value=True)
        if not (1 <= line <= lines and column >= 1):
            raise Fault("a place outside its file", f"{path} at {line}:{column}")


def _key_paths(value: object, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Some paths into the document: the first hundred on each of six levels."""
    inner: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        inner = list(value.items())[:100]
    elif isinstance(value, list):
        inner = list(enumerate(value))[:100]
    for key, item in inner:
        yield (*above, key)
        if len(above) < 6:
            yield from _key_paths(item, (*above, key))


def _tomls() -> Iterator[bytes]:
    yield from seeds.with_suffix(".toml")
    yield from seeds.below(seeds.FIXED / "config", seeds.FIXED / "site-rules")


def _comments(data: bytes) -> None:
    text = _text(data)
    file = SourceFile("run.sh", text, "0" * 64, len(data))
    lines = text.count("\n") + 1
    for found in suppressions(file, signs=("#", "//")):
        if not 1 <= found.line <= lines:
            raise Fault("a place outside its file", repr(found))


def _commented() -> Iterator[bytes]:
    yield b"# preflight: ignore[BAT001, NET002] tried, works\ntorchrun train.py  # preflight: ignore[x]\n"
    yield b"// preflight: ignore[BAT001] reason\n#SBATCH -N 2\nsrun \\\n  a \\\n  b # preflight:ignore[A] c\n"
    yield b'x = "# preflight: ignore[BAT001]"\n# preflight: ignore\n\n# more\ny = 1\n'


_HOSTS = (
    *(b"node[01-04,07],login1", b"node1:8,node2:8", b"10.0.0.1:29500", b"[fe80::1]:2222", b"a[1-2]b[3-4]c", b"(null)"),
    *(b"n[1,3-5].example.org", b"gpu:a100:8(S:0-1),nvme:1", b"NodeName=a State=IDLE+DRAIN Reason=bad cable [x]"),
)


def _hosts(data: bytes) -> None:
    text = _text(data)
    split_endpoint(text)
    gpus_of_gres(text)
    parse_fields(text)
    parse_node(text)
    is_host_range(text)
    try:
        read_node_list(text)
    except ExecutorError:
        pass
    try:
        names = expand_hosts(text)
    except ValueError:
        return
    if not all(map(is_hostname, names)):
        raise Fault("a list of hosts gives what is not a host name", repr(names[:5]))
    back = expand_hosts(folded(names))
    if set(back) != set(names):
        raise Fault("a folded list of hosts stands for others", f"{names[:5]} -> {back[:5]}")
