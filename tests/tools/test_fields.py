"""The page about the report: it has every field with its current type and description."""

from __future__ import annotations

import re

from preflight.engine import report
from tools import fields


def test_the_committed_page_is_the_generated_one() -> None:
    assert fields.PAGE.read_text() == fields.page(), "a docstring changed: run `make docs`"


def test_every_field_has_a_description() -> None:
    for one in fields.documented():
        assert one.about, one.title
        for name, kind, said in one.fields:
            assert kind and said, f"{one.kind.__module__}.{one.kind.__name__} does not say what {name} is"


def test_everything_in_the_schema_is_on_the_page() -> None:
    schema = report.schema()
    known = {frozenset(name for name, _, _ in one.fields) for one in fields.documented()}
    for title, definition in {"report": schema, **schema["$defs"]}.items():
        if "properties" in definition:
            assert frozenset(definition["properties"]) in known, title


def test_every_link_leads_to_a_heading() -> None:
    page = fields.page()
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([a-z-]+)\)", page)) <= headings
