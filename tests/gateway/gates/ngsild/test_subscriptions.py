"""Subscriptions as they are written: what is kept, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from lamplighter.engine.errors import RequestError
from lamplighter.gateway.gates.ngsild.contexts import DEFAULT, PLAIN, ContextNames
from lamplighter.gateway.gates.ngsild.subscriptions import kept_members, subscription, subscription_json
from tests.support.tables import each_row

ENDPOINT = {"uri": "http://127.0.0.1/n"}
LEAST: dict[str, Any] = {"type": "Subscription", "entities": [{"type": "T"}], "notification": {"endpoint": ENDPOINT}}
NAMES = ContextNames({"w": "http://w/"}, DEFAULT, ("http://c",))


def test_names_are_kept_as_iris_and_told_with_others() -> None:
    members = {
        "entities": [{"type": "T|w:U", "idPattern": "^urn"}, {"type": "*", "id": "urn:x:1", "idPattern": "y"}],
        "watchedAttributes": ["a", "w:b"],
        "notificationTrigger": ["entityUpdated"],
        "q": "w:b>1",
        "expiresAt": "2127-01-01T01:00:00+01:00",
        "throttling": 5,
        "notification": {"attributes": ["w:b"], "format": "simplified", "endpoint": ENDPOINT},
    }
    wanted = subscription(kept_members(members, NAMES), NAMES)
    assert wanted.selectors[0].types == (f"<{DEFAULT}T>", "<http://w/U>")
    assert (wanted.selectors[1].types, wanted.selectors[1].id, wanted.selectors[1].pattern) == ((), "urn:x:1", "")
    assert wanted.watched == (f"<{DEFAULT}a>", "<http://w/b>") and wanted.attributes == ("<http://w/b>",)
    assert wanted.triggers == {"entityUpdated", "attributeCreated", "attributeUpdated", "attributeDeleted"}
    assert (wanted.form, wanted.throttling, wanted.active) == ("keyValues", 5, True)
    assert wanted.expires_at == "2127-01-01T00:00:00.000000Z"
    told = subscription_json("urn:x:s", wanted.kept, PLAIN)
    assert told["entities"][0]["type"] == "T,http://w/U" and told["watchedAttributes"] == ["a", "http://w/b"]
    assert subscription(kept_members(wanted.kept, PLAIN), NAMES) == wanted, "what is kept can be read again"


def test_values_of_headers_are_not_kept() -> None:
    pair = {"key": "Authorization", "value": "Bearer secret"}
    members = LEAST | {"notification": {"endpoint": ENDPOINT | {"receiverInfo": [pair]}}}
    wanted = subscription(kept_members(members, PLAIN), PLAIN)
    assert wanted.headers == {"Authorization": "Bearer secret"}
    assert "secret" not in repr(wanted.kept)


def notified(**members: Any) -> dict[str, Any]:
    return LEAST | {"notification": {"endpoint": ENDPOINT} | members}


def delivered(**members: Any) -> dict[str, Any]:
    return notified(endpoint=ENDPOINT | members)


def headed(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return delivered(receiverInfo=[{"key": key, "value": value} for key, value in pairs])


WRONG = [
    (LEAST | {"geoQ": {}}, "geoQ is not supported"),
    (LEAST | {"scopeQ": "/a"}, "scopeQ is not supported"),
    (LEAST | {"temporalQ": {}}, "temporalQ is not supported"),
    (LEAST | {"csf": "a"}, "csf is not supported"),
    (LEAST | {"timeInterval": 5}, "timeInterval is not supported"),
    (LEAST | {"datasetId": ["urn:x:d"]}, "datasetId is not supported"),
    (LEAST | {"whatever": 1}, "whatever"),
    (LEAST | {"entities": []}, "entities"),
    (LEAST | {"entities": [{"type": "T"}] * 21}, "entities: it may have 20"),
    (LEAST | {"entities": [{"id": "urn:x:1"}]}, "type is missing"),
    (LEAST | {"entities": [{"type": "T;U"}]}, "not supported"),
    (LEAST | {"entities": [{"type": "T", "id": "x"}]}, "entities.id"),
    (LEAST | {"entities": [{"type": "T", "idPattern": "(?=a)"}]}, "entities.idPattern"),
    (LEAST | {"entities": [{"type": "T", "idPattern": "a" * 201}]}, "200 characters"),
    (LEAST | {"entities": [{"type": "T", "scope": "/"}]}, "scope"),
    (LEAST | {"watchedAttributes": []}, "watchedAttributes"),
    (LEAST | {"watchedAttributes": ["a b"]}, "no name"),
    (LEAST | {"notificationTrigger": ["entityMoved"]}, "entityMoved"),
    (LEAST | {"q": "a=="}, "q, character"),
    (LEAST | {"q": ""}, "q: a text"),
    (LEAST | {"isActive": "yes"}, "isActive"),
    (LEAST | {"expiresAt": "tomorrow"}, "expiresAt"),
    (LEAST | {"expiresAt": "0001-01-01T00:00:00+14:00"}, "out of range"),
    (LEAST | {"throttling": 0}, "throttling"),
    (LEAST | {"throttling": True}, "throttling"),
    (LEAST | {"description": None}, "description"),
    (LEAST | {"jsonldContext": 5}, "jsonldContext"),
    ({"notification": {"endpoint": ENDPOINT}}, "entities and watchedAttributes are missing"),
    ({"entities": [{"type": "T"}]}, "notification is missing"),
    (LEAST | {"notification": {}}, "endpoint is missing"),
    (LEAST | {"notification": {"endpoint": {}}}, "uri is missing"),
    (notified(format="xml"), "notification.format"),
    (notified(attributes="a"), "notification.attributes"),
    (notified(showChanges=True), "showChanges"),
    (notified(sysAttrs=True), "sysAttrs"),
    (delivered(accept="application/geo+json"), "accept"),
    (delivered(notifierInfo=[]), "notifierInfo"),
    (delivered(receiverInfo=[{"key": "A"}]), "receiverInfo"),
    (headed(("A", 5)), "receiverInfo"),
    (headed(("Host", "x")), "writes the header Host itself"),
    (headed(("Transfer-Encoding", "x")), "itself"),
    (headed(("A", "x\r\nB: y")), "no header"),
    (headed(("A:", "x")), "no header"),
    (headed(("A", "")), "no header"),
    (headed(("A", "1"), ("a", "2")), "occurs twice"),
    (delivered(receiverInfo=[{"key": f"A{one}", "value": "x"} for one in range(21)]), "it may have 20"),
]


@each_row(("members", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_is_refused(members: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told.replace("(", r"\(")):
        subscription(kept_members(members, PLAIN), PLAIN)
