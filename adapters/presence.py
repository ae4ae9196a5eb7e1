"""Since when an adapter reads its devices for the gateway, as a triple: values from before are unconfirmed.

::

    <base>adapter/KIND gateway:since TIME

It is written at the start of the adapter, and when the gateway has come back: in between, devices may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from datetime import datetime

from lamplighter.adapters.client import AdapterClient
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.literals import datetime_term
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import iri
from lamplighter.ontology.vocabulary import SINCE, adapter_iri

logger = EventLogger(__name__)


async def keep_presence(
    client: AdapterClient, base_iri: str, kind: str, now: Callable[[], datetime], returned: Callable[[], None]
) -> None:
    """Runs until cancelled. returned: called when the gateway has come back; devices are to be asked again. Raises
    UpstreamError when the client is closed."""
    node = iri(adapter_iri(base_iri, kind))
    since, connections = now(), 0

    def log_refusal(error: GatewayError) -> None:
        logger.error(f"{kind} presence not stored", reason=error)

    try:
        async with aclosing(client.subscribe(f"SELECT ?since WHERE {{ {node} <{SINCE}> ?since }}")) as notifications:
            async for notification in notifications:
                if notification.sequence != 0:  # the client repeats the first result after each interruption
                    continue
                connections += 1
                if connections > 1:
                    since = now()
                    returned()  # before it is written: no report after it may be dropped as a repeated one
                text = (
                    f"DELETE {{ {node} <{SINCE}> ?before }} "
                    f"INSERT {{ {node} <{SINCE}> {datetime_term(since, 'milliseconds')} }} "
                    f"WHERE {{ OPTIONAL {{ {node} <{SINCE}> ?before }} }}"
                )
                await write(client, [text], DeclaredCause(kind, "presence"), log_refusal)
    except UpstreamError:
        raise
    except GatewayError as error:
        logger.warning(f"{kind} presence is not followed", reason=error)
