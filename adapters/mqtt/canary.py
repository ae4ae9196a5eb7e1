"""Whether messages still arrive. An open socket does not prove it: a broker that lost its state answers pings and sends
nothing. So the adapter sends messages to itself.

The first canary follows each connection, later ones follow a silence. Any other message is as good.
"""

from __future__ import annotations

from typing import Literal

ANSWER_S = 10.0
"""How long a canary may take. It comes behind the messages that the broker queued, which count as well."""
IN_VAIN_MAX = 2
"""Connections that end as deaf before the first canary has ever come back; then no more are sent."""

Verdict = Literal["wait", "send", "subscribe", "deaf"]


class Canary:
    """Decides what to do about silence; the connection does it. All times: of one monotonic clock, in seconds.

    It outlives connections. interval_s: of silence before the next canary; 0: never one.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._returned = False
        self._in_vain = 0
        self.arrivals = 0
        """Messages and canaries that came."""
        self._heard_at: float | None = None
        self.connected()

    @property
    def given_up(self) -> bool:
        """None ever came back, over several connections: the broker does not permit its topic."""
        return self._in_vain >= IN_VAIN_MAX

    @property
    def used(self) -> bool:
        """Whether canaries are sent."""
        return bool(self._interval_s) and not self.given_up

    def demand(self, now: float) -> None:
        """The next canary is due now, unless one is on its way."""
        if self._heard_at is not None and self._sent_at is None:
            self._heard_at = min(self._heard_at, now - self._interval_s)

    def connected(self) -> None:
        """On a new connection; its subscriptions do not stand yet."""
        self._heard_at = None
        self._sent_at: float | None = None
        self._asked_again = False

    def subscribed(self, now: float) -> None:
        """The subscriptions stand: the first canary is due."""
        self._heard_at = now - self._interval_s
        self._sent_at = None

    def returned(self, now: float) -> None:
        """The canary came back."""
        self._returned = True
        self.heard(now)

    def heard(self, now: float) -> None:
        """A message came."""
        self.arrivals += 1
        self._heard_at = now
        self._sent_at = None
        self._asked_again = False

    def pause(self) -> None:
        """Messages are not read for a while, so that silence means nothing."""
        self._sent_at = None

    def verdict(self, now: float) -> Verdict:
        """What to do now: wait; send a canary; subscribe again, as the broker seems to have lost the subscriptions; or
        end the connection, which is deaf."""
        if self._heard_at is None or not self.used:
            return "wait"
        if self._sent_at is None:
            if now - self._heard_at < self._interval_s:
                return "wait"
            self._sent_at = now
            return "send"
        if now - self._sent_at < ANSWER_S:
            return "wait"
        if self._asked_again:
            self._in_vain += not self._returned
            return "deaf"
        self._asked_again = True
        self._heard_at = None  # until the subscriptions stand again
        return "subscribe"
