"""SARIF logs are valid, and each finding has what a code-scanning page needs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sarif_pydantic import Sarif

from preflight.engine.report import Report
from preflight.model.configuration import Configuration, Waiver
from preflight.model.findings import Severity
from preflight.model.job import Job, Span, Suppression, span_of
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, unknown
from preflight.plugins.registry import Broken
from preflight.reporters.base import Style
from preflight.reporters.sarif import REPORTER
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span
from tests.reporters.consumers import LEFT_OUT, unknown_keys
from tests.reporters.consumers import log_of as read


def log_of(report: Report) -> dict[str, Any]:
    """The one run of the log, validated by the models."""
    return read(REPORTER.render(report, Style()))


def report_of_rule(*verdicts: Verdict, subject: Job | None = None, broken: tuple[Broken, ...] = ()) -> dict[str, Any]:
    """The run of a report of one rule with these verdicts."""
    rule = make_rule(lambda _: verdicts)
    return log_of(judged(make_recording(subject or job()), [rule], broken=broken))


def test_a_misspelt_key_is_detected() -> None:
    document = json.loads(REPORTER.render(judged(make_recording(job())), Style()))
    document["runs"][0]["collumnKind"] = "unicodeCodePoints"
    extras = [key for _, extra in unknown_keys(Sarif.model_validate(document), "sarif") for key in extra]
    assert [key for key in extras if key not in LEFT_OUT] == ["collumnKind"]


def test_a_finding_has_its_location_and_related_locations() -> None:
    text = "#!/bin/bash\nsrun -N2 torchrun --nnodes=4\n"
    first = span_of("jobs/run it.sh", text, 30, 40)
    (result,) = report_of_rule(failed("x", "4 but 2", at=first, also=[(span(), "2 nodes")], remedy="Say 2."))["results"]
    assert (result["kind"], result["level"], result["suppressions"]) == ("fail", "error", [])
    assert result["message"]["text"] == "4 but 2\nFix: Say 2."
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "jobs/run%20it.sh", "uriBaseId": "ROOT"}
    assert place["physicalLocation"]["region"] == {
        "startLine": 2,
        "startColumn": 19,
        "endLine": 2,
        "endColumn": 29,
        "snippet": {"text": "srun -N2 torchrun --nnodes=4"},
    }
    (related,) = result["relatedLocations"]
    assert (related["id"], related["message"]["text"]) == (1, "2 nodes")
    assert related["physicalLocation"]["artifactLocation"]["uri"] == "run.sh"


@pytest.mark.parametrize(
    ("severity", "level"), [(Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note")]
)
def test_severities_have_levels(severity: Severity, level: str) -> None:
    rule = make_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-")], severity=severity)
    (result,) = log_of(judged(make_recording(job()), [rule]))["results"]
    assert result["level"] == level


def test_a_fingerprint_survives_a_moved_line() -> None:
    (before,) = report_of_rule(failed("run.sh:3", "wrong", at=span(line=3), remedy="-"))["results"]
    (after,) = report_of_rule(failed("run.sh:90", "wrong", at=span(line=90), remedy="-"))["results"]
    assert before["partialFingerprints"] == after["partialFingerprints"]
    assert before["locations"] != after["locations"]


def test_an_undecided_required_check_is_open_and_not_a_pass() -> None:
    run = report_of_rule(
        unknown("ds.json", "a template", required=True, at=span("ds.json", 7)),
        unknown("other", "not needed"),
        passed("run.sh"),
    )
    (result,) = run["results"]
    assert (result["kind"], result["level"]) == ("open", "none")
    assert result["message"]["text"] == "ds.json: a template"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 7
    assert run["properties"]["verdict"] == "incomplete"
    assert run["invocations"][0] == {"executionSuccessful": True, "exitCode": 3}


def test_a_suppressed_finding_has_its_reason() -> None:
    comment = Suppression("run.sh", 3, ("TST001",), "tried, works here", span())
    (result,) = report_of_rule(failed("x", "wrong", at=span(), remedy="-"), subject=job(suppressions=(comment,)))[
        "results"
    ]
    assert result["suppressions"] == [{"kind": "inSource", "justification": "tried, works here"}]


def test_waivers_are_external_and_expired_ones_are_notifications() -> None:
    waivers = (
        Waiver("TST001", "known", at=span("preflight.toml", 4)),
        Waiver("TST001", "long ago", expires="2020-01-01", at=span("preflight.toml", 9)),
    )
    rule = make_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-")])
    run = log_of(judged(make_recording(job(), configuration=Configuration(waivers=waivers)), [rule]))
    assert run["results"][0]["suppressions"] == [{"kind": "external", "justification": "known"}]
    (notice,) = run["invocations"][0]["toolConfigurationNotifications"]
    assert notice["level"] == "warning"
    assert "expired on 2020-01-01" in notice["message"]["text"]
    region = notice["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == 9


def test_a_fix_is_an_artifact_change_that_editors_can_apply() -> None:
    place = Span("run.sh", 2, 8, 2, 11, "export A=1")
    fix = make_fix("rename A to B", replace_text(place, "A", "B"), safe=False)
    run = log_of(
        judged(make_recording(job()), [make_rule(lambda _: [failed("x", "w", at=place, remedy="-", fix=fix)])])
    )
    (found,) = run["results"][0]["fixes"]
    assert found["description"] == {"text": "rename A to B"}
    (change,) = found["artifactChanges"]
    assert change["artifactLocation"] == {"uri": "run.sh", "uriBaseId": "ROOT"}
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 2, "startColumn": 8, "endLine": 2, "endColumn": 9},
            "insertedContent": {"text": "B"},
        }
    ]


def test_a_fault_of_nodes_names_them_and_keeps_the_evidence() -> None:
    check = make_check(
        lambda subject, fleet, facts: [
            failed(node.name, "no GPU", at=seen(node.name), nodes=[node.name], remedy="-") for node in fleet.nodes
        ]
    )
    report = judged(make_recording(job(), verb="check", nodes=reached("a", "b"), stages=("node",)), (), [check])
    (result,) = log_of(report)["results"]
    assert [place["name"] for place in result["locations"][0]["logicalLocations"]] == ["a", "b"]
    assert [item["node"] for item in result["properties"]["evidence"]] == ["a", "b"]
    # The fault is in no file, so it is located at the beginning of the job's first file.
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == ("run.sh", {"startLine": 1})
    assert result["message"]["text"] == "no GPU\non a,b\nFix: -"


def test_a_broken_plugin_is_a_notification() -> None:
    run = report_of_rule(broken=(Broken("preflight.rules", "site-rules 2", "site:late", "ImportError: no"),))
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "error"
    assert "site-rules 2" in note["message"]["text"]


def test_inputs_are_artifacts_with_their_digest() -> None:
    (artifact,) = report_of_rule()["artifacts"]
    assert artifact["location"] == {"uri": "run.sh", "uriBaseId": "ROOT"}
    assert (artifact["length"], artifact["hashes"]) == (120, {"sha-256": "0" * 64})


def test_hostile_text_is_neither_a_command_nor_a_crash() -> None:
    hostile = "\x1b[2J\x9b2J\u202e\ud800\x00"
    place = span(hostile, snippet=hostile)
    report = judged(
        make_recording(job()),
        [make_rule(lambda _: [failed(hostile, hostile, at=place, also=[(place, hostile)], remedy="-")])],
    )
    document = REPORTER.render(report, Style()).decode()
    assert all(character.isprintable() or character == "\n" for character in document)
    log_of(report)


def test_a_real_rule_has_its_documentation() -> None:
    rule = make_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-")], "WLD001", "launch-size-disagreement")
    (descriptor,) = log_of(judged(make_recording(job()), [rule]))["tool"]["driver"]["rules"]
    assert "Why it matters:" in descriptor["help"]["text"]
    assert descriptor["shortDescription"]["text"].endswith(".")
    assert descriptor["fullDescription"]["text"].startswith(descriptor["shortDescription"]["text"])
