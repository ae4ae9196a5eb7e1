"""Exact sums of numbers that come and go, in constant time.

A float is a whole multiple of 2^-1074, so a sum of floats is kept as one integer. The result is the exact sum, rounded
once to the type that SPARQL gives it (SPARQL 1.1 Query, 17.3: the widest of integer, decimal, float, double). It does
not depend on the order of the values, and what is removed leaves no trace.

The store adds one value after the other and rounds each time. With n values its sum of doubles differs from the exact
one by at most ``n * 2^-53 * sum(|value|)``, and a sum with floats by ``n * 2^-24 * sum(|value|)`` (Higham, Accuracy and
Stability of Numerical Algorithms, 4.2). An average has one more rounding.
"""

from __future__ import annotations

from decimal import Context, Decimal
from math import inf, isinf, isnan, nan

from lamplighter.engine.matching.values import Inexact, real_term, single
from lamplighter.engine.terms import Term

# Binary places of the smallest positive double.
_PLACES = 1074
_EXACT = Context(prec=100)
# Sum of the absolute integers and decimals up to which the store's sum of them cannot overflow, in any order.
EXACT_MAX = 10**15


class ExactSum:
    """The sum of integers, decimals, floats and doubles, and how many of each are in it.

    precise: the sum of the integers and decimals; size: that of their absolute values.
    """

    __slots__ = ("_counts", "_fixed", "_infinite", "_nans", "decimals", "precise", "size")

    def __init__(self) -> None:
        self.precise = Decimal(0)
        self.size = Decimal(0)
        self.decimals = 0
        self._fixed = 0  # the finite floats and doubles, in units of 2^-1074
        self._counts = {"float": 0, "double": 0}
        self._nans = 0
        self._infinite = [0, 0]  # negative, positive

    def add(self, value: int | Decimal, times: int) -> None:
        """Adds an integer or decimal (times 1) or removes it (times -1)."""
        self.precise = _EXACT.add(self.precise, times * Decimal(value))
        self.size = _EXACT.add(self.size, times * abs(Decimal(value)))
        self.decimals += times * isinstance(value, Decimal)

    def add_real(self, kind: Inexact, value: float, times: int) -> None:
        """Adds a float or double (times 1) or removes it (times -1)."""
        self._counts[kind] += times
        if isnan(value):
            self._nans += times
        elif isinf(value):
            self._infinite[value > 0] += times
        else:
            numerator, denominator = value.as_integer_ratio()
            self._fixed += times * (numerator << _PLACES + 1 - denominator.bit_length())

    @property
    def kind(self) -> Inexact | None:
        """The type of the sum; None if it is an integer or a decimal."""
        return "double" if self._counts["double"] else "float" if self._counts["float"] else None

    def real(self, divisor: int = 1) -> Term:
        """The sum of numbers some of which are floats or doubles, divided, as a term of `kind`."""
        kind = self.kind
        assert kind is not None
        negative, positive = self._infinite
        if self._nans or (negative and positive):
            return real_term(kind, nan)
        if negative or positive:
            return real_term(kind, inf if positive else -inf)
        numerator, denominator = self._fixed, 1 << _PLACES
        if self.precise:
            above, below = self.precise.as_integer_ratio()
            numerator, denominator = numerator * below + (above << _PLACES), denominator * below
        try:
            value = numerator / (denominator * divisor)
        except OverflowError:
            value = inf if numerator > 0 else -inf
        return real_term(kind, value if kind == "double" else single(value))
