"""Lifetimes of tokens.

Within the boot in which a token was issued, its lifetime is measured on CLOCK_BOOTTIME. Steps of the wall clock do not
change it, and a board without a clock can issue tokens. Across boots only the wall clock is left: if it was not trusted
at issue or is not trusted now, the token is expired and the client fetches another.
"""

from __future__ import annotations

import msgspec


class ClockReading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time on all clocks. boot: the start of the machine that `up_us` counts from; wall_us: since 1970; trusted:
    whether the wall clock was synchronised."""

    boot: str
    up_us: int
    wall_us: int
    trusted: bool

    def is_over(self, life_us: int, now: ClockReading) -> bool:
        """Whether a lifetime that began at this moment is over, as far as is known now."""
        if self.boot == now.boot:
            return not 0 <= now.up_us - self.up_us < life_us
        return not (self.trusted and now.trusted and 0 <= now.wall_us - self.wall_us < life_us)

    def is_over_for_ever(self, life_us: int, now: ClockReading) -> bool:
        """Whether the lifetime is over whatever a clock that becomes trusted or is stepped back says later."""
        if self.boot == now.boot:
            return now.up_us - self.up_us >= life_us
        return not self.trusted or (now.trusted and now.wall_us - self.wall_us >= life_us)
