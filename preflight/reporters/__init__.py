"""Reporters: each renders a report in one format.

`FORMATS` is the one list of formats: the registry, `--output` and its help read it. A new format is a line here.
"""

#: Module and attribute of each format's reporter, in the order of the help; nothing is imported before it is used.
FORMATS = {
    "text": "preflight.reporters.text:REPORTER",
    "html": "preflight.reporters.html:REPORTER",
    "json": "preflight.reporters.data_formats:JSON",
    "json:compact": "preflight.reporters.data_formats:COMPACT_JSON",
    "csv": "preflight.reporters.data_formats:CSV",
    "sarif": "preflight.reporters.sarif:REPORTER",
    "junit": "preflight.reporters.junit:REPORTER",
    "github": "preflight.reporters.github:REPORTER",
    "github-summary": "preflight.reporters.github:SUMMARY",
    "gitlab": "preflight.reporters.gitlab:REPORTER",
    "openmetrics": "preflight.reporters.openmetrics:REPORTER",
    "passing-hosts": "preflight.reporters.data_formats:PASSING",
    "failing-hosts": "preflight.reporters.data_formats:FAILING",
    "unknown-hosts": "preflight.reporters.data_formats:UNKNOWN",
}
PACK = tuple(FORMATS.values())
