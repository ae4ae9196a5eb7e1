"""States that a person gives an actuator at its device: followed, or held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from lamplighter.adapters.devices import actuator, delivery
from lamplighter.adapters.devices.output import Output, ReportedState
from lamplighter.adapters.mapping import CommandRule, ResourceCommandTable, resource_command
from lamplighter.adapters.mqtt.sender import MqttSender
from lamplighter.adapters.mqtt.settings import COMMANDS
from lamplighter.engine.client import UpdateAnswer
from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.engine.terms import XSD, Term, literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.desired_states import BASE, LAMP, NOON, StatesGateway, rule, running
from tests.support.event_loops import settled, until
from tests.support.noted_messages import NotingBroker

TRUE, FALSE = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))
FOLLOWING = rule(by_hand="follow")
LIGHT = "<http://lamplighter.example/ns/gateway#light>"


@asynccontextmanager
async def lamp_on(
    one_rule: CommandRule, *, gateway: StatesGateway | None = None, in_file: bool = False
) -> AsyncIterator[tuple[StatesGateway, NotingBroker, Output[CommandRule]]]:
    """The lamp was told to be on, and has reported it."""
    gateway, broker = gateway or StatesGateway(), NotingBroker()
    sender = MqttSender({"default": broker}, COMMANDS)
    rules, files = ([], [one_rule]) if in_file else ([one_rule], [])
    async with running(gateway, sender, *rules, files=files, follows={LIGHT}) as one:
        gateway.desire("true")
        await settled()
        await report(one, one_rule, TRUE)
        assert broker.payloads() == ['{"state": "ON"}']
        yield gateway, broker, one


async def report(one: Output[CommandRule], by: CommandRule, state: Term, *, retained: bool = False) -> None:
    await one.take([ReportedState(by, state, NOON, retained=retained)])
    await settled()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actuator, "SETTLE_S", 0.0)


def desired(gateway: StatesGateway) -> list[str]:
    return gateway.found(f"{LAMP} gateway:desiredState ?x")


async def test_a_button_is_followed_and_not_fought() -> None:
    async with lamp_on(FOLLOWING) as (gateway, broker, one):
        await report(one, FOLLOWING, FALSE)
        assert desired(gateway) == ["false"]
        assert "by hand, zigbee2mqtt/lamp/set" in gateway.origins
        await report(one, FOLLOWING, TRUE)
        assert desired(gateway) == ["true"]
        assert len(broker.messages) == 1
        assert (one.counters.followed, one.counters.reasserted) == (2, 0)
        assert one.states().disagreeing == 0


async def test_a_state_that_is_desired_afterwards_is_sent() -> None:
    async with lamp_on(FOLLOWING) as (gateway, broker, one):
        await report(one, FOLLOWING, FALSE)
        gateway.desire("true")
        await settled()
        assert broker.payloads() == ['{"state": "ON"}'] * 2


async def test_held_state_is_sent_again() -> None:
    held = rule(by_hand="hold")
    async with lamp_on(held) as (gateway, broker, one):
        await report(one, held, FALSE)
        assert desired(gateway) == ["true"]
        assert broker.payloads() == ['{"state": "ON"}'] * 2


@pytest.mark.parametrize(
    ("about", "by_rule", "in_file", "expected"),
    [
        ("", None, False, "true"),
        (f"{LAMP} gateway:controls {LIGHT}", None, False, "false"),
        (f"{LAMP} gateway:controls gateway:lock", None, False, "true"),
        (f"{LAMP} gateway:controls {LIGHT}", "hold", False, "true"),
        (f"{LAMP} gateway:controls {LIGHT}", None, True, "true"),
        (f"{LAMP} gateway:controls {LIGHT} ; gateway:byHand 'hold'", None, False, "true"),
        (f"{LAMP} gateway:byHand 'follow'", "hold", True, "false"),
        (f"{LAMP} gateway:byHand 'follow'", None, False, "false"),
    ],
)
async def test_the_actuator_s_triple_precedes_the_rule_and_adopted_lights_follow(
    about: str, by_rule: str | None, in_file: bool, expected: str
) -> None:
    gateway = StatesGateway()
    gateway.write(f"INSERT DATA {{ {about} }}")
    one_rule = rule(**({} if by_rule is None else {"by_hand": by_rule}))
    async with lamp_on(one_rule, gateway=gateway, in_file=in_file) as (_, broker, one):
        await report(one, one_rule, FALSE)
        assert desired(gateway) == [expected]
        assert len(broker.messages) == (1 if expected == "false" else 2)


async def test_a_report_before_the_device_had_the_state_is_no_hand() -> None:
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), FOLLOWING) as one:
        gateway.desire("true")
        await settled()
        await report(one, FOLLOWING, FALSE)
        assert desired(gateway) == ["true"]
        assert broker.payloads() == ['{"state": "ON"}'] * 2, "the message may have been lost"


async def test_a_report_that_crosses_a_message_is_no_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lamp_on(FOLLOWING) as (gateway, broker, one):
        monkeypatch.setattr(actuator, "SETTLE_S", 1_000.0)
        gateway.desire("false")
        await settled()
        await report(one, FOLLOWING, FALSE)
        await report(one, FOLLOWING, TRUE)  # of before the message, such as a periodic one
        assert desired(gateway) == ["false"]
        await report(one, FOLLOWING, FALSE)
        assert one.counters.followed == 0
        assert broker.payloads() == ['{"state": "ON"}', '{"state": "OFF"}']


async def test_a_retained_report_is_not_followed() -> None:
    async with lamp_on(FOLLOWING) as (gateway, broker, one):
        await report(one, FOLLOWING, FALSE, retained=True)
        assert desired(gateway) == ["true"]
        assert len(broker.messages) == 1


async def test_what_was_switched_while_the_gateway_was_off_is_followed_once_the_device_says_it() -> None:
    gateway, broker = StatesGateway(), NotingBroker()
    gateway.desire("true")
    gateway.write(f"INSERT DATA {{ <x:a> sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult true }}")
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), FOLLOWING) as one:
        await report(one, FOLLOWING, FALSE)
        assert desired(gateway) == ["false"]
        assert broker.messages == []


async def test_a_device_that_was_offline_is_brought_back_to_the_desired_state() -> None:
    gateway = StatesGateway()
    gateway.write(f"INSERT DATA {{ {LAMP} a sosa:Actuator . <x:device> sosa:hosts {LAMP} ; gateway:online true }}")
    async with lamp_on(FOLLOWING, gateway=gateway) as (_, broker, one):
        gateway.write(
            "DELETE DATA { <x:device> gateway:online true } ; INSERT DATA { <x:device> gateway:online false }"
        )
        await settled()
        with pytest.MonkeyPatch.context() as later:
            later.setattr(actuator, "SETTLE_S", 1_000.0)
            await report(one, FOLLOWING, FALSE)
            gateway.write(
                "DELETE DATA { <x:device> gateway:online false } ; INSERT DATA { <x:device> gateway:online true }"
            )
            await settled()
            await report(one, FOLLOWING, FALSE)
        [lamp] = one._actuators.values()
        lamp.wake.set()
        await settled()
        assert desired(gateway) == ["true"]
        assert broker.payloads() == ['{"state": "ON"}'] * 2


async def test_a_state_that_the_rule_does_not_take_is_not_followed() -> None:
    words = rule(by_hand="follow", values={"OPEN": "open", "CLOSE": "close"}, payload="{value}", topic="a/set")
    gateway, broker = StatesGateway(), NotingBroker()
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), words) as one:
        gateway.desire("'OPEN'")
        await settled()
        await report(one, words, literal("OPEN"))
        await report(one, words, literal("stopped"))
        assert desired(gateway) == ["OPEN"]
        assert broker.payloads() == ["open", "open"]


async def test_a_state_that_was_desired_meanwhile_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lamp_on(FOLLOWING) as (gateway, _, one):
        updates = gateway.updates

        async def late(requests: object) -> object:
            if any(origin.cause.id.startswith("by hand") for origin in requests):  # type: ignore[attr-defined]
                gateway.desire("'dim'")
            return await updates(requests)  # type: ignore[arg-type]

        monkeypatch.setattr(gateway, "updates", late)
        await report(one, FOLLOWING, FALSE)
        assert desired(gateway) == ["dim"]
        assert one.states().refused == 1, "it is the wanted state now"


async def test_a_refused_update_leaves_the_desired_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FOLLOWED_S", 0.001)
    async with lamp_on(FOLLOWING) as (gateway, broker, one):

        async def refusing(requests: list[object]) -> list[UpdateAnswer | GatewayError]:
            return [GatewayError("not permitted") for _ in requests]

        monkeypatch.setattr(gateway, "updates", refusing)
        await report(one, FOLLOWING, FALSE)
        [lamp] = one._actuators.values()
        await until(lambda: lamp.worker is None)
        assert desired(gateway) == ["true"]
        assert len(broker.messages) == 1


@pytest.mark.parametrize(("by_hand", "longest"), [("hold", actuator.REASSERT_MAX_S), ("follow", actuator.FOLLOW_MAX_S)])
async def test_the_pause_grows_also_where_the_device_agrees_in_between(
    by_hand: str, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_rule = rule(by_hand=by_hand)
    async with lamp_on(one_rule) as (_, _, one):
        [lamp] = one._actuators.values()
        for state in (FALSE, TRUE) * 4:
            await report(one, one_rule, state)
        monkeypatch.setattr(actuator, "SETTLE_S", 2.0)
        count, last = (4, lamp.sent_at) if by_hand == "hold" else (8, lamp.moved_at)
        assert lamp.repeats == count
        await one.take([ReportedState(one_rule, FALSE, NOON, retained=False)])
        assert lamp.due() == last + min(2.0 * 2**count, longest)


async def test_after_a_calm_the_pause_is_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    held = rule(by_hand="hold")
    async with lamp_on(held) as (_, broker, one):
        for state in (FALSE, TRUE) * 3:
            await report(one, held, state)
        [lamp] = one._actuators.values()
        lamp.sent_at -= actuator.CALM_S + 1
        await report(one, held, FALSE)
        assert lamp.repeats == 1
        assert len(broker.messages) == 5


async def test_state_of_a_query_cannot_follow() -> None:
    table = {"resource": "coap://192.0.2.1/lamp", "query": "SELECT ?actuator ?state {}", "by_hand": "follow"}
    with pytest.raises(ConfigurationError, match="by_hand: the query says what is desired"):
        resource_command(
            msgspec.convert(table, ResourceCommandTable), prefixes=PREFIXES, base_iri=BASE, place="x line 1"
        )


async def test_lamp_of_the_street_follows_by_its_status() -> None:
    gateway, broker = StatesGateway(), NotingBroker()
    street = rule(by_hand="follow", values={"ON": "ON", "OFF": "OFF"})
    gateway.write(f"INSERT DATA {{ {LAMP} lighting:hasStatus 'ON' }}")
    async with running(gateway, MqttSender({"default": broker}, COMMANDS), files=[street]) as one:
        await report(one, street, literal("ON"))
        await report(one, street, literal("OFF"))
        assert gateway.found(f"{LAMP} lighting:hasStatus ?x") == ["OFF"]
        assert desired(gateway) == []
        await asyncio.sleep(0)
        assert broker.payloads() == ['{"state": "ON"}']
