"""``[webhooks]``, ``[ldn]`` and ``[ngsild.subscriptions]``: notifications that the gateway delivers itself, and its
inbox."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lamplighter.adapters.networks import parse

Positive = Annotated[int, msgspec.Meta(ge=1)]


class DeliverySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all tables have.

    networks: that may be called besides public addresses: ``private`` for those of the machine, or such as
    ``192.168.7.0/24``; ports: that may be called, empty for all; deliveries_max: registered ones, of which a
    registered client has as many as it leaves free; concurrent_max: requests at the same time; timeout_s: of one
    request; attempts_max: failures in a row after which a delivery waits for a decision; backoff_ms, backoff_s_max: the
    pause after the first failure, which doubles with each, and the longest.
    """

    enabled: bool = False
    networks: list[str] = []
    ports: list[Annotated[int, msgspec.Meta(ge=1, le=65535)]] = msgspec.field(
        default_factory=lambda: [80, 443, 8080, 8443]
    )
    deliveries_max: Positive = 100
    concurrent_max: Annotated[int, msgspec.Meta(ge=2)] = 8
    timeout_s: Positive = 10
    attempts_max: Positive = 20
    backoff_ms: Positive = 1000
    backoff_s_max: Positive = 3600

    def __post_init__(self) -> None:
        parse(self.networks)


class LeasedDeliverySettings(DeliverySettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Those of deliveries that have to be renewed. lease_s_max: the longest lease."""

    lease_s_max: Positive = 2_592_000


class WebhookSettings(LeasedDeliverySettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[webhooks]``."""


class EntitySubscriptionSettings(DeliverySettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[ngsild.subscriptions]``."""


class LdnSettings(LeasedDeliverySettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[ldn]``. inbox_max: notifications in the inbox, of which the oldest is removed for a further one;
    notification_bytes_max: of one."""

    inbox_max: Positive = 1000
    notification_bytes_max: Positive = 65_536
