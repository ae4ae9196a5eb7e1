from __future__ import annotations

from lamplighter.adapters.devices.availability import Availabilities
from lamplighter.adapters.devices.device import Availability, Device


def topic(name: str, **more: object) -> dict[str, object]:
    return {"topic": name, "broker": "home", "on": ["online"], "off": ["offline"]} | more


def device(*topics: dict[str, object], mode: str = "all", name: str = "a") -> Device:
    return Device(name, "x", "home", name, availability=Availability(topics, mode))  # type: ignore[arg-type]


def known(*devices: Device) -> Availabilities:
    found = Availabilities()
    found.replace(devices)
    return found


def test_a_device_is_online_while_all_its_topics_say_so() -> None:
    found = known(device(topic("bridge"), topic("lamp")))
    assert found.read("home", "bridge", b"online") == {"x/a": True}, "a silent topic does not count"
    assert found.read("home", "lamp", b"offline") == {"x/a": False}
    assert found.read("home", "bridge", b"offline") == {}
    assert found.read("home", "lamp", b"online") == {}
    assert found.read("home", "bridge", b"online") == {"x/a": True}


def test_any_topic_or_the_latest_one() -> None:
    found = known(device(topic("b"), topic("c"), mode="any"), device(topic("b"), topic("c"), mode="latest", name="l"))
    assert found.read("home", "b", b"online") == {"x/a": True, "x/l": True}
    assert found.read("home", "c", b"offline") == {"x/l": False}
    assert found.read("home", "b", b"offline") == {"x/a": False}
    assert found.read("home", "b", b"online") == {"x/a": True, "x/l": True}


def test_members_and_words() -> None:
    found = known(device(topic("b", member=["state", "now"]), topic("c", on=["true"], off=["false"], member=["up"])))
    assert found.read("home", "b", b'{"state": {"now": "online"}}') == {"x/a": True}
    for payload in (b"online", b"{}", b'{"state": 1}', b"\xff", b"[" * 100_000, b'{"state": {"now": null}}', b""):
        assert found.read("home", "b", payload) == {}
    assert found.read("home", "c", b'{"up": false}') == {"x/a": False}


def test_a_word_with_and_without_json() -> None:
    found = known(device(topic("b", member=["state"], bare=True)))
    for number, payload in enumerate(
        (b"online", b"offline", b'{"state": "online", "since": 7}', b'{"state":"offline"}')
    ):
        assert found.read("home", "b", payload) == {"x/a": number % 2 == 0}
    for payload in (b"away", b"{online}", b'{"state": "away"}', b'"online"'):
        assert found.read("home", "b", payload) == {}


def test_topics_are_those_of_the_broker() -> None:
    found = known(device(topic("b"), topic("c")))
    assert found.filters("home") == ["b", "c"] and found.filters("shed") == []
    assert set(found.topics) == {("home", "b"), ("home", "c")}


def test_devices_that_stay_are_not_said_again() -> None:
    found = known(device(topic("b")))
    assert found.read("home", "b", b"online")
    found.replace([device(topic("b")), device(topic("b"), name="other")])
    assert found.read("home", "b", b"online") == {}
    found.replace([])
    assert found.filters("home") == [] and not found.topics


def test_a_device_that_is_adopted_later_knows_what_a_shared_topic_said() -> None:
    found = known(device(topic("bridge"), topic("lamp/a")))
    assert found.read("home", "bridge", b"online") and found.read("home", "lamp/a", b"offline")
    other = device(topic("bridge"), topic("lamp/b"), name="other")
    assert found.replace([device(topic("bridge"), topic("lamp/a")), other]) == {"x/other": True}
    renamed = device(topic("bridge"), topic("lamp/c"))
    assert found.replace([renamed, other]) == {"x/a": True}
    assert found.read("home", "bridge", b"offline") == {"x/a": False, "x/other": False}
    found.replace([])
    assert found.replace([other]) == {}, "a topic that nobody follows is forgotten"
    assert found.read("home", "bridge", b'"' + b" " * 2_000 + b"online") == {}
    assert found.replace([renamed, other]) == {}, "a long message is not kept"


def test_a_device_that_is_adopted_later_does_not_change_what_another_one_heard_latest() -> None:
    one, other = (device(topic("b"), topic("c"), mode="latest", name=name) for name in "ab")
    found = known(one)
    assert found.read("home", "b", b"offline") and found.read("home", "c", b"online")
    assert found.replace([one, other]) == {"x/b": True}
    assert found.read("home", "c", b"online") == {}
