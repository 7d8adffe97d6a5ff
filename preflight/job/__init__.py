"""The job as claims: the words every source, rule and check speaks in."""

from preflight.job.claim import WHOLE_JOB, Claim, Relation, Scope, Strength
from preflight.job.job import (
    UNSEEN,
    InputFile,
    Job,
    Launch,
    Note,
    NoteKind,
    Reference,
    Suppression,
    strongest,
)
from preflight.job.span import Places, Span, span_of
from preflight.job.value import Known, OneOf, Plain, Unresolved, Value, alternatives, as_int, join, lift, one_of

__all__ = [
    "UNSEEN",
    "WHOLE_JOB",
    "Claim",
    "InputFile",
    "Job",
    "Known",
    "Launch",
    "Note",
    "NoteKind",
    "OneOf",
    "Places",
    "Plain",
    "Reference",
    "Relation",
    "Scope",
    "Span",
    "Strength",
    "Suppression",
    "Unresolved",
    "Value",
    "alternatives",
    "as_int",
    "join",
    "lift",
    "one_of",
    "span_of",
    "strongest",
]
