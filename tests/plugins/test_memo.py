"""Results that many checks need are computed once per job and facts, and released with them."""

from __future__ import annotations

import gc
import weakref

from preflight.model.job import Job
from preflight.model.recording import Facts
from preflight.plugins.authoring import clear_memo, memoize
from tests.builders import job

CALLS: list[object] = []


@memoize
def of_job(job: Job, word: str, shape: tuple[int, ...] = ()) -> list[object]:
    CALLS.append((word, shape))
    return [word, shape]


@memoize
def of_facts(job: Job, facts: Facts) -> int:
    CALLS.append(facts)
    return len(CALLS)


def test_results_are_cached_by_equal_texts_and_identical_objects() -> None:
    CALLS.clear()
    one, other, shape = job(), job(), (1, 2)
    assert of_job(one, "a") is of_job(one, "".join(["a"]))
    assert of_job(one, "b") is not of_job(one, "a")
    assert of_job(other, "a") is not of_job(one, "a")
    assert of_job(one, "a", shape) is of_job(one, "a", shape)
    assert of_job(one, "a", (1, len("ab"))) is not of_job(one, "a", shape)
    assert len(CALLS) == 5


def test_a_result_is_released_with_its_facts() -> None:
    CALLS.clear()
    subject, facts = job(), Facts()
    assert of_facts(subject, facts) == of_facts(subject, facts)
    assert of_facts(subject, Facts()) != of_facts(subject, facts)
    CALLS.clear()
    gone = weakref.ref(facts)
    del facts
    gc.collect()
    assert gone() is None


def test_the_memo_of_a_job_can_be_cleared() -> None:
    CALLS.clear()
    subject = job()
    of_job(subject, "a")
    clear_memo(subject)
    of_job(subject, "a")
    assert len(CALLS) == 2
