"""Rows of views for programs: results of SELECT as an array of objects, lists of objects as CSV. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from lamplighter.engine.terms import XSD
from lamplighter.ontology import vocabulary as v

Row = Mapping[str, Any]  # a row: texts, numbers, booleans, None; other values are written as JSON in CSV

_READ = f"?reading <{v.HAS_SIMPLE_RESULT}> ?value OPTIONAL {{ ?reading <{v.RESULT_TIME}> ?time }}"
_UNIT = f"{{ ?stream <{v.HAS_UNIT}> ?unit }} UNION {{ ?stream <{v.UNKNOWN_UNIT}> ?unit }}"
# The readings and actuators of the view Now.
NOW = f"""\
SELECT ?kind ?feature ?part ?property ?value ?unit ?desired ?time WHERE {{
  {{ ?reading <{v.MADE_BY_SENSOR}> ?part . {_READ}
    OPTIONAL {{ ?reading <{v.HAS_FEATURE_OF_INTEREST}> ?feature }}
    OPTIONAL {{ ?reading <{v.OBSERVED_PROPERTY}> ?property }}
    OPTIONAL {{ ?stream <{v.LIVE_OBSERVATION}> ?reading . {_UNIT} }}
    BIND("reading" AS ?kind) }}
  UNION {{ GRAPH ?graph {{ ?stream <{v.LIVE_OBSERVATION}> ?reading . {_READ} }}
    ?stream <{v.MADE_BY_SENSOR}> ?part .
    OPTIONAL {{ ?stream <{v.HAS_FEATURE_OF_INTEREST}> ?feature }}
    OPTIONAL {{ ?stream <{v.OBSERVED_PROPERTY}> ?property }}
    OPTIONAL {{ {_UNIT} }}
    BIND("reading" AS ?kind) }}
  UNION {{ {{ ?part <{v.DESIRED_STATE}> ?desired }} UNION {{ ?part <{v.HAS_STATUS}> ?desired }}
    OPTIONAL {{ ?part <{v.REPORTED_STATE}> ?value OPTIONAL {{ ?part <{v.REPORTED_TIME}> ?time }} }}
    OPTIONAL {{ ?feature <{v.HOSTS}> ?part }}
    BIND("actuator" AS ?kind) }}
}} ORDER BY ?feature ?kind ?property ?part ?time"""

# The posts of the view Street.
STREET = f"""\
SELECT ?post ?lamp ?desired ?reported ?presence ?time WHERE {{
  ?post <{v.HAS_LAMP}> ?lamp
  OPTIONAL {{ ?lamp <{v.HAS_STATUS}> ?desired }}
  OPTIONAL {{ ?lamp <{v.REPORTED_STATE}> ?reported }}
  OPTIONAL {{ ?reading <{v.HAS_FEATURE_OF_INTEREST}> ?post ; <{v.OBSERVED_PROPERTY}> <{v.PRESENCE}> ;
    <{v.HAS_SIMPLE_RESULT}> ?presence OPTIONAL {{ ?reading <{v.RESULT_TIME}> ?time }} }}
}} ORDER BY ?post"""

_NUMBERS = {f"{XSD}{name}" for name in ("integer", "decimal", "double", "float")}


def result_rows(result: bytes) -> list[dict[str, Any]]:
    """The rows of a SELECT in SPARQL Results JSON; an unbound variable is None. Of an ASK, one row with `boolean`."""
    document = msgspec.json.decode(result)
    if "boolean" in document:
        return [{"boolean": document["boolean"]}]
    names = document["head"]["vars"]
    return [{name: _value(row.get(name)) for name in names} for row in document["results"]["bindings"]]


def _value(term: dict[str, Any] | None) -> Any:
    """A number or boolean as such, other terms as text."""
    if term is None:
        return None
    value, datatype = term["value"], term.get("datatype")
    if datatype == f"{XSD}boolean" and value in ("true", "false"):
        return value == "true"
    if datatype in _NUMBERS:
        try:
            number = int(value) if datatype == f"{XSD}integer" else float(value)
        except ValueError:  # an invalid literal, or one of very many digits
            return value
        return number if isinstance(number, int) or isfinite(number) else value
    return value if isinstance(value, str) else f"<<( {' '.join(str(_value(part)) for part in value.values())} )>>"


def log_rows(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a page of the change log, oldest first; what is missing between them is not a row."""
    return [_record_row(record) for record in page["records"]]


def _record_row(record: Mapping[str, Any]) -> dict[str, Any]:
    cause, counts = record.get("cause", {}), record.get("counts", {})
    return {
        "record": record["record"],
        "time": record["ts"],
        "trusted": record["trusted"],
        "type": record["type"],
        "cause": cause.get("kind"),
        "cause_id": cause.get("id"),
        "client": record.get("client"),
        "removed": counts.get("d"),
        "added": counts.get("a"),
        "kept": counts.get("k"),
        "removed_quads": record.get("d", []),
        "added_quads": record.get("a", []),
    }


def device_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Devices; sensors and actuators by their keys."""
    return [
        {"online": None, "last_seen": None, **one}
        | {name: [part["key"] for part in one[name]] for name in ("sensors", "actuators")}
        for one in answer["devices"]
    ]


def outcome_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Acknowledgements and refusals, newest first."""
    names = ("time", "actuator", "state", "refused", "record", "actuation")
    return [{name: one.get(name) for name in names} for one in answer["outcomes"]]


def link_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The links of an explanation, oldest first."""
    names = ("link", "time", "after_s", "record", "said")
    return [{name: one.get(name) for name in names} for one in answer["links"]]


def csv_text(rows: Sequence[Row], names: Sequence[str] = ()) -> str:
    """The rows as CSV (RFC 4180) under the names of all their members. names: the first ones, also without a row."""
    names = list(dict.fromkeys([*names, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | tuple) else value
