"""Whether messages still arrive. An open socket does not prove it: a broker that lost its state answers pings and sends
nothing. So the adapter sends messages to itself.

The first canary follows each connection, later ones follow a silence. Any other message is as good. A broker may not
permit their topic. So one that has never come back proves nothing: no connection ends for it, and no more are sent.
"""

from __future__ import annotations

from typing import Literal

ANSWER_S = 10.0
"""How long a canary may take. It comes behind the messages that the broker queued, which count as well."""
SHORT_S, SHORT_MAX = 5.0, 3
"""Some brokers answer a forbidden message by ending the connection. After so many connections in a row that ended so
soon, before a canary has ever come back, no more are sent."""

Verdict = Literal["wait", "send", "subscribe", "deaf", "given up"]


class Canary:
    """Decides what to do about silence; the connection does it. All times: of one monotonic clock, in seconds.

    It outlives connections. interval_s: of silence before the next canary; 0: never one.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._returned = False
        self._short = 0
        self._connected_at: float | None = None
        self.given_up = False
        """None ever came back: the broker does not permit its topic."""
        self.arrivals = 0
        """Messages and canaries that came."""
        self._heard_at: float | None = None
        self._sent_at: float | None = None
        self._asked_again = False

    @property
    def used(self) -> bool:
        """Whether canaries are sent."""
        return bool(self._interval_s) and not self.given_up

    def demand(self, now: float) -> None:
        """The next canary is due now, unless one is on its way."""
        if self._heard_at is not None and self._sent_at is None:
            self._heard_at = min(self._heard_at, now - self._interval_s)

    def connected(self, now: float) -> None:
        """On a new connection; its subscriptions do not stand yet."""
        self._connected_at = now
        self._heard_at = self._sent_at = None
        self._asked_again = False

    def end(self, now: float) -> None:
        """The connection has ended, if there was one."""
        if self._connected_at is not None and not self._returned:
            self._short = self._short + 1 if now - self._connected_at < SHORT_S else 0
            self.given_up = self.given_up or self._short >= SHORT_MAX
        self._connected_at = None

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
        """What to do now: wait; send a canary; subscribe again, as the broker seems to have lost the subscriptions;
        end the connection, which is deaf; or say that canaries are given up."""
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
            self.given_up = not self._returned
            return "deaf" if self._returned else "given up"
        self._asked_again = True
        self._heard_at = None  # until the subscriptions stand again
        return "subscribe"
