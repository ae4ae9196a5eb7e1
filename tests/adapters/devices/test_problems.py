from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyoxigraph import Store

from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.problems import (
    KEPT_MAX,
    LASTING_MAX,
    LASTING_PER_MINUTE_MAX,
    NEW_PER_MINUTE_MAX,
    Problems,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def problem(reason: str = "the payload is not JSON", device: str = "") -> Problem:
    return Problem("tasmota", "default", "tasmota/discovery/x/config", reason, device)


def listed(store: Store, problems: Problems) -> list[list[str]]:
    rows = store.query(problems.query)
    return [["" if term is None else term.value for term in row] for row in rows]  # type: ignore[union-attr]


def test_a_problem_is_listed_with_its_count() -> None:
    store, problems = Store(), Problems("http://e/")
    for minutes in (0, 0.1, 0.2, 2):
        text = problems.update(problem(), NOW + timedelta(minutes=minutes))
        if text is not None:
            store.update(text)
    assert listed(store, problems) == [
        ["tasmota", "tasmota/discovery/x/config", "", "the payload is not JSON", "4", "2030-01-01T00:02:00Z"]
    ]


def test_repetitions_within_a_minute_write_nothing() -> None:
    problems = Problems("http://e/")
    assert problems.update(problem(), NOW)
    assert not any(problems.update(problem(), NOW + timedelta(seconds=s)) for s in range(59))


def test_problems_are_bounded_in_rate_and_number() -> None:
    store, problems = Store(), Problems("http://e/")
    texts = [problems.update(problem(str(number)), NOW) for number in range(1000)]
    assert sum(text is not None for text in texts) == NEW_PER_MINUTE_MAX
    assert problems.unwritten == 1000 - NEW_PER_MINUTE_MAX
    for number in range(KEPT_MAX + 100):
        text = problems.update(problem(f"later {number}"), NOW + number * HOUR + HOUR)
        assert text is not None
        store.update(text)
    assert len(listed(store, problems)) == KEPT_MAX


def test_the_problem_that_is_longest_not_seen_goes_first() -> None:
    store, problems = Store(), Problems("http://e/")
    for number in range(KEPT_MAX):
        store.update(problems.update(problem(str(number)), NOW + number * HOUR) or "")
    later = NOW + KEPT_MAX * HOUR
    store.update(problems.update(problem("0"), later) or "")
    store.update(problems.update(problem("new"), later + HOUR) or "")
    reasons = {reason for _, _, _, reason, _, _ in listed(store, problems)}
    assert {"0", "2", "new"} <= reasons and "1" not in reasons


def test_a_problem_names_its_device_and_hostile_texts_stay_texts() -> None:
    store, problems = Store(), Problems("http://e/")
    reason = '" } } ; DROP ALL ; \u202e'
    text = problems.update(Problem("shelly", "", '"\n>', reason, "shelly/98F4ABB929CC"), NOW)
    assert text is not None
    store.update(text)
    ((_, topic, device, said, _, _),) = listed(store, problems)
    assert (topic, device, said) == ('" >', "http://e/device/shelly/98F4ABB929CC", '" } } ; DROP ALL ;')


def test_a_new_run_forgets_the_problems_of_the_last_one() -> None:
    store, problems = Store(), Problems("http://e/")
    store.update(problems.update(problem(), NOW) or "")
    store.update(problems.update(Problem("coap", "", "coap://h/a", "no answer", ""), NOW) or "")
    store.update(problems.forgetting(["tasmota", "mapping"]))
    assert [row[0] for row in listed(store, problems)] == ["coap"], "those of other adapters stay"
    store.update(problems.forgetting(["coap"]))
    assert len(store) == 0


def lasting(reason: str, device: str = "tasmota/1", about: str = "left out 1") -> Problem:
    return Problem("tasmota", "default", f"a/{reason}", reason, device, about)


def test_a_lasting_problem_is_replaced_and_ends() -> None:
    store, problems = Store(), Problems("http://e/")
    steps = [
        lasting("a"),
        lasting("b"),
        lasting("b"),
        lasting("c", about="left out 2"),
        lasting("", about="left out 1"),
    ]
    reasons = []
    for step in steps:
        text = problems.lasting_update(step, NOW)
        if text is not None:
            store.update(text)
        reasons.append(sorted(row[3] for row in listed(store, problems)))
    assert reasons == [["a"], ["b"], ["b"], ["b", "c"], ["c"]]
    assert problems.lasting_update(lasting("b"), NOW) and problems.lasting_update(lasting("b"), NOW) is None
    assert problems.lasting_update(lasting("", device="tasmota/2"), NOW) is None, "it was not told"
    store.update(problems.forgetting(["tasmota"]))
    assert len(store) == 0


def test_lasting_problems_are_not_forgotten_for_others_and_are_bounded() -> None:
    store, problems = Store(), Problems("http://e/")
    store.update(problems.lasting_update(lasting("stays"), NOW) or "")
    for number in range(KEPT_MAX + 10):
        store.update(problems.update(problem(str(number)), NOW + number * HOUR) or "")
    assert "stays" in {row[3] for row in listed(store, problems)}
    for number in range(LASTING_MAX):
        problems.lasting_update(lasting("x", device=f"tasmota/x{number}"), NOW)
    unwritten = problems.unwritten
    assert problems.lasting_update(lasting("x", device="tasmota/more"), NOW) is None
    assert problems.unwritten == unwritten + 1
    assert sum(problems.may_change(NOW) for _ in range(1000)) == LASTING_PER_MINUTE_MAX
    assert problems.may_change(NOW + HOUR)
