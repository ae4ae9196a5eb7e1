"""Paths of webhooks: ``/webhooks`` and ``/webhooks/ID``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lamplighter.engine.protocol import members_message
from lamplighter.gateway.gates.deliveries.dispatch import DeliveryRequest, Dispatch, WaitingNotification
from lamplighter.gateway.gates.deliveries.door import UNSUBSCRIBED, DeliveryDoor, WantedDelivery
from lamplighter.gateway.gates.deliveries.targets import checked_url
from lamplighter.gateway.gates.http.answers import JSON
from lamplighter.gateway.gates.webhooks.intent import IntentNotVerifiedError, deny, verify
from lamplighter.gateway.settings.deliveries import LeasedDeliverySettings


class _WantedWebhook(WantedDelivery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """callback: the URL of the receiver."""

    callback: str


class Webhooks(DeliveryDoor):
    """The door, and the kind of its deliveries."""

    name = "webhooks"
    kind = "webhook"
    wanted = _WantedWebhook

    @property
    def table(self) -> LeasedDeliverySettings:
        return self.settings.webhooks

    def about(self) -> Iterator[tuple[str, str]]:
        yield "/webhooks", "webhooks: POST {query, callback} to register one; /webhooks/<id>"

    async def request(self, dispatch: Dispatch, message: WaitingNotification, part: int) -> DeliveryRequest:
        """As over WebSocket (docs/protocol.md), with the headers of WebSub, section 7."""
        more = None if message.reset is None else {"reset": message.reset}
        body = members_message(message.spuid, message.sequence, message.members, dispatch.receiver.alias, more)
        headers = {
            "Content-Type": JSON,
            "User-Agent": "lamplighter",
            "Link": f'<{self.topic(dispatch.id)}>; rel="self", <{self.address}/webhooks>; rel="hub"',
            "Webhook-Id": message.name,
            "Idempotency-Key": message.name,
            "X-Hub-Signature": f"sha256={self.deliveries.keys.signature(dispatch.id, body)}",
        }
        return DeliveryRequest(headers, body)

    def secrets(self, name: str) -> Mapping[str, str]:
        return {"secret": self.deliveries.keys.secret(name)}

    async def agreed(self, wanted: WantedDelivery, topic: str, lease_s: int | None) -> str:
        assert isinstance(wanted, _WantedWebhook)
        callback = checked_url(wanted.callback, self.table.ports, self.name, "callback")
        await verify(self.deliveries.asking_http, callback, "subscribe", topic, lease_s)
        return callback

    async def unsubscribed(self, dispatch: Dispatch) -> Mapping[str, object]:
        """The client is authenticated, so its receiver, which may be gone, is asked but need not agree."""
        try:
            await verify(self.deliveries.asking_http, dispatch.receiver.url, "unsubscribe", self.topic(dispatch.id))
        except IntentNotVerifiedError as error:
            return {"confirmed": False, "reason": str(error)}
        return {"confirmed": True}

    async def ended(self, dispatch: Dispatch) -> None:
        if dispatch.ended != UNSUBSCRIBED:
            await deny(self.deliveries.asking_http, dispatch.receiver.url, self.topic(dispatch.id), dispatch.ended)
