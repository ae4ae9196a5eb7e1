"""Subscriptions as they are written (5.2.12): which entities, which changes, and what the receiver gets.

What is kept of one has names as IRIs, so that it means the same whatever context a later request has; only ``q`` stays
as it was written, beside its own context.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.engine.terms import Term, iri
from lamplighter.gateway.clock import iso
from lamplighter.gateway.gates.ngsild.conditions import Condition, checked_pattern, condition
from lamplighter.gateway.gates.ngsild.contexts import ContextNames, is_absolute
from lamplighter.gateway.gates.ngsild.information import NULL, Form, is_temporal
from lamplighter.gateway.gates.ngsild.parameters import FORMS, NAMES_MAX
from lamplighter.gateway.gates.ngsild.problems import OperationNotSupportedError, excerpt

TRIGGERS: Final = (
    *("attributeCreated", "attributeUpdated", "attributeDeleted"),
    *("entityCreated", "entityUpdated", "entityDeleted"),
)
TRIGGERS_DEFAULT: Final = frozenset({"attributeCreated", "attributeUpdated"})
_UPDATED: Final = frozenset({"attributeCreated", "attributeUpdated", "attributeDeleted"})
SELECTORS_MAX: Final = 20
TEXT_CHARS_MAX: Final = 1_000
HEADERS_MAX: Final = 20
THROTTLING_MAX: Final = 31_536_000
JSON_LD: Final = "application/ld+json"
_REFUSED: Final = {
    **dict.fromkeys(("geoQ", "temporalQ", "scopeQ", "csf", "lang", "datasetId"), "leave it out"),
    "timeInterval": "notifications follow changes; leave it out",
}
_REFUSED_OF_NOTIFICATION: Final = ("showChanges", "sysAttrs", "pick", "omit", "join", "joinLevel")
_READ_ONLY: Final = ("status", "createdAt", "modifiedAt", "@context")
_READ_ONLY_OF_NOTIFICATION: Final = (
    *("status", "timesSent", "timesFailed", "lastNotification", "lastSuccess", "lastFailure", "lastFailureReason"),
)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1998}[\x21-\x7e])?")
# Headers that are the gateway's.
_OWN_HEADERS: Final = frozenset(
    {
        *("host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-type", "content-length", "content-encoding", "link", "webhook-id", "idempotency-key"),
        *("webhook-reset", "proxy-connection", "proxy-authorization", "user-agent"),
    }
)


@dataclass(frozen=True)
class EntitySelector:
    """types: any of them, none: all; id, pattern: "" for all."""

    types: tuple[Term, ...] = ()
    id: str = ""
    pattern: str = ""


@dataclass(frozen=True)
class EntitySubscription:
    """selectors: any of them, none: all entities; watched, attributes: none for all; condition: of ``q``; active,
    throttling (s), expires_at: as in the JSON; form, json_ld, url, headers: of the notifications; kept: its JSON, with
    IRIs as names, and without the values of the headers."""

    selectors: tuple[EntitySelector, ...]
    watched: tuple[Term, ...]
    triggers: frozenset[str]
    condition: Condition | None
    active: bool
    throttling: int
    expires_at: str
    attributes: tuple[Term, ...]
    form: Form
    json_ld: bool
    url: str
    headers: Mapping[str, str]
    kept: Mapping[str, Any]


def kept_members(members: Mapping[str, Any], names: ContextNames) -> dict[str, Any]:
    """The members of a subscription, or of a change of one, with IRIs as names. Raises MalformedRequestError,
    OperationNotSupportedError, LimitExceededError."""
    kept: dict[str, Any] = {}
    for name, value in members.items():
        if name in _READ_ONLY or name in ("id", "@id", "type", "@type"):
            continue
        if name in _REFUSED:
            raise OperationNotSupportedError(f"{name} is not supported: {_REFUSED[name]}")
        if value is None or value == NULL:
            raise MalformedRequestError(f"{name}: {excerpt(value)} is no value; leave the member out")
        match name:
            case "subscriptionName" | "description":
                kept[name] = _text(value, name)
            case "entities":
                kept[name] = [_selector(one, names) for one in _list(value, name, SELECTORS_MAX)]
            case "watchedAttributes":
                kept[name] = _names(value, name, names)
            case "notificationTrigger":
                kept[name] = _triggers(value)
            case "q":
                if not isinstance(value, str) or not value:
                    raise MalformedRequestError(f"q: a text such as temperature>20, not {excerpt(value)}")
                kept[name] = value
            case "isActive" | "localOnly":
                if not isinstance(value, bool):
                    raise MalformedRequestError(f"{name}: write true or false")
                kept[name] = value
            case "expiresAt":
                kept[name] = _expiry(value)
            case "throttling":
                if type(value) is not int or not 0 < value <= THROTTLING_MAX:
                    raise MalformedRequestError(f"throttling: whole seconds from 1 to {THROTTLING_MAX}")
                kept[name] = value
            case "jsonldContext":
                if not isinstance(value, str) or not is_absolute(value):
                    raise MalformedRequestError(f"jsonldContext: the URL of a context, not {excerpt(value)}")
                kept[name] = value
            case "notification":
                kept[name] = _notification(value, names)
            case _:
                raise OperationNotSupportedError(f"{name[:100]} is not a member of a Subscription that is known here")
    return kept


def subscription(kept: dict[str, Any], q_names: ContextNames) -> EntitySubscription:
    """A whole subscription from its `kept_members`. q_names: of ``q``. Raises RequestError."""
    if "notification" not in kept:
        raise MalformedRequestError("notification is missing; write its endpoint with the uri of your receiver")
    if "entities" not in kept and "watchedAttributes" not in kept:
        raise MalformedRequestError("entities and watchedAttributes are missing; write one of them at least")
    notification = kept["notification"]
    triggers = frozenset(kept.get("notificationTrigger", TRIGGERS_DEFAULT))
    endpoint = notification["endpoint"]
    headers = {one["key"]: one["value"] for one in endpoint.get("receiverInfo", ())}
    if headers:
        hidden = [{"key": key, "value": ""} for key in headers]
        kept = kept | {"notification": notification | {"endpoint": endpoint | {"receiverInfo": hidden}}}
    return EntitySubscription(
        tuple(
            EntitySelector(_type_terms(one["type"]), one.get("id", ""), one.get("idPattern", ""))
            for one in kept.get("entities", ())
        ),
        tuple(map(iri, kept.get("watchedAttributes", ()))),
        triggers | (_UPDATED if "entityUpdated" in triggers else frozenset()),
        condition(kept["q"], q_names) if "q" in kept else None,
        kept.get("isActive", True),
        kept.get("throttling", 0),
        kept.get("expiresAt", ""),
        tuple(map(iri, notification.get("attributes", ()))),
        FORMS[notification.get("format", "normalized")],
        endpoint.get("accept") == JSON_LD,
        endpoint["uri"],
        headers,
        kept,
    )


def _type_terms(types: list[str]) -> tuple[Term, ...]:
    return () if types == ["*"] else tuple(map(iri, types))


def subscription_json(identifier: str, kept: Mapping[str, Any], names: ContextNames) -> dict[str, Any]:
    found: dict[str, Any] = {"id": identifier, "type": "Subscription", **kept, "isActive": kept.get("isActive", True)}
    if "entities" in kept:
        found["entities"] = []
        for one in kept["entities"]:
            found["entities"].append({**one, "type": ",".join(map(names.compact, one["type"]))})
    if "watchedAttributes" in kept:
        found["watchedAttributes"] = list(map(names.compact, kept["watchedAttributes"]))
    notification = dict(kept["notification"])
    if "attributes" in notification:
        notification["attributes"] = list(map(names.compact, notification["attributes"]))
    found["notification"] = notification
    return found


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= TEXT_CHARS_MAX:
        raise MalformedRequestError(f"{name}: a text of at most {TEXT_CHARS_MAX} characters, not {excerpt(value)}")
    return value


def _list(value: Any, name: str, most: int) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise MalformedRequestError(f"{name}: write an array with something in it, not {excerpt(value)}")
    if len(value) > most:
        raise LimitExceededError(f"{name}: it may have {most} members")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedRequestError(f"{name}: write an object, not {excerpt(value)}")
    return value


def _names(value: Any, name: str, names: ContextNames) -> list[str]:
    found = []
    for one in _list(value, name, NAMES_MAX):
        if not isinstance(one, str):
            raise MalformedRequestError(f"{name}: names of attributes, not {excerpt(one)}")
        found.append(names.expand(one, name))
    return list(dict.fromkeys(found))


def _selector(value: Any, names: ContextNames) -> dict[str, Any]:
    """An EntitySelector (5.2.33); type: an array of IRIs, or of ``*``."""
    found: dict[str, Any] = {}
    for name, one in _object(value, "entities").items():
        if name == "type":
            found["type"] = _types(one, names)
        elif name == "id":
            if not isinstance(one, str) or not is_absolute(one):
                raise MalformedRequestError(f"entities.id: the URI of one entity, not {excerpt(one)}")
            found["id"] = one
        elif name == "idPattern":
            if not isinstance(one, str) or not one:
                raise MalformedRequestError(f"entities.idPattern: a regular expression, not {excerpt(one)}")
            found["idPattern"] = checked_pattern(one, "entities.idPattern")
        else:
            raise MalformedRequestError(f"entities: {name[:100]!r} is unknown; there are type, id and idPattern")
    if "type" not in found:
        raise MalformedRequestError('entities: type is missing; write a name, or "*" for all')
    if "id" in found:
        found.pop("idPattern", None)  # the id counts (5.2.33)
    return found


def _types(value: Any, names: ContextNames) -> list[str]:
    listed = value if isinstance(value, list) else value.replace("|", ",").split(",") if isinstance(value, str) else []
    if listed == ["*"]:
        return listed
    if not listed or len(listed) > NAMES_MAX or not all(isinstance(one, str) and one for one in listed):
        raise MalformedRequestError(f'entities.type: a name, or "*" for all, not {excerpt(value)}')
    if any(sign in one for one in listed for sign in ";()"):
        raise OperationNotSupportedError(
            "entities.type: ; and () are not supported; write names with commas, any of which an entity has"
        )
    return list(dict.fromkeys(names.expand(one, "entities.type") for one in listed))


def _triggers(value: Any) -> list[str]:
    found = _list(value, "notificationTrigger", len(TRIGGERS))
    for one in found:
        if one not in TRIGGERS:
            raise MalformedRequestError(f"notificationTrigger: {excerpt(one)} is none of {', '.join(TRIGGERS)}")
    return list(dict.fromkeys(found))


def _expiry(value: Any) -> str:
    """As in a lease."""
    if not isinstance(value, str) or not is_temporal("dateTime", value):
        raise MalformedRequestError(f"expiresAt: a time with a zone such as 2027-01-01T00:00:00Z, not {excerpt(value)}")
    try:
        return iso(datetime.fromisoformat(value).astimezone(UTC))
    except OverflowError as error:
        raise MalformedRequestError(f"expiresAt: {value[:50]!r} is out of range") from error


def _notification(value: Any, names: ContextNames) -> dict[str, Any]:
    """NotificationParams (5.2.14)."""
    found: dict[str, Any] = {}
    for name, one in _object(value, "notification").items():
        match name:
            case "attributes":
                found[name] = _names(one, "notification.attributes", names)
            case "format":
                if not isinstance(one, str) or one not in FORMS:
                    raise MalformedRequestError(f"notification.format: {excerpt(one)} is none of {', '.join(FORMS)}")
                found[name] = one
            case "endpoint":
                found[name] = _endpoint(one)
            case _ if name in _READ_ONLY_OF_NOTIFICATION or (name in _REFUSED_OF_NOTIFICATION and one is False):
                continue
            case _:
                raise OperationNotSupportedError(
                    f"notification.{name[:100]} is not supported; there are attributes, format and endpoint"
                )
    if "endpoint" not in found:
        raise MalformedRequestError("notification.endpoint is missing; write the uri of your receiver in it")
    return found


def _endpoint(value: Any) -> dict[str, Any]:
    """Endpoint (5.2.15). Its uri is checked by the door."""
    found: dict[str, Any] = {}
    for name, one in _object(value, "notification.endpoint").items():
        if name == "uri" and isinstance(one, str):
            found[name] = one
        elif name == "accept":
            if one not in ("application/json", JSON_LD):
                raise OperationNotSupportedError(
                    f"notification.endpoint.accept: {excerpt(one)} is not supported; "
                    f"write application/json or {JSON_LD}"
                )
            found[name] = one
        elif name == "receiverInfo":
            found[name] = _headers(one)
        else:
            raise OperationNotSupportedError(
                f"notification.endpoint.{name[:100]} is not supported; there are uri, accept and receiverInfo"
            )
    if "uri" not in found:
        raise MalformedRequestError("notification.endpoint.uri is missing; write the URL of your receiver")
    return found


def _headers(value: Any) -> list[dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    place = "notification.endpoint.receiverInfo"
    if value == []:
        return []
    for one in _list(value, place, HEADERS_MAX):
        pair = _object(one, place)
        key, text = pair.get("key"), pair.get("value")
        if pair.keys() != {"key", "value"} or not isinstance(key, str) or not isinstance(text, str):
            raise MalformedRequestError(f'{place}: write {{"key": ..., "value": ...}} with texts')
        if not _HEADER.fullmatch(key) or not _HEADER_VALUE.fullmatch(text):
            raise MalformedRequestError(f"{place}: {key[:100]!r} is no header of HTTP with a value of printable ASCII")
        if key.lower() in _OWN_HEADERS:
            raise MalformedRequestError(f"{place}: the gateway writes the header {key} itself; leave it out")
        if key.lower() in found:
            raise MalformedRequestError(f"{place}: the header {key} occurs twice")
        found[key.lower()] = {"key": key, "value": text}
    return list(found.values())


def is_past(expires_at: str, now: datetime) -> bool:
    return bool(expires_at) and expires_at <= iso(now)
