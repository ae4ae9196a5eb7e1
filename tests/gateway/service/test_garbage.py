"""Requests leave almost nothing for the garbage collector. It counts objects, not bytes: 100 objects may hold 100
requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import GatewayError, StoreError, bare
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from tests.support.garbage import uncollected
from tests.support.gateway_parts import CLIENT, recovered_runner

REQUESTS = 100
WRONG = "SELECT * { ?s ?p " + " ".join(str(number) for number in range(200))


class Nobody:
    """Whose subscriptions are refused."""

    client = "test"
    identity = None
    since = None
    connection = None


def refused_update(runner: Runner) -> Awaitable[object]:
    return runner.updates.update(UpdateCall(WRONG, CLIENT))


def refused_subscription(runner: Runner) -> Awaitable[object]:
    return runner.subscribe(WRONG, Nobody(), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("request_of", [refused_update, refused_subscription])
async def test_a_refused_request_leaves_no_cycle(
    tmp_path: Path, request_of: Callable[[Runner], Awaitable[object]]
) -> None:
    async with recovered_runner(tmp_path) as runner:
        for _ in range(2):  # in the first round, what other tests of this process have left may go too
            with uncollected() as found:
                for _ in range(REQUESTS):
                    with suppress(GatewayError):
                        await request_of(runner)
                        raise AssertionError("it was not refused")
        assert len(found) < REQUESTS


def test_an_error_that_is_kept_holds_no_frames() -> None:
    def raised() -> StoreError:
        try:
            try:
                raise ValueError("at first")
            except ValueError as error:
                raise StoreError("then") from error
        except StoreError as error:
            return bare(error)

    error = raised()
    assert (error.__traceback__, error.__cause__, error.__context__, str(error)) == (None, None, None, "then")


def test_an_ended_subscription_and_a_forgotten_plan_leave_no_cycle() -> None:
    engine = Engine()
    with uncollected() as found:
        for number in range(20):
            text = f"SELECT * {{ ?a <urn:p> ?v{number} OPTIONAL {{ ?a <urn:q> ?c }} FILTER(STRLEN(STR(?a)) > 3) }}"
            engine.unsubscribe(engine.subscribe(text).spuid)
    assert not found
