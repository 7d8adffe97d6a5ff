"""One reporter a format; the pack names them without importing them."""

PACK = (
    "preflight.reporters.text:REPORTER",
    "preflight.reporters.json:REPORTER",
    "preflight.reporters.sarif:REPORTER",
    "preflight.reporters.junit:REPORTER",
    "preflight.reporters.github:REPORTER",
    "preflight.reporters.github_summary:REPORTER",
    "preflight.reporters.gitlab:REPORTER",
    "preflight.reporters.openmetrics:REPORTER",
    "preflight.reporters.ctrf:REPORTER",
    "preflight.reporters.html:REPORTER",
    "preflight.reporters.hosts:PASSING",
    "preflight.reporters.hosts:FAILING",
    "preflight.reporters.hosts:UNTOLD",
)
