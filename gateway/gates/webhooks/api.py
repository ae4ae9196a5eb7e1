"""Paths of webhooks, ``/webhooks`` and ``/webhooks/ID``, and what a receiver is asked and told.

A receiver is asked for its intent (WebSub, 5.3) by a GET of its URL with the parameters ``hub.*``. It agrees by an
answer of 2xx whose body is the challenge. So nobody can have notifications sent to a URL whose owner does not want
them.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

from lamplighter.engine.client.outward import OutwardHttp
from lamplighter.engine.errors import RequestError, UpstreamError
from lamplighter.engine.protocol import members_message
from lamplighter.gateway.gates.deliveries.api import UNSUBSCRIBED, DeliveryApi, WantedDelivery
from lamplighter.gateway.gates.deliveries.registry import checked_url
from lamplighter.gateway.gates.deliveries.worker import DeliveryRequest, DeliveryWorker, WaitingNotification, failure
from lamplighter.gateway.gates.http.answers import JSON
from lamplighter.gateway.settings.deliveries import LeasedDeliverySettings


class _WantedWebhook(WantedDelivery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """callback: the URL of the receiver."""

    callback: str


class Webhooks(DeliveryApi):
    """The door, and the kind of its deliveries."""

    name = "webhooks"
    kind = "webhook"
    wanted = _WantedWebhook

    @property
    def table(self) -> LeasedDeliverySettings:
        return self.settings.webhooks

    def about(self) -> Iterator[tuple[str, str]]:
        yield "/webhooks", "webhooks: POST {query, callback} to register one; /webhooks/<id>"

    async def request(self, worker: DeliveryWorker, message: WaitingNotification, part: int) -> DeliveryRequest:
        """As over WebSocket (docs/protocol.md), with the headers of WebSub, section 7."""
        more = None if message.reset is None else {"reset": message.reset}
        body = members_message(message.spuid, message.sequence, message.members, worker.receiver.alias, more)
        headers = {
            "Content-Type": JSON,
            "User-Agent": "lamplighter",
            "Link": f'<{self.topic(worker.id)}>; rel="self", <{self.address}/webhooks>; rel="hub"',
            "Webhook-Id": message.name,
            "Idempotency-Key": message.name,
            "X-Hub-Signature": f"sha256={self.deliveries.keys.signature(worker.id, body)}",
        }
        return DeliveryRequest(headers, body)

    def secrets(self, name: str) -> Mapping[str, str]:
        return {"secret": self.deliveries.keys.secret(name)}

    async def receiver_url(self, wanted: WantedDelivery, topic: str, lease_s: int | None) -> str:
        assert isinstance(wanted, _WantedWebhook)
        callback = checked_url(wanted.callback, self.table.ports, self.name, "callback")
        await verify(self.deliveries.asking_http, callback, "subscribe", topic, lease_s)
        return callback

    async def confirm_end(self, worker: DeliveryWorker) -> Mapping[str, object]:
        """The client is authenticated, so its receiver, which may be gone, is asked but need not agree."""
        try:
            await verify(self.deliveries.asking_http, worker.receiver.url, "unsubscribe", self.topic(worker.id))
        except IntentNotVerifiedError as error:
            return {"confirmed": False, "reason": str(error)}
        return {"confirmed": True}

    async def tell_end(self, worker: DeliveryWorker) -> None:
        if worker.ended != UNSUBSCRIBED:
            await deny(self.deliveries.asking_http, worker.receiver.url, self.topic(worker.id), worker.ended)


class IntentNotVerifiedError(RequestError):
    """The receiver does not confirm that it wants the notifications, or cannot be asked."""

    code = "not_verified"
    status = 403


async def verify(http: OutwardHttp, callback: str, mode: str, topic: str, lease_s: int | None = None) -> None:
    """Asks a receiver. mode: ``subscribe`` or ``unsubscribe``. Raises IntentNotVerifiedError."""
    challenge = secrets.token_urlsafe(32)
    parameters = {"hub.mode": mode, "hub.topic": topic, "hub.challenge": challenge}
    if lease_s is not None:
        parameters["hub.lease_seconds"] = str(lease_s)
    try:
        answer = await http.send("GET", _with(callback, parameters), {})
    except UpstreamError as error:
        raise IntentNotVerifiedError(f"the receiver cannot be asked for its intent: {error}") from error
    reason = failure(answer)
    if reason:
        raise IntentNotVerifiedError(f"the receiver does not confirm: {reason}")
    if not hmac.compare_digest(answer.body, challenge.encode()):
        raise IntentNotVerifiedError("the receiver does not confirm: the body of its answer is not hub.challenge")


async def deny(http: OutwardHttp, callback: str, topic: str, reason: str) -> None:
    """Tells a receiver that nothing follows. Raises UpstreamError."""
    await http.send("GET", _with(callback, {"hub.mode": "denied", "hub.topic": topic, "hub.reason": reason[:500]}), {})


def _with(url: str, parameters: dict[str, str]) -> str:
    """A URL with further parameters. Those that it has stay (WebSub, 5.1)."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"
