"""Parses times in logs, in the formats of launchers, libraries and schedulers."""

from __future__ import annotations

import re

from preflight.commands.diagnose.diagnosis import Moment

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_ZONE = r"(?P<z>Z|[+-]\d\d:?\d\d)?"
_FORMS = tuple(
    re.compile(form)
    for form in (
        # ISO and similar formats: Python's logging, kubectl, Slurm, Paddle (slashes), torchrun (underscore).
        rf"(?<!\d)(?:19|20)\d\d[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T _:]{_CLOCK}{_ZONE}",
        # glog and klog: severity, month and day in one word.
        rf"(?<![A-Za-z0-9])[IWEF](?:20\d\d)?(?P<mo>\d{{1,2}})(?P<d>\d\d) {_CLOCK}",
        # Hugging Face's trainer, and others that put the month first.
        rf"(?<!\d)(?P<mo>\d\d)/(?P<d>\d\d)/20\d\d[ ,]{{1,2}}{_CLOCK}",
        # syslog, `date`, mpirun --timestamp-output.
        rf"(?<![A-Za-z])(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {{1,2}}(?P<d>\d{{1,2}}) {_CLOCK}",
    )
)
#: A time is at the beginning of a line, after the name of the writer.
_WITHIN = 120
_DAY_S = 86_400
_YEAR_S = 366 * _DAY_S


def moment_in(text: str) -> Moment | None:
    """Return the time near the beginning of a line, or None. A clock time without a date does not count."""
    head = text[:_WITHIN]
    # Every format contains hours, minutes and seconds; most lines do not, and dozens of lines are tried before an
    # event.
    if head.count(":") < 2:
        return None
    for form in _FORMS:
        match = form.search(head)
        if match is not None and (moment := _moment(match)) is not None:
            return moment
    return None


def _moment(match: re.Match[str]) -> Moment | None:
    found = match.groupdict()
    name = found.get("name")
    month = _MONTHS.index(name.lower()) + 1 if name else int(found["mo"])
    day, hours, minutes, seconds = (int(found[key]) for key in ("d", "h", "m", "s"))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60 and seconds <= 60):
        return None
    since = (_DAYS_BEFORE[month - 1] + day - 1) * _DAY_S + hours * 3600 + minutes * 60 + seconds
    fraction = found.get("f") or "0"
    # Keep the nine digits that torch's C++ writes; later lines may differ by less than a microsecond.
    since_s = since + (float(f"0.{fraction}") if len(fraction) < 9 or found.get("z") else 0.0)
    zone = found.get("z")
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        since_s -= offset if zone[0] == "+" else -offset
    return Moment(match[0].lstrip("IWEF"), since_s, zoned=zone is not None)


def seconds_between(earlier: Moment | None, later: Moment | None) -> float | None:
    """Return how much later the second time is; negative if it is earlier; None if the two cannot be compared.

    A run may last over New Year's Eve: a difference of nearly minus one year means slightly later.
    """
    if earlier is None or later is None or earlier.zoned != later.zoned:
        return None
    seconds = later.seconds - earlier.seconds
    if seconds < -_YEAR_S * 0.8:
        return seconds + _YEAR_S
    return seconds - _YEAR_S if seconds > _YEAR_S * 0.8 else seconds
