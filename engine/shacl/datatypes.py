"""Whether a literal has a datatype and a text that the datatype allows (SHACL, 4.1.2).

The store keeps values: each type that XML Schema derives from xsd:integer becomes xsd:integer, and xsd:dateTimeStamp
becomes xsd:dateTime. So these types stand for the range of their values here.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable

from lamplighter.engine.shacl.model import LANG_STRING
from lamplighter.engine.terms import XSD, Term, lexical

_INTEGER = f"<{XSD}integer>"
_RANGES: dict[str, tuple[int | None, int | None]] = {
    "byte": (-(2**7), 2**7 - 1),
    "short": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "unsignedByte": (0, 2**8 - 1),
    "unsignedShort": (0, 2**16 - 1),
    "unsignedInt": (0, 2**32 - 1),
    "unsignedLong": (0, 2**64 - 1),
    "nonNegativeInteger": (0, None),
    "positiveInteger": (1, None),
    "nonPositiveInteger": (None, 0),
    "negativeInteger": (None, -1),
}
_ZONE = r"(?:Z|[+-](?:0\d|1[0-3]):[0-5]\d|[+-]14:00)"
_TIME = r"(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?|24:00:00(?:\.0+)?)"
_DAY = r"(?P<year>-?(?:[1-9]\d{3,}|0\d{3}))-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])"
_DURATION_DAY = r"(?:\d+D)"
_DURATION_TIME = r"(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)"
_FORMS = {
    "integer": r"[+-]?\d+",
    "decimal": r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)",
    "double": r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?INF|NaN",
    "float": r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?INF|NaN",
    "boolean": r"true|false|1|0",
    "dateTime": rf"{_DAY}T{_TIME}{_ZONE}?",
    "date": rf"{_DAY}{_ZONE}?",
    "time": rf"{_TIME}{_ZONE}?",
    "gYear": rf"-?(?:[1-9]\d{{3,}}|0\d{{3}}){_ZONE}?",
    "gYearMonth": rf"-?(?:[1-9]\d{{3,}}|0\d{{3}})-(?:0[1-9]|1[0-2]){_ZONE}?",
    "gMonth": rf"--(?:0[1-9]|1[0-2]){_ZONE}?",
    "gDay": rf"---(?:0[1-9]|[12]\d|3[01]){_ZONE}?",
    "gMonthDay": rf"--(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]){_ZONE}?",
    "duration": rf"-?P(?=[\dT])(?:\d+Y)?(?:\d+M)?{_DURATION_DAY}?{_DURATION_TIME}?",
    "dayTimeDuration": rf"-?P(?=[\dT]){_DURATION_DAY}?{_DURATION_TIME}?",
    "yearMonthDuration": r"-?P(?=\d)(?:\d+Y)?(?:\d+M)?",
    "hexBinary": r"(?:[0-9a-fA-F]{2})*",
}
# Python refuses to read longer integers.
_DIGITS_MAX = 4000


def datatype_of(term: Term) -> Term | None:
    """The datatype of a literal, None for any other term."""
    if not term.startswith('"'):
        return None
    suffix = term[term.rindex('"') + 1 :]
    if not suffix:
        return f"<{XSD}string>"
    if suffix[0] == "@":
        return LANG_STRING if "--" not in suffix else LANG_STRING.replace("langString", "dirLangString")
    return suffix[2:]


def language_of(term: Term) -> str:
    """The language tag of a literal, empty if it has none."""
    suffix = term[term.rindex('"') + 1 :] if term.startswith('"') else ""
    return suffix[1:].partition("--")[0] if suffix.startswith("@") else ""


def checked_by(datatype: Term) -> Callable[[Term], bool]:
    """A function that tells whether a term is a valid literal of a datatype. It takes linear time."""
    name = datatype[1:-1].removeprefix(XSD)
    if datatype == f"<{XSD}dateTimeStamp>":
        return _form_check(f"<{XSD}dateTime>", rf"{_DAY}T{_TIME}{_ZONE}")
    if name in _RANGES and datatype == f"<{XSD}{name}>":
        return _integer(*_RANGES[name])
    if name in _FORMS and datatype == f"<{XSD}{name}>":
        return _form_check(datatype, _FORMS[name])
    if datatype == f"<{XSD}string>":
        return lambda term: term.startswith('"') and term.endswith('"')
    return lambda term: datatype_of(term) == datatype


def _form_check(datatype: Term, form: str) -> Callable[[Term], bool]:
    suffix = f'"^^{datatype}'
    matches = re.compile(rf"(?:{form})\Z", re.ASCII).match
    dated = "(?P<day>" in form

    def valid(term: Term) -> bool:
        if not term.endswith(suffix):
            return False
        found = matches(term[1 : -len(suffix)])
        return found is not None and (not dated or int(found["day"]) <= _days(found["year"], int(found["month"])))

    return valid


def _days(year: str, month: int) -> int:
    """The days of a month. The calendar repeats every 400 years."""
    return monthrange(2000 + int(year[-4:]) % 400 if year[0] != "-" else 2000, month)[1]


def _integer(least: int | None, most: int | None) -> Callable[[Term], bool]:
    formed = _form_check(_INTEGER, _FORMS["integer"])

    def valid(term: Term) -> bool:
        if len(term) > _DIGITS_MAX or not formed(term):
            return False
        value = int(lexical(term))
        return (least is None or value >= least) and (most is None or value <= most)

    return valid
