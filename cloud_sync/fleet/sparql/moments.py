"""Times of SPARQL: xsd:dateTime, xsd:date and xsd:time (XML Schema 1.1, part 2, sections 3.3.7 to 3.3.9).

The years of times that are compared have nine digits at most; a later time is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.values import (
    STRING,
    TERM,
    TypedColumn,
    datatype_suffix,
    inside,
    let,
    suffix,
    typed_literal,
)
from lamplighter.engine.terms import XSD

if TYPE_CHECKING:
    from pyspark.sql import Column

_DATE = "(-?(?:[1-9][0-9]{4,8}|[0-9]{4}))-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,18})?)"
_ZONE = "(Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9]|[+-]14:00)?"
_KIND = rf'"\^\^<{XSD}(dateTime|date)>$'
_MOMENT = f'^"{_DATE}(?:T{_TIME}(?=.*#dateTime>$)|(?=.*#date>$)){_ZONE}{_KIND}'
_TIME_OF_DAY = rf'^"{_TIME}{_ZONE}"\^\^<{XSD}time>$'
# The end of a day, which is the begin of the next one (XML Schema 1.1, part 2, section 3.3.7).
_END_OF_DAY = r'^"([0-9]{4}-[0-9]{2}-[0-9]{2})T24:00:00(?:\.0+)?([^"]*".*)$'
_END_OF_TIME = r'^"24:00:00(?:\.0+)?([^"]*"\^\^.*)$'
_PARTS = ("YEAR", "MONTH", "DAY", "HOURS", "MINUTES", "SECONDS", "ZONE", "KIND")
_PLAIN_UTC = r'^"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z"\^\^'
_SECONDS = "decimal(38,18)"
_ZONE_MAX_S = 14 * 3600
_DAYS_TO_1970 = 719_468


def microseconds(term: Column) -> Column:
    """The time of an xsd:dateTime in UTC with a year of four digits, cut to microseconds; null for other terms."""
    utc = F.endswith(term, F.lit('Z"' + datatype_suffix("dateTime"))) & term.rlike(_PLAIN_UTC)
    return F.when(utc, F.unix_micros(inside(term).try_cast("timestamp")))


def _without_hour_24(term: Column) -> Column:
    """The same time of a year of four digits, with the hour 0 for 24. term: cheap."""
    day = F.regexp_extract(term, _END_OF_DAY, 1).try_cast("date")
    # Spark writes the year 10000 with a sign.
    next_day = F.ltrim(F.date_format(F.date_add(day, 1), "yyyy-MM-dd"), F.lit("+"))
    rest = F.regexp_extract(term, _END_OF_DAY, 2)
    return (
        F.when(F.contains(term, F.lit("T24:")), F.concat(F.lit('"'), next_day, F.lit("T00:00:00"), rest))
        .when(F.startswith(term, F.lit('"24:')), F.regexp_replace(term, _END_OF_TIME, '"00:00:00$1'))
        .otherwise(term)
    )


def moment(term: Column) -> Column:
    """struct<kind STRING, seconds DECIMAL, zoned BOOLEAN> of a dateTime or date; null for other terms. term: cheap."""
    return let((TypedColumn(TERM, _without_hour_24(term)),), _moment)


def _moment(term: Column) -> Column:
    """As `moment`, of a term without the hour 24."""
    whole, texts = ("YEAR", "MONTH", "DAY"), ("HOURS", "MINUTES", "SECONDS", "ZONE", "KIND")
    parts = F.struct(
        *(_part(term, name).try_cast("bigint").alias(name) for name in whole),
        *(_part(term, name).alias(name) for name in texts),
    )

    def body(x: Column) -> Column:
        hours = F.coalesce(x["HOURS"].try_cast("bigint"), F.lit(0))
        minutes = F.coalesce(x["MINUTES"].try_cast("bigint"), F.lit(0)) - _offset_minutes(x["ZONE"])
        whole = (_days(x) * 86_400 + hours * 3600 + minutes * 60).cast("decimal(20,0)")
        second = F.coalesce(x["SECONDS"].try_cast("decimal(20,18)"), F.lit(0).cast("decimal(20,18)"))
        found = F.struct(
            x["KIND"].alias("kind"),
            F.try_add(whole, second).cast(_SECONDS).alias("seconds"),
            (x["ZONE"] != "").alias("zoned"),
        )
        return F.when(_is_day(x), found)

    return let((TypedColumn(TERM, F.when(term.rlike(_MOMENT), parts)),), body)


def _part(term: Column, name: str) -> Column:
    return F.regexp_extract(term, _MOMENT, _PARTS.index(name) + 1)


def _is_day(x: Column) -> Column:
    """Whether the month has that day."""
    leap = (x["YEAR"] % 4 == 0) & ((x["YEAR"] % 100 != 0) | (x["YEAR"] % 400 == 0))
    last = F.when(x["MONTH"].isin(4, 6, 9, 11), 30).when(x["MONTH"] != 2, 31).when(leap, 29).otherwise(28)
    return x["DAY"] <= last


def _days(x: Column) -> Column:
    """The days since 1970 of the proleptic Gregorian calendar, counted in years that begin in March."""
    year = x["YEAR"] - (x["MONTH"] <= 2).cast("bigint")
    month = F.pmod(x["MONTH"] + 9, F.lit(12))
    leaps = F.floor(year / 4) - F.floor(year / 100) + F.floor(year / 400)
    return year * 365 + leaps + F.floor((month * 153 + 2) / 5) + x["DAY"] - 1 - _DAYS_TO_1970


def _offset_minutes(zone: Column) -> Column:
    minutes = F.substring(zone, 2, 2).try_cast("int") * 60 + F.substring(zone, 5, 2).try_cast("int")
    return F.when(F.startswith(zone, F.lit("-")), -minutes).when(F.startswith(zone, F.lit("+")), minutes).otherwise(0)


def ordering(left: Column, right: Column) -> Column:
    """-1, 0 or 1 for two moments of one kind; null for others. left, right: cheap.

    One with a zone and one without are comparable if they are more than 14 hours apart.
    """

    def sign(x: Column) -> Column:
        known = x["alike"] | (F.abs(x["apart"]) > _ZONE_MAX_S)
        return F.when(known, F.when(x["apart"] > 0, 1).when(x["apart"] < 0, -1).when(x["apart"] == 0, 0))

    apart = F.when(left["kind"] == right["kind"], F.try_subtract(left["seconds"], right["seconds"]))
    both = F.struct(apart.alias("apart"), (left["zoned"] == right["zoned"]).alias("alike"))
    return let((TypedColumn(TERM, both),), sign)


def same(left: Column, right: Column) -> Column:
    """Whether two moments of one kind are equal: never if only one has a zone. left, right: cheap."""
    return (left["zoned"] == right["zoned"]) & (left["seconds"] == right["seconds"])


def part(name: str, term: Column) -> Column:
    """YEAR, MONTH, DAY, HOURS or MINUTES as a bigint, SECONDS as text; null for other terms. term: cheap."""

    def body(plain: Column) -> Column:
        found = F.when(_moment(plain).isNotNull(), _part(plain, name))
        if name in ("HOURS", "MINUTES", "SECONDS"):
            at = _PARTS.index(name) - 2
            found = found.when(plain.rlike(_TIME_OF_DAY), F.regexp_extract(plain, _TIME_OF_DAY, at))
        return found if name == "SECONDS" else found.try_cast("bigint")

    return let((TypedColumn(TERM, _without_hour_24(term)),), body)


def zone(term: Column) -> Column:
    """The zone of a dateTime, date or time as it is written, ``""`` without one; null for other terms. term: cheap."""

    def body(plain: Column) -> Column:
        found = F.when(_moment(plain).isNotNull(), _part(plain, "ZONE"))
        return found.when(plain.rlike(_TIME_OF_DAY), F.regexp_extract(plain, _TIME_OF_DAY, 4))

    return let((TypedColumn(TERM, _without_hour_24(term)),), body)


def zone_term(written: Column) -> Column:
    """The xsd:dayTimeDuration of a zone; null without one."""

    def body(text: Column) -> Column:
        hours, minutes = (F.substring(text, at, 2).try_cast("int") for at in (2, 5))
        sign = F.when(F.startswith(text, F.lit("-")), "-").otherwise("")
        hour_text = F.when(hours > 0, F.concat(hours.cast("string"), F.lit("H"))).otherwise("")
        minute_text = F.when(minutes > 0, F.concat(minutes.cast("string"), F.lit("M"))).otherwise("")
        duration = F.concat(sign, F.lit("PT"), hour_text, minute_text)
        return F.when(text == "Z", "PT0S").when(text != "", duration)

    return typed_literal(let((TypedColumn(STRING, written),), body), "dayTimeDuration")


def date_time_of(text: Column) -> Column:
    """The term of the text of an xsd:dateTime, in the store's form; null for other texts. text: cheap."""

    def body(bare: Column) -> Column:
        shorter = F.regexp_replace(bare, r"(\.[0-9]*?)0+(Z|[+-][0-9:]+)?\"", '$1$2"')
        shorter = F.regexp_replace(shorter, r"\.(Z|[+-][0-9:]+)?\"", '$1"')
        return F.when(_moment(bare).isNotNull(), F.regexp_replace(shorter, '[+-]00:00"', 'Z"'))

    return let((TypedColumn(TERM, _without_hour_24(typed_literal(text, "dateTime"))),), body)


def date_time(term: Column) -> Column:
    """xsd:dateTime of a dateTime, a date or a string; null for other terms. term: cheap."""

    def body(x: Column) -> Column:
        begins = F.regexp_replace(term, f"{_ZONE}{_KIND}", f'T00:00:00$1"{datatype_suffix("dateTime")}')
        return (
            F.when(suffix(term) == "", x["of_text"])
            .when(x["kind"] == "dateTime", term)
            .when(x["kind"] == "date", begins)
        )

    of_text = F.when(suffix(term) == "", date_time_of(inside(term)))
    found = F.struct(moment(term)["kind"].alias("kind"), of_text.alias("of_text"))
    return let((TypedColumn(TERM, found),), body)
