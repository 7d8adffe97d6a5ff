"""What two checkouts say of the same jobs is compared."""

from __future__ import annotations

from pathlib import Path

from tools.compare_verdicts import ROOT, Answer, answers, differences

RULES = frozenset(("AAA001", "AAA002"))


def answer(*findings: tuple[str, str, str], code: int = 1, rules: frozenset[str] = RULES) -> Answer:
    return Answer(code, frozenset(findings), rules)


def test_a_checkout_answers_a_job(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "run.sh").write_text("torchrun --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=localhost:29500 train.py\n")
    found = answers(ROOT, {"job": ["lint", str(job)]}, tmp_path / "out")
    assert found["job"].code == 1
    assert ("RDV001", "run.sh:1", "error") in found["job"].findings
    assert "RDV001" in found["job"].rules


def test_differences_are_told_apart() -> None:
    old = {
        "gone": answer(("AAA001", "run.sh:1", "error")),
        "moved": answer(("AAA001", "run.sh:1", "error")),
        "milder": answer(("AAA001", "run.sh:1", "error")),
        "same": answer(("AAA001", "run.sh:1", "error")),
        "come": answer(code=0),
        "stricter": answer(code=0),
    }
    new = {
        "gone": answer(code=0),
        "moved": answer(("AAA001", "run.sh:2", "error")),
        "milder": answer(("AAA001", "run.sh:1", "warning")),
        "same": answer(("AAA001", "run.sh:1", "error"), ("NEW001", "run.sh:1", "error")),
        "come": answer(("AAA002", "run.sh:1", "error")),
        "stricter": answer(code=4),
    }
    found = [(kind, rule, text.partition(":")[0]) for kind, rule, text in differences(old, new)]
    assert found == [
        ("lost", "AAA001", "gone"),
        ("place", "AAA001", "moved"),
        ("severity", "AAA001", "milder"),
        ("new", "AAA002", "come"),
        ("exit code", "-", "stricter"),
    ]
