"""Notifications of subscriptions (5.3.1, 5.8.6), as a kind of deliveries.

::

    rows of a commit ─▶ watching: changes of entities ─▶ those that match, with a trigger that is wanted ─▶ parts
                                                                                   reading: what else they have ◀─┘

The attributes that a commit changed are told as it left them, so that no change is overwritten by a later one; the
others as they are when the part is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Receiver
from lamplighter.engine.errors import AccessDeniedError, LimitExceededError, QueueFullError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Term, iri, lexical, literal
from lamplighter.gateway.gates.deliveries.registry import DeliveryRegistry
from lamplighter.gateway.gates.deliveries.worker import DeliveryRequest, DeliveryWorker, WaitingNotification
from lamplighter.gateway.gates.ngsild.contexts import PLAIN, ContextNames, KnownContexts
from lamplighter.gateway.gates.ngsild.graphs import EntityGraphs
from lamplighter.gateway.gates.ngsild.information import NULL, Attribute, attribute_json
from lamplighter.gateway.gates.ngsild.messages import JSON, JSON_LD, context_link, context_member
from lamplighter.gateway.gates.ngsild.reading import NgsiEntity, NgsiReading, entity_json
from lamplighter.gateway.gates.ngsild.subscriptions import EntitySubscription, subscription
from lamplighter.gateway.gates.ngsild.watching import EntityChange, Watching, changed_rows
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.settings import Settings

logger = EventLogger(__name__)

ENTITIES_MAX: Final = 50  # of one Notification; those that a commit changes beside are in further ones
BUSY_S: Final = 0.5  # pause while the gateway has too many queries to answer
_LONG_BYTES = 256 * 1024  # rows that are read beside the loop
_NAMESPACE = "urn:ngsi-ld:Notification:"
# Triggers of a subscription that is told what there is when it has to begin anew.
_BEGUN = frozenset({"entityCreated", "entityUpdated", "attributeCreated", "attributeUpdated"})


class SubscriptionDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a delivery has beside its query. subscription: its JSON; context, q_context: contexts of its notifications
    and of ``q``; sealed: the headers for its receiver, encrypted."""

    subscription: dict[str, Any]
    context: list[Any] = []
    q_context: list[Any] = []
    sealed: str = ""


class KnownSubscription(NamedTuple):
    """names: of its notifications."""

    wanted: EntitySubscription
    names: ContextNames
    watching: Watching


class EntityNotifications:
    name = "ngsild.subscriptions"
    kind = "ngsild"
    manual = "docs/ngsi-ld.md"

    def __init__(
        self, runner: Runner, settings: Settings, data: Path, graphs: EntityGraphs, contexts: KnownContexts
    ) -> None:
        self._runner = runner
        self._settings = settings.ngsild.subscriptions
        self._data = data
        self._graphs = graphs
        self._contexts = contexts
        self._known: dict[str, tuple[str, KnownSubscription]] = {}  # id -> document, and what it says
        # By the id of the delivery: the notification that has further parts, and what it tells.
        self._parted: dict[str, tuple[WaitingNotification, list[tuple[Term, EntityChange]]]] = {}

    @cached_property
    def deliveries(self) -> DeliveryRegistry:
        return DeliveryRegistry(self._runner, self._settings, self._data, self)

    # --- what is kept of a subscription ---

    def document(self, identifier: str, wanted: EntitySubscription, context: Sequence[Any], q: Sequence[Any]) -> str:
        """As `Receiver.document`. context, q: the contexts of notifications and of ``q``. Raises ConfigurationError."""
        sealed = ""
        if wanted.headers:
            pairs = [{"key": key, "value": value} for key, value in wanted.headers.items()]
            # Tokens for receivers, and the change log is shipped.
            sealed = self.deliveries.keys.seal(identifier, msgspec.json.encode(pairs).decode())
        kept = SubscriptionDocument(dict(wanted.kept), list(context), list(q), sealed)
        return msgspec.json.encode(kept).decode()

    def members(self, receiver: Receiver, document: SubscriptionDocument) -> dict[str, Any]:
        """The JSON of a subscription, with IRIs as names and the values of the headers. Raises ConfigurationError."""
        members = document.subscription
        if document.sealed:
            headers = msgspec.json.decode(self.deliveries.keys.unseal(receiver.id, document.sealed))
            notification = members["notification"]
            endpoint = notification["endpoint"] | {"receiverInfo": headers}
            members = members | {"notification": notification | {"endpoint": endpoint}}
        return members

    def resolve(self, receiver: Receiver) -> KnownSubscription:
        """Raises GatewayError where a context is not known any more, or the headers cannot be read."""
        text, found = self._known.get(receiver.id, ("", None))
        # Parsed once for each change of the subscription, not for each notification.
        if found is None or text != receiver.document:
            document = document_of(receiver)
            members = self.members(receiver, document)
            q_names = self._contexts.names(document.q_context) if document.q_context else PLAIN
            wanted = subscription(members, q_names)
            context = members.get("jsonldContext", document.context)
            names = self._contexts.names(context) if context else PLAIN
            found = KnownSubscription(wanted, names, Watching(wanted, self._graphs))
            self._known[receiver.id] = receiver.document, found
        return found

    # --- deliveries ---

    async def tell_end(self, worker: DeliveryWorker) -> None:
        self._known.pop(worker.id, None)
        self._parted.pop(worker.id, None)

    async def request(self, worker: DeliveryWorker, message: WaitingNotification, part: int) -> DeliveryRequest | None:
        if message.sequence == 0 and message.reset is None:
            return None  # what there is when a subscription begins is not told
        known = self.resolve(worker.receiver)
        again = part > 0 or message.reset is not None
        if not known.wanted.active or (not again and self._is_throttled(known.wanted, worker)):
            return None
        parted = self._parted.pop(worker.id, None)
        if parted is not None and parted[0] is message:
            changes = parted[1]
        elif len(message.members) > _LONG_BYTES:
            changes = await asyncio.to_thread(_changes_to_notify, known, message)
        else:
            changes = _changes_to_notify(known, message)
        if len(changes) > ENTITIES_MAX:
            self._parted[worker.id] = message, changes
        while part * ENTITIES_MAX < len(changes):
            some = changes[part * ENTITIES_MAX : (part + 1) * ENTITIES_MAX]
            part += 1
            data = await self._data_of(known, worker, some)
            if data:
                following = part if part * ENTITIES_MAX < len(changes) else None
                return self._request(known, worker, message, part - 1, data, following)
        return None

    def _is_throttled(self, wanted: EntitySubscription, worker: DeliveryWorker) -> bool:
        if not wanted.throttling or worker.succeeded_s is None:
            return False
        return 0 <= self.deliveries.context.wall() - worker.succeeded_s < wanted.throttling

    def _request(
        self,
        known: KnownSubscription,
        worker: DeliveryWorker,
        message: WaitingNotification,
        part: int,
        data: list[dict[str, Any]],
        following: int | None,
    ) -> DeliveryRequest:
        name = f"{message.name}/{part}" if part else message.name
        body: dict[str, Any] = {
            "id": _NAMESPACE + name.replace("/", ":"),
            "type": "Notification",
            "subscriptionId": worker.id,
            "notifiedAt": _now(),
            "data": data,
        }
        headers = dict(known.wanted.headers) | {"User-Agent": "lamplighter", "Idempotency-Key": name}
        if message.reset is not None:
            headers["Webhook-Reset"] = message.reset
        if known.wanted.json_ld:
            headers["Content-Type"] = JSON_LD
            body["@context"] = context_member(known.names)
        else:
            headers |= {"Content-Type": JSON, "Link": context_link(known.names)}
        return DeliveryRequest(headers, msgspec.json.encode(body), following)

    # --- data ---

    async def _data_of(
        self, known: KnownSubscription, worker: DeliveryWorker, changes: Sequence[tuple[Term, EntityChange]]
    ) -> list[dict[str, Any]]:
        """The entities. Those that are gone meanwhile are left out. Raises GatewayError."""
        wanted = known.wanted
        there = [entity for entity, change in changes if not change.deleted]
        read = await self._entities(NgsiReading(self._runner, self._graphs, self._caller(worker)), there, worker)
        found = []
        for entity, change in changes:
            if change.deleted:
                shown = NgsiEntity(types=change.types)
            elif entity in read:
                shown = read[entity]
            else:
                continue
            for name, (before, after) in change.attributes.items():
                if after is not None:
                    shown.attributes[name] = after
                else:
                    shown.attributes.pop(name, None)
                    assert before is not None, "it has changed"
            members = entity_json(entity, shown, wanted.attributes, wanted.form, known.names)
            if change.deleted:
                members["deletedAt"] = _now()
            for name, (before, after) in change.attributes.items():
                if after is None and before is not None and self._is_shown_deleted(wanted, name):
                    members[known.names.compact(lexical(name))] = attribute_json(_deletion(before), wanted.form)
            found.append(members)
        return found

    def _is_shown_deleted(self, wanted: EntitySubscription, name: Term) -> bool:
        return "attributeDeleted" in wanted.triggers and (not wanted.attributes or name in wanted.attributes)

    async def _entities(
        self, reading: NgsiReading, entities: Sequence[Term], worker: DeliveryWorker
    ) -> dict[Term, NgsiEntity]:
        """Waits while the gateway has too many queries to answer. An entity that is too large is left out."""
        while not worker.ended:
            try:
                return await reading.entities(entities)
            except QueueFullError:
                await asyncio.sleep(BUSY_S)
            except LimitExceededError as error:
                if len(entities) == 1:
                    logger.warning("entity not notified", delivery=worker.id, entity=entities[0], reason=error)
                    return {}
                # The limit is that of one answer: halves are below it, unless one entity alone is above.
                half = len(entities) // 2
                found = await self._entities(reading, entities[:half], worker)
                return found | await self._entities(reading, entities[half:], worker)
        return {}

    def _caller(self, worker: DeliveryWorker) -> Caller:
        """The gateway as reader, with the graphs that the client may subscribe to now. Raises AccessDeniedError."""
        # A delivery ends when its client's permissions change.
        client = worker.followed.identity
        if client is None:
            return ANYBODY
        access = self._runner.access_of(client)
        if access is None:
            raise AccessDeniedError("the client that subscribed is not registered any more")
        return Caller(client, FULL if access.full else Access(read=access.subscribe), operator=False, registered=False)


def document_of(receiver: Receiver) -> SubscriptionDocument:
    return msgspec.json.decode(receiver.document, type=SubscriptionDocument)


def _changes_to_notify(known: KnownSubscription, message: WaitingNotification) -> list[tuple[Term, EntityChange]]:
    added, removed = changed_rows(message.members)
    changes = known.watching.changes(added, removed)
    if message.sequence == 0:
        begun = bool(known.wanted.triggers & _BEGUN)
        return [(entity, change) for entity, change in changes.items() if begun and change.matches]
    return [
        (entity, change)
        for entity, change in changes.items()
        if change.matches and not known.wanted.triggers.isdisjoint(change.triggers())
    ]


def _deletion(before: Attribute) -> Attribute:
    """What stands for an attribute that was deleted (4.5.0)."""
    return Attribute(before.kind, iri(NULL) if before.kind == "Relationship" else literal(NULL))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
