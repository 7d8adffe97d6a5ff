"""Reporters: each module renders a report in one format.

`FORMATS` is the one list of formats: the registry, `--output` and its help read it. A new format is a line here.
"""

#: Module and attribute of each format's reporter, in the order of the help; nothing is imported before it is used.
FORMATS = {
    "text": "preflight.reporters.text:REPORTER",
    "html": "preflight.reporters.html:REPORTER",
    "json": "preflight.reporters.json:REPORTER",
    "json:compact": "preflight.reporters.json:COMPACT",
    "csv": "preflight.reporters.csv:REPORTER",
    "sarif": "preflight.reporters.sarif:REPORTER",
    "junit": "preflight.reporters.junit:REPORTER",
    "github": "preflight.reporters.github:REPORTER",
    "github-summary": "preflight.reporters.github_summary:REPORTER",
    "gitlab": "preflight.reporters.gitlab:REPORTER",
    "openmetrics": "preflight.reporters.openmetrics:REPORTER",
    "passing-hosts": "preflight.reporters.host_lists:PASSING",
    "failing-hosts": "preflight.reporters.host_lists:FAILING",
    "unknown-hosts": "preflight.reporters.host_lists:UNKNOWN",
}
PACK = tuple(FORMATS.values())
