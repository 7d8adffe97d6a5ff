"""Variables that a shell refuses to export."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Unresolved
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.outcome import Severity
from preflight_rules.reading import distinct, quoted, texts
from preflight_rules.tables import known_variables


@rule(
    "ENV011",
    "variable-name-refused-by-shell",
    severity=Severity.WARNING,
    fix="unsafe",
    evidence=("cocktailpeanut/fluxgym#283",),
)
def name_refused_by_shell(job: Job) -> Iterator[Verdict]:
    """A script exports a name that no shell variable can have.

    What it checks:
        Names behind `export` consist of letters, digits and underscores.

    Why it matters:
        The shell prints "not a valid identifier" among many other lines, sets nothing and goes on: the job runs with
        the value that was to be changed.

    Example:
        `export NCCL_IB-DISABLE=1`, meant to be NCCL_IB_DISABLE.

    Fix:
        Write underscores for the other signs.

    Known limits:
        Only `export` at the beginning of a line is looked at.

    Evidence:
        cocktailpeanut/fluxgym#283 (NCCL_IB-DISABLE had no effect).
    """
    found = distinct(job.about("refused_variable"))
    for claim in found:
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        (name,) = texts(claim.value) or ("",)
        meant = name.replace("-", "_").replace(".", "_")
        known = meant in known_variables()
        yield failed(
            claim.span.path,
            f"{quoted(claim)} sets nothing: a shell takes letters, digits and underscores in a name"
            + (f"; {meant} is meant." if known else "."),
            at=claim,
            remedy=f"Write {meant}.",
            fix=mend(f"rename {name} to {meant}", reworded(claim, name, meant), safe=False),
        )
    if not found:
        exported = [claim for claim in job.environment() if claim.quantity.startswith("env.")]
        exported += [claim for launch in job.launches for claim in job.environment(launch.scope)]
        yield passed(job.name) if exported else not_applicable(job.name, "no script exports a variable")
