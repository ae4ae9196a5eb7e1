"""The operations of subscriptions (5.8, 6.10, 6.11): create, update, read, list and delete."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.change_log import Receiver
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, UnknownResourceError
from lamplighter.gateway.gates.deliveries.api import UNSUBSCRIBED
from lamplighter.gateway.gates.deliveries.registry import DeliveryExistsError, checked_url
from lamplighter.gateway.gates.deliveries.worker import DeliveryWorker, UnknownDeliveryError
from lamplighter.gateway.gates.http.answers import MethodError
from lamplighter.gateway.gates.http.parameters import parameters
from lamplighter.gateway.gates.http.sparql import cause
from lamplighter.gateway.gates.ngsild.contexts import PLAIN, ContextNames, KnownContexts, is_absolute
from lamplighter.gateway.gates.ngsild.graphs import EntityGraphs
from lamplighter.gateway.gates.ngsild.information import NULL
from lamplighter.gateway.gates.ngsild.messages import NgsiMessage
from lamplighter.gateway.gates.ngsild.notifying import EntityNotifications, document_of
from lamplighter.gateway.gates.ngsild.parameters import page
from lamplighter.gateway.gates.ngsild.problems import AlreadyExistsError, OperationNotSupportedError
from lamplighter.gateway.gates.ngsild.subscriptions import (
    EntitySubscription,
    is_past,
    kept_members,
    subscription,
    subscription_json,
)
from lamplighter.gateway.gates.ngsild.watching import Watching
from lamplighter.gateway.gates.standards import next_link, page_url
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings.deliveries import DeliverySettings

DOCUMENT_CHARS_MAX: Final = 32 * 1024  # of what the change log has of a subscription beside its query
_TABLE = "ngsild.subscriptions"


class NgsiSubscriptions:
    def __init__(
        self,
        notifications: EntityNotifications,
        settings: DeliverySettings,
        graphs: EntityGraphs,
        contexts: KnownContexts,
        root: str,
    ) -> None:
        self._notifications = notifications
        self._settings = settings
        self._graphs = graphs
        self._contexts = contexts
        self._root = root
        self._changing = asyncio.Lock()

    async def answer(self, method: str, below: Sequence[str], request: Request, caller: Caller) -> Response:
        """below: the segments of the path behind ``subscriptions``. Raises GatewayError."""
        if not self._settings.enabled:
            raise OperationNotSupportedError(
                f"there are no subscriptions here; the operator can set enabled = true in [{_TABLE}]"
            )
        deliveries = self._notifications.deliveries
        await deliveries.recovered.wait()
        message = NgsiMessage(request, self._contexts)
        if not below:
            match method:
                case "POST":
                    return await self._create(message, request, caller)
                case "GET":
                    return self._list(message, request, caller)
            raise MethodError(method, ("GET", "HEAD", "POST"))
        if len(below) > 1 or method not in ("GET", "PATCH", "DELETE"):
            raise MethodError(method, ("DELETE", "GET", "HEAD", "PATCH"))
        worker = self._one(below[0], caller)
        if method == "PATCH":
            return await self._update(worker, message, request, caller)
        if method == "DELETE":
            async with self._changing:
                await worker.stop(UNSUBSCRIBED)
            return Response(status_code=204)
        names = message.names()
        return message.answer(self._subscription_members(worker, names), names)

    def _one(self, identifier: str, caller: Caller) -> DeliveryWorker:
        """Raises UnknownResourceError, also for those of others."""
        try:
            return self._notifications.deliveries.one(identifier, caller)
        except UnknownDeliveryError as error:
            raise UnknownResourceError(f"this client has no subscription {identifier[:200]!r}") from error

    async def _create(self, message: NgsiMessage, request: Request, caller: Caller) -> Response:
        members, names = await message.body()
        _check_type(members, needed=True)
        identifier = members.get("id", members.get("@id", f"urn:ngsi-ld:Subscription:{uuid.uuid4()}"))
        if not isinstance(identifier, str) or not is_absolute(identifier):
            raise MalformedRequestError("id: write a URI such as urn:ngsi-ld:Subscription:1, or leave it out")
        wanted = subscription(kept_members(members, names), names)
        receiver = self._receiver(identifier, wanted, names.given, names.given)
        deliveries = self._notifications.deliveries
        sparql = Watching(wanted, self._graphs).query()
        try:
            with deliveries.asking(caller):
                await deliveries.begin(sparql, None, None, receiver, caller)
        except DeliveryExistsError as error:
            raise AlreadyExistsError(
                f"there is a subscription {identifier[:200]!r}; change it with PATCH, or delete it"
            ) from error
        location = f"{self._root}/subscriptions/{quote(identifier, safe=':')}"
        return Response(status_code=201, headers={"Location": location})

    async def _update(self, worker: DeliveryWorker, message: NgsiMessage, request: Request, caller: Caller) -> Response:
        """Members of the body replace those of the subscription; NULL removes one (5.8.2)."""
        changed, names = await message.body()
        _check_type(changed, needed=False)
        if changed.get("id", worker.id) != worker.id:
            raise MalformedRequestError("id: the id of a subscription cannot be changed; leave it out")
        removed = [name for name, value in changed.items() if value in (NULL, None)]
        fragment = kept_members({name: one for name, one in changed.items() if name not in removed}, names)
        async with self._changing:
            self._one(worker.id, caller)  # it may have ended meanwhile
            document = document_of(worker.receiver)
            members = document.subscription
            if "notification" not in fragment:  # else its headers are replaced, and need not be read
                members = self._notifications.members(worker.receiver, document)
            members = {name: one for name, one in members.items() if name not in removed} | fragment
            q_context = names.given if "q" in fragment else document.q_context
            wanted = subscription(members, self._contexts.names(list(q_context)) if q_context else PLAIN)
            receiver = self._receiver(worker.id, wanted, names.given or document.context, q_context)
            sparql = Watching(wanted, self._graphs).query()
            if sparql == worker.followed.sparql:
                await worker.renew(receiver, cause(request, caller))
            else:
                await worker.follow(sparql, receiver)
            if worker.failures:  # what waits is tried with what has changed
                worker.decide("resend")
        return Response(status_code=204)

    def _receiver(
        self, identifier: str, wanted: EntitySubscription, context: Sequence[Any], q_context: Sequence[Any]
    ) -> Receiver:
        """Raises RequestError."""
        url = checked_url(wanted.url, self._settings.ports, _TABLE, "notification.endpoint.uri")
        if is_past(wanted.expires_at, datetime.now(UTC)):
            raise MalformedRequestError(f"expiresAt: {wanted.expires_at} is in the past")
        if "jsonldContext" in wanted.kept:
            self._contexts.names(wanted.kept["jsonldContext"])
        document = self._notifications.document(identifier, wanted, context, q_context)
        if len(document) > DOCUMENT_CHARS_MAX:
            raise LimitExceededError(
                f"the subscription has {len(document)} characters; {DOCUMENT_CHARS_MAX} are the most; save a long "
                "@context beside lamplighter.toml, and name it by its URL"
            )
        return Receiver(self._notifications.kind, identifier, url, wanted.expires_at, None, document)

    def _list(self, message: NgsiMessage, request: Request, caller: Caller) -> Response:
        limit, offset, count = page(parameters(request).texts())
        names = message.names()
        found = sorted(self._notifications.deliveries.of(caller), key=lambda one: one.id)
        headers = {"NGSILD-Results-Count": str(len(found))} if count else {}
        links = []
        if offset + limit < len(found) and limit:
            others = [("count", "true")] if count else []
            links.append(next_link(page_url(f"{self._root}/subscriptions", others, offset + limit, limit)))
        shown = [self._subscription_members(one, names) for one in found[offset : offset + limit]]
        return message.answer(shown, names, headers, links)

    def _subscription_members(self, worker: DeliveryWorker, names: ContextNames) -> dict[str, Any]:
        """5.2.12, with what is only read."""
        found = subscription_json(worker.id, document_of(worker.receiver).subscription, names)
        found["status"] = "active" if found["isActive"] else "paused"
        told: dict[str, Any] = found["notification"]
        told["timesSent"] = worker.sent
        last = max((at for at in (worker.succeeded_s, worker.failed_s) if at is not None), default=None)
        times: Mapping[str, float | None] = {
            "lastNotification": last,
            "lastSuccess": worker.succeeded_s,
            "lastFailure": worker.failed_s,
        }
        for name, at in times.items():
            if at is not None:
                told[name] = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if worker.failures:
            told |= {"status": "failed", "lastFailureReason": worker.error}
        elif last is not None:
            told["status"] = "ok"
        return found


def _check_type(members: Mapping[str, Any], *, needed: bool) -> None:
    named = members.get("type", members.get("@type"))
    if named != "Subscription" and (needed or named is not None):
        raise MalformedRequestError('type: write "Subscription"')
