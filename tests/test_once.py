"""What many checks ask of the same job and facts is worked out once, and let go of with them."""

from __future__ import annotations

import gc
import weakref

from preflight.job import Job
from preflight.once import forget, once
from preflight.recording import Facts
from tests.building import job

CALLS: list[object] = []


@once
def of_job(job: Job, word: str, shape: tuple[int, ...] = ()) -> list[object]:
    CALLS.append((word, shape))
    return [word, shape]


@once
def of_facts(job: Job, facts: Facts) -> int:
    CALLS.append(facts)
    return len(CALLS)


def test_equal_words_and_the_same_objects_are_worked_out_once() -> None:
    CALLS.clear()
    one, other, shape = job(), job(), (1, 2)
    assert of_job(one, "a") is of_job(one, "".join(["a"]))
    assert of_job(one, "b") is not of_job(one, "a")
    assert of_job(other, "a") is not of_job(one, "a")
    assert of_job(one, "a", shape) is of_job(one, "a", shape)
    assert of_job(one, "a", (1, len("ab"))) is not of_job(one, "a", shape)
    assert len(CALLS) == 5


def test_a_result_goes_with_the_facts_it_came_from() -> None:
    CALLS.clear()
    subject, facts = job(), Facts()
    assert of_facts(subject, facts) == of_facts(subject, facts)
    assert of_facts(subject, Facts()) != of_facts(subject, facts)
    CALLS.clear()
    gone = weakref.ref(facts)
    del facts
    gc.collect()
    assert gone() is None


def test_a_job_can_be_made_to_forget() -> None:
    CALLS.clear()
    subject = job()
    of_job(subject, "a")
    forget(subject)
    of_job(subject, "a")
    assert len(CALLS) == 2
