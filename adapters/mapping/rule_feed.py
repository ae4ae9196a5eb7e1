"""Follows the rules in the dataset by a subscription, and writes there what is wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from lamplighter.adapters.client import AdapterClient, UpdatesClient
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.mapping.dataset_rules import QUERY, DatasetRules, forget_problems
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Bag, Term

SETTLE_S = 0.1
"""Changes of so long are applied together, since each makes all rules an index again."""

logger = EventLogger(__name__)


async def follow_rules(client: AdapterClient, rules: DatasetRules, apply: Callable[[], None]) -> None:
    """Keeps the rules as the dataset has them, and calls `apply` after each change.

    Runs until cancelled. Raises UpstreamError when the client is closed. If the gateway refuses the subscription, the
    rules stay as they are, and the log says so.
    """
    changed, kind = asyncio.Event(), rules.kind
    await _write(client, [forget_problems(kind)], kind)
    async with asyncio.TaskGroup() as tasks:
        settling = tasks.create_task(_settle(client, rules, apply, changed), name=f"{kind} rules")
        try:
            async with aclosing(client.subscribe(QUERY)) as notifications:
                async for notification in notifications:
                    if notification.sequence == 0:
                        for _ in rules.replace(_rows(notification.added)):
                            await asyncio.sleep(0)
                    else:
                        rules.change(_rows(notification.added), _rows(notification.removed))
                    changed.set()
        except UpstreamError:
            raise
        except GatewayError as error:
            logger.warning(f"{kind} rules of the dataset are not followed", reason=error)
            settling.cancel()


async def _settle(
    client: UpdatesClient, rules: DatasetRules, apply: Callable[[], None], changed: asyncio.Event
) -> None:
    while True:
        await changed.wait()
        await asyncio.sleep(SETTLE_S)
        changed.clear()
        apply()
        await _write(client, rules.problem_updates(), rules.kind)


async def _write(client: UpdatesClient, updates: Sequence[str], kind: str) -> None:
    def log_refusal(error: GatewayError) -> None:
        logger.warning(f"{kind} rule problem not written", reason=error)

    await write(client, updates, DeclaredCause(kind, "rules"), log_refusal)


def _rows(bag: Bag) -> list[tuple[Term, Term]]:
    return [(row["mapping"], row["rule"]) for row in bag.bindings()]
