"""Values of payloads -> typed literals: numbers, booleans, texts, words of an enumeration, scaled numbers."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from lamplighter.adapters.literals import ERROR, FALSE, NIL, TRUE, UNKNOWN
from lamplighter.adapters.mapping.payloads import Found, Number
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import XSD, Term, literal

NUMBER_CHARS_MAX = 64
TEXT_CHARS_MAX = 8_192
WORDS_MAX = 1_000
DIGITS_MAX = 30
"""Of scale and offset, before and behind the point."""

ValueTerm = Callable[[Found], Term]
"""Raises PayloadError; its reason never quotes the value."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][+-]?0*[0-9]{1,4}")
"""An exponent of more digits is out of the range of decimal numbers, which scales and dead bands compute with."""
_XSD_INTEGER, _XSD_DECIMAL, _XSD_DOUBLE = f"^^<{XSD}integer>", f"^^<{XSD}decimal>", f"^^<{XSD}double>"
_INTEGER_MAX = 10**NUMBER_CHARS_MAX
ON_WORDS, OFF_WORDS = ("true", "on", "1", "online"), ("false", "off", "0", "offline")

NIL_WORDS = frozenset(("none", "null", "nil", "nan", "unavailable", "unknown"))
"""What programs send in the place of a number or a boolean that they do not have, in small letters: Python, JSON, Go,
C, and Home Assistant."""

_EXACT = decimal.Context(prec=4 * (NUMBER_CHARS_MAX + DIGITS_MAX), Emax=10_000, Emin=-10_000)


def number(found: Found) -> Term:
    """A number as it is spelled: xsd:integer, xsd:decimal or xsd:double; `UNKNOWN` for a word of `NIL_WORDS`."""
    if isinstance(found, str):
        text = found.strip()
        if len(text) > NUMBER_CHARS_MAX:
            raise PayloadError(f"the number has more than {NUMBER_CHARS_MAX} characters")
        if _INTEGER.fullmatch(text):
            return f'"{text}"{_XSD_INTEGER}'
        if _DECIMAL.fullmatch(text):
            return f'"{text}"{_XSD_DECIMAL}'
        if _DOUBLE.fullmatch(text) and math.isfinite(float(text)):
            return f'"{text}"{_XSD_DOUBLE}'
        if text.lower() in NIL_WORDS:
            return UNKNOWN
    elif isinstance(found, float):
        if math.isfinite(found):
            return f'"{found!r}"{_XSD_DOUBLE}'
        if math.isnan(found):
            return UNKNOWN
    elif not isinstance(found, bool):
        if not -_INTEGER_MAX < found < _INTEGER_MAX:
            raise PayloadError(f"the number has more than {NUMBER_CHARS_MAX} characters")
        return f'"{found}"{_XSD_INTEGER}'
    raise PayloadError("not a number")


def scaling(scale: Decimal | None, offset: Decimal | None, digits: int | None = None) -> ValueTerm:
    """Value * scale + offset: exact for integers and decimals, rounded once for doubles. digits: behind the point, to
    which it is rounded, 0.5 away from 0. Raises ValueError."""
    factor, summand = checked_decimal(Decimal(1) if scale is None else scale), checked_decimal(offset or Decimal(0))
    step = None if digits is None else Decimal(1).scaleb(-digits)

    def term(found: Found) -> Term:
        spelled = number(found)
        if spelled.endswith(NIL):
            return spelled
        text = spelled[1 : spelled.rindex('"')]
        result = _EXACT.add(_EXACT.multiply(Decimal(text), factor), summand)
        if step is not None:
            try:
                result = result.quantize(step, ROUND_HALF_UP, _EXACT)
            except InvalidOperation:
                raise PayloadError("the number is too large to be rounded") from None
            return number(Number(format(result, "f")))
        if spelled.endswith(_XSD_DOUBLE):
            return number(float(result))
        plain = format(result, "f")
        return number(Number(plain))

    return term


def boolean(on: Sequence[str] | None, off: Sequence[str] | None) -> ValueTerm:
    """A boolean by its words, whose case does not matter. A given list replaces the usual words of its side.

    Raises ValueError.
    """
    if len(on or ()) + len(off or ()) > WORDS_MAX or on == [] or off == []:
        raise ValueError(f"write 1 to {WORDS_MAX} words")
    true, false = _fold(ON_WORDS if on is None else on), _fold(OFF_WORDS if off is None else off)
    if on is None:
        true -= false
    elif off is None:
        false -= true
    if true & false:
        raise ValueError(f"{sorted(true & false)[0]!r} is a word of both on and off")
    words = dict.fromkeys(true, TRUE) | dict.fromkeys(false, FALSE)
    longest = max(map(len, words))
    usual = on is None and off is None
    reason = "not a boolean (true/false, on/off, 1/0, online/offline)" if usual else "not a word of on or off"

    def term(found: Found) -> Term:
        word = (found if isinstance(found, str) else str(found)).strip()
        value = words.get(word.lower()) if len(word) <= longest else None
        if value is None:
            if word.lower() in NIL_WORDS:
                return UNKNOWN
            raise PayloadError(reason)
        return value

    return term


def _fold(words: Sequence[str]) -> set[str]:
    return {word.strip().lower() for word in words}


def text(found: Found) -> Term:
    """A text as xsd:string; a number or a boolean as it is spelled."""
    if isinstance(found, bool):
        found = "true" if found else "false"
    found = str(found)
    try:
        found.encode()  # JSON can escape half a surrogate pair, which no store accepts
    except UnicodeEncodeError as error:
        raise PayloadError("not Unicode text") from error
    if len(found) > TEXT_CHARS_MAX:
        raise PayloadError(f"the text has more than {TEXT_CHARS_MAX} characters")
    return literal(found)


def enumeration(words: Mapping[str, Term]) -> ValueTerm:
    """The term of a word of the table."""

    def term(found: Found) -> Term:
        key = str(found).lower() if isinstance(found, bool) else str(found).strip()
        value = words.get(key)
        if value is None:
            raise PayloadError("not a word of the table words")
        return value

    return term


def without(words: Sequence[str], term: ValueTerm, *, numbers: bool) -> ValueTerm:
    """The same, with words that mean that there is no value. numbers: those that are numbers are error codes, however
    they are spelled. Raises ValueError."""
    if not 0 < len(words) <= WORDS_MAX:
        raise ValueError(f"write 1 to {WORDS_MAX} words")
    nil: dict[str | Decimal, Term] = {}
    for word in words:
        code = _decimal(word) if numbers else None
        nil[word.strip() if code is None else code] = UNKNOWN if code is None else ERROR

    def term_or_nil(found: Found) -> Term:
        word = str(found).strip() if not isinstance(found, bool) else ("true" if found else "false")
        if len(word) > TEXT_CHARS_MAX:
            return term(found)
        code = _decimal(word) if numbers else None
        value = nil.get(word if code is None else code)
        return term(found) if value is None else value

    return term_or_nil


def _decimal(word: str) -> Decimal | None:
    """The number that a word is; None if it is none."""
    try:
        code = Decimal(word.strip()) if len(word) <= NUMBER_CHARS_MAX else None
    except decimal.InvalidOperation:
        return None
    return code if code is not None and code.is_finite() else None


def any_kind(found: Found) -> Term:
    """By the type of a record's value: boolean, number or text."""
    if isinstance(found, bool):
        return TRUE if found else FALSE
    if isinstance(found, str) and not isinstance(found, Number):
        return text(found)
    return number(found)


def checked_decimal(value: Decimal) -> Decimal:
    """The number of a rule, if it is finite and short. Raises ValueError."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -DIGITS_MAX or (value and value.adjusted() >= DIGITS_MAX):
        raise ValueError(f"write a number of at most {DIGITS_MAX} digits before and behind the point")
    return value
