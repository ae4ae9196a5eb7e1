"""Which notification of an observed resource is the newest, and how long a state is fresh (RFC 7641).

Pure. Times are those of one clock that never goes back, in seconds.
"""

from __future__ import annotations

from typing import NamedTuple

# Without the option Max-Age (RFC 7252 section 5.10.5).
MAX_AGE_S = 60.0
# A server checks its observers once a day (RFC 7641 section 4.5), so a registration is renewed at least as often.
RENEWAL_S_MAX = 86_400.0
# The observer renews its registration after Max-Age and so much more, at random (RFC 7641 section 3.3.1).
MARGIN_S = 5.0, 15.0

_HALF = 1 << 23
_WINDOW_S = 128.0


class NotificationOrder:
    """The order of notifications of one observation (RFC 7641 section 3.4).

    protected: the numbers are OSCORE's partial initialisation vectors, which only grow. A notification that is received
    twice is then a replay, whatever the time.
    """

    def __init__(self, *, protected: bool = False) -> None:
        self._protected = protected
        self._last: tuple[int, float] | None = None

    def restart(self, number: int, at: float) -> None:
        """Takes the answer to a registration, which is always the newest. The server may have rebooted and count again
        from the start."""
        self._last = number, at

    def takes(self, number: int, at: float) -> bool:
        """Whether a notification is newer than all before it; if so, it is the newest from now on."""
        if self._last is None:
            newer = True
        else:
            last, last_at = self._last
            if self._protected:
                newer = number > last
            else:
                # Numbers have 24 bits and wrap. After 128 s order by number is not reliable, and the later one counts.
                newer = 0 < (number - last) % (2 * _HALF) < _HALF or at > last_at + _WINDOW_S
        if newer:
            self._last = number, at
        return newer


class Fresh(NamedTuple):
    """until: the state is fresh. renewal: the registration is renewed if there was no notification."""

    until: float
    renewal: float


def fresh(at: float, max_age_s: float | None, margin_s: float) -> Fresh:
    """The freshness of a state that arrived at a time. max_age_s: None if neither device nor rule say it."""
    age = MAX_AGE_S if max_age_s is None else max_age_s
    return Fresh(at + age, at + min(age + margin_s, RENEWAL_S_MAX))
