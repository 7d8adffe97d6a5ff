"""The output of programs: text filters, queries for hosts, and `printf`, `seq`, `dirname` and the like."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from preflight.model.job.value import Symbol
from preflight.sources.shell.words import Field, is_count, reasons

_FIRST_LINE = re.compile(r"(-n ?1|-1|--lines=1|-n1)$")
_AWK_FIELD = re.compile(r"\{ *print *\(? *(?:\$(\d{1,2}|NF)|NF) *\)? *;? *\}")
#: Python code that counts the items of a list on standard input: `print(len(sys.stdin.read().split(",")))`.
_COUNT_ITEMS = re.compile(
    r"[\s\S]*\bsys\.stdin\.read\(\)[\s\S]*\bprint\(len\([\w.()]*\.split\((['\"])(.)\1\)\)\)\s*;?\s*"
)
_AWK_FIRST = re.compile(r"NR *== *1( *\{ *print( +\$[01])? *;? *\})?|\{ *print +\$1 *;? *exit *;? *\}")
_SED_SIMPLE = re.compile(r"s([/|,#])([\w .:=-]+)\1([\w .:=-]*)\1(g?)")
_LINE_FILTERS = frozenset(
    ("sort", "uniq", "tr", "sed", "grep", "xargs", "cat", "tee", "awk", "cut", "paste", "nl", "rev")
)


def symbol_after_filter(why: str, words: Sequence[str]) -> str | None:
    """Return the reason why text is unknown after a filter; None when the filter turns it into something else."""
    name, rest = words[0].rpartition("/")[2], " ".join(words[1:])
    if why == Symbol.ALLOCATED_HOSTS.value:
        if name == "head" and _FIRST_LINE.search(rest):
            return Symbol.FIRST_ALLOCATED_HOST.value
        if name == "tail" and _FIRST_LINE.search(rest):
            return Symbol.OTHER_ALLOCATED_HOST.value
        if (name == "sed" and rest in ("-n 1p", "1q")) or (name == "awk" and _AWK_FIRST.search(rest)):
            return Symbol.FIRST_ALLOCATED_HOST.value
        if name == "cut" and re.search(r"-f ?1$", rest) and re.search(r"-d", rest):
            return Symbol.FIRST_ALLOCATED_HOST.value
        return why if name in _LINE_FILTERS or name == "head" else None
    if why == Symbol.NODE_FILE_LINES.value:
        # The file has one line per slot; it lists hosts only after duplicates are removed.
        if name == "uniq" or (name == "sort" and "u" in rest):
            return Symbol.ALLOCATED_HOSTS.value
        first = (name == "head" and _FIRST_LINE.search(rest)) or (name == "sed" and rest in ("-n 1p", "1q"))
        if first or (name == "awk" and _AWK_FIRST.search(rest)):
            return Symbol.FIRST_ALLOCATED_HOST.value
        return why if name in _LINE_FILTERS else None
    single = {symbol.value for symbol in Symbol} - {Symbol.NODE_LIST.value, Symbol.NODE_FILE.value}
    return why if why in single and (name in _LINE_FILTERS or name in ("head", "tail")) else None


def filter_function(words: Sequence[str]) -> Callable[[str], str] | None:
    """Return a function with the effect of the command line on known text; None when it is not understood."""
    function = _line_filter(words)
    if function is None:
        return None

    def with_newline(text: str) -> str:
        result = function(text)
        return result + "\n" if result and not result.endswith("\n") else result

    return with_newline


def _line_filter(words: Sequence[str]) -> Callable[[str], str] | None:
    name, arguments = words[0].rpartition("/")[2], list(words[1:])
    if name in ("cat", "tee"):
        return lambda text: text
    if name in ("head", "tail"):
        return _ends(name, arguments)
    if name == "wc":
        return _count(arguments)
    if name == "cut":
        return _cut(arguments)
    if name == "tr":
        return _translate(arguments)
    if name == "sort":
        return _sort(arguments)
    if name == "uniq" and not arguments:
        return lambda text: "\n".join(dict.fromkeys(text.splitlines()))
    if name == "xargs" and not arguments:
        return lambda text: " ".join(text.split())
    if name == "awk":
        return _awk(arguments)
    if name == "sed":
        return _sed(arguments)
    if name.startswith("python") and arguments[:1] == ["-c"] and len(arguments) == 2:
        counted = _COUNT_ITEMS.fullmatch(arguments[1])
        return None if counted is None else lambda text: str(text.count(counted[2]) + 1)
    return None


def _ends(name: str, arguments: Sequence[str]) -> Callable[[str], str] | None:
    joined = "".join(arguments)
    match = re.fullmatch(r"(?:-n|--lines=|-)?(\+?)(\d{1,6})", joined) if joined else re.fullmatch(r"()(\d+)", "10")
    if match is None:
        return None
    number = int(match.group(2))
    if match.group(1):
        return (lambda text: "\n".join(text.splitlines()[max(number - 1, 0) :])) if name == "tail" else None
    if name == "head":
        return lambda text: "\n".join(text.splitlines()[:number])
    return lambda text: "\n".join(text.splitlines()[-number:] if number else [])


def _count(arguments: Sequence[str]) -> Callable[[str], str] | None:
    if list(arguments) in (["-l"], ["--lines"]):
        return lambda text: str(text.count("\n"))
    if list(arguments) in (["-w"], ["--words"]):
        return lambda text: str(len(text.split()))
    return None


def _cut(arguments: Sequence[str]) -> Callable[[str], str] | None:
    delimiter, wanted = "\t", ""
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if word in ("-d", "-f") and waiting:
            word += waiting.pop(0)
        if word.startswith("-d") and len(word) == 3:
            delimiter = word[2]
        elif word.startswith("-f"):
            wanted = word[2:]
        else:
            return None
    if not is_count(wanted) or int(wanted) < 1:
        return None

    def cut(line: str) -> str:
        # A line without the delimiter is printed as it is.
        return _part(line.split(delimiter), int(wanted)) if delimiter in line else line

    return lambda text: "\n".join(map(cut, text.splitlines()))


def _part(parts: Sequence[str], number: int) -> str:
    """Return the part with a number, counted from 1; empty if there is none."""
    return parts[number - 1] if number <= len(parts) else ""


def _translate(arguments: Sequence[str]) -> Callable[[str], str] | None:
    words = [word.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for word in arguments]
    if len(words) == 2 and words[0] == "-d" and not re.search(r"[\[\\-]", words[1]):
        return lambda text: "".join(character for character in text if character not in words[1])
    if len(words) == 2 and len(words[0]) == len(words[1]) == 1:
        return lambda text: text.replace(words[0], words[1])
    return None


def _sort(arguments: Sequence[str]) -> Callable[[str], str] | None:
    if any(word not in ("-u", "-r") for word in arguments):
        return None

    def sort_lines(text: str) -> str:
        lines = text.splitlines()
        if "-u" in arguments:
            lines = list(dict.fromkeys(lines))
        return "\n".join(sorted(lines, reverse="-r" in arguments))

    return sort_lines


def _awk(arguments: Sequence[str]) -> Callable[[str], str] | None:
    separator: str | None = None
    waiting = list(arguments)
    if waiting[:1] == ["-F"] and len(waiting) > 1:
        separator, waiting = waiting[1], waiting[2:]
    elif waiting and waiting[0].startswith("-F") and len(waiting[0]) == 3:
        separator, waiting = waiting[0][2], waiting[1:]
    if len(waiting) != 1 or (separator is not None and len(separator) != 1):
        return None
    match = _AWK_FIELD.fullmatch(waiting[0].strip())
    if match is None:
        return None
    wanted = match.group(1)

    def pick_field(line: str) -> str:
        parts = line.split(separator)
        if wanted is None:
            return str(len(parts))
        number = len(parts) if wanted == "NF" else int(wanted)
        return _part(parts, number) if number else line

    return lambda text: "\n".join(map(pick_field, text.splitlines()))


def _sed(arguments: Sequence[str]) -> Callable[[str], str] | None:
    if len(arguments) != 1 or (match := _SED_SIMPLE.fullmatch(arguments[0])) is None:
        return None
    old, new, everywhere = match.group(2), match.group(3), bool(match.group(4))
    if "." in old:
        return None
    return lambda text: "\n".join(line.replace(old, new, -1 if everywhere else 1) for line in text.splitlines())


_ADDRESS_FLAGS = frozenset(("-i", "-I", "--ip-address", "--all-ip-addresses"))
_RESOLVERS = frozenset(("getent", "host", "dig", "nslookup", "ping"))
_EXPANDERS = frozenset(("nodeset", "hostlist", "expand_hostlist", "python-hostlist"))
_INTERFACES = frozenset(("ip", "ifconfig"))
#: Programs whose output this module recognises.
HOST_PROGRAMS = frozenset(("hostname", "uname", "srun", "scontrol")) | _RESOLVERS | _EXPANDERS | _INTERFACES


def printed_symbol(name: str, arguments: Sequence[Field], *, batch: bool) -> Symbol | None:
    """Return the run-time value that one of `HOST_PROGRAMS` prints; None for anything not recognised.

    Args:
        name: the program.
        arguments: its words.
        batch: whether the command runs in a batch script outside srun, so on the first host of the allocation.
    """
    if name in ("hostname", "uname"):
        return _own_name(name, arguments, batch=batch)
    if name == "srun":
        return _srun_output(arguments)
    if name in _RESOLVERS:
        return _resolved_address(arguments)
    if name == "scontrol":
        expands = any(item.known in ("hostname", "hostnames") for item in arguments)
        return Symbol.ALLOCATED_HOSTS if expands else None
    if name in _EXPANDERS:
        return Symbol.ALLOCATED_HOSTS
    return Symbol.FIRST_ALLOCATED_ADDRESS if batch else Symbol.THIS_ADDRESS


def _own_name(name: str, arguments: Sequence[Field], *, batch: bool) -> Symbol | None:
    flags = {item.known for item in arguments}
    if name == "uname" and "-n" not in flags:
        return None
    address = bool(flags & _ADDRESS_FLAGS)
    if batch:
        return Symbol.FIRST_ALLOCATED_ADDRESS if address else Symbol.FIRST_ALLOCATED_HOST
    return Symbol.THIS_ADDRESS if address else Symbol.THIS_HOST


def _srun_output(arguments: Sequence[Field]) -> Symbol | None:
    """Return the output of `srun -N1 -n1 -w "$head" hostname --ip-address`: a host or its address."""
    names = [(item.known or "").rpartition("/")[2] for item in arguments]
    at = names.index("hostname") if "hostname" in names else None
    options_text = " ".join(reasons(item.text) if item.known is None else item.known for item in arguments[:at])
    on_one_node = re.search(r"(^| )(-w|--nodelist|-N ?1\b|--nodes[= ]1\b|-n ?1\b|--ntasks[= ]1\b)", options_text)
    text = " ".join(item.known or "" for item in arguments)
    if at is None:
        if on_one_node and re.search(r"hostname -[iI]|ip (-|a|r)|ifconfig", text):
            return Symbol.FIRST_ALLOCATED_ADDRESS
        if on_one_node and re.search(r"\bhostname\b", text):
            return Symbol.FIRST_ALLOCATED_HOST
        return None
    address = any(item.known in _ADDRESS_FLAGS for item in arguments[at:])
    if Symbol.THIS_HOST.value in options_text:
        return Symbol.THIS_ADDRESS if address else Symbol.THIS_HOST
    if Symbol.OTHER_ALLOCATED_HOST.value in options_text:
        return Symbol.OTHER_ALLOCATED_HOST
    if on_one_node:
        return Symbol.FIRST_ALLOCATED_ADDRESS if address else Symbol.FIRST_ALLOCATED_HOST
    return Symbol.ALLOCATED_HOSTS


def _resolved_address(arguments: Sequence[Field]) -> Symbol | None:
    for item in arguments:
        why = reasons(item.text) if item.known is None else ""
        if why in (Symbol.FIRST_ALLOCATED_HOST.value, Symbol.FIRST_ALLOCATED_ADDRESS.value):
            return Symbol.FIRST_ALLOCATED_ADDRESS
        if why in (Symbol.THIS_HOST.value, Symbol.THIS_ADDRESS.value):
            return Symbol.THIS_ADDRESS
    return None


_DAY_FORMAT = re.compile(r"\+(?:[^%]|%[-_0^#]?[aAbBCdDeFgGhjmuUVwWxyY])+")


def is_day(arguments: Sequence[Field]) -> bool:
    """Return whether `date` prints no more than the day, which the nodes of a job agree on."""
    formats = [item.known for item in arguments if item.known is not None and item.known.startswith("+")]
    return len(formats) == 1 and _DAY_FORMAT.fullmatch(formats[0] or "") is not None


_CONVERSION = re.compile(r"%(%|0?\d{0,3}[sd])")
_MAX_SEQUENCE = 2_000

#: Programs that print a changed form of a given path.
PATH_PROGRAMS = frozenset(("dirname", "basename", "realpath", "readlink", "cygpath"))


def printf(words: Sequence[str]) -> str | None:
    """Return the output of `printf FORMAT ARGUMENT...` for %s and %d with a width; None for other formats."""
    if not words:
        return None
    template, arguments = words[0].replace("\\n", "\n").replace("\\t", "\t"), list(words[1:])
    conversions = [found for found in _CONVERSION.findall(template) if found != "%"]
    if template.count("%") != len(_CONVERSION.findall(template)) + template.count("%%") or "\\" in template:
        return None
    if not conversions:
        return template.replace("%%", "%")
    out: list[str] = []
    for start in range(0, max(len(arguments), 1), len(conversions)):
        batch = arguments[start : start + len(conversions)]
        batch += [""] * (len(conversions) - len(batch))
        values: list[object] = []
        for conversion, value in zip(conversions, batch, strict=True):
            if conversion.endswith("d"):
                if not re.fullmatch(r"-?\d{1,18}", value or "0"):
                    return None
                values.append(int(value or "0"))
            else:
                values.append(value)
        out.append(template % tuple(values))
    return "".join(out)


def seq(words: Sequence[str]) -> str | None:
    """Return the output of `seq [-s SEPARATOR] [FIRST [STEP]] LAST`; None for other forms and for very long
    sequences.
    """
    separator = "\n"
    rest = list(words)
    if rest[:1] == ["-s"] and len(rest) > 1:
        separator, rest = rest[1], rest[2:]
    try:
        numbers = [int(word) for word in rest]
    except ValueError:
        return None
    if not 1 <= len(numbers) <= 3:
        return None
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    last = numbers[-1]
    if step == 0 or abs(last - first) // abs(step) > _MAX_SEQUENCE:
        return None
    printed = range(first, last + (1 if step > 0 else -1), step)
    return separator.join(str(number) for number in printed) + "\n"


def path_function(name: str, suffix: str = "") -> Callable[[str], str]:
    """Return the function that one of `PATH_PROGRAMS` applies to a path; `suffix` is the second argument of
    `basename`.
    """
    if name == "dirname":
        return lambda item: posixpath.dirname(item.rstrip("/")) or ("/" if item.startswith("/") else ".")
    if name == "basename":
        return lambda item: _basename(item, suffix)
    return posixpath.normpath


def _basename(item: str, suffix: str) -> str:
    base = posixpath.basename(item.rstrip("/"))
    return base.removesuffix(suffix) or base
