"""Authorization: tokens for clients, the caller of a token, and the limit on attempts."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.errors import GatewayError, QueueFullError, UnauthorizedError
from lamplighter.engine.inference.sources import Sources
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.security.authorization import CODE_TRIES, CODES_PER_S, Authorization
from lamplighter.gateway.security.peers import network
from lamplighter.gateway.security.permissions import Permissions
from lamplighter.gateway.security.registry import ClientRegistry
from lamplighter.gateway.security.tokens import TokenIssuer
from lamplighter.gateway.settings.security import SecuritySettings
from lamplighter.gateway.systemd import fields
from tests.support.gateway_parts import FakeClock
from tests.support.tables import each_row

HERE = "192.0.2.1"


def authorization(
    folder: Path, clock: FakeClock | None = None, sources: Sources | None = None, **settings: object
) -> Authorization:
    clock = clock or FakeClock()
    table = msgspec.convert({"registration": "open", "grant_read": ["*"], **settings}, SecuritySettings)
    registry = ClientRegistry(folder, clock, Disk(), table.clients_max, table.code_life_s)
    tokens = TokenIssuer(folder, clock, Disk(), table.token_life_s)
    return Authorization(table, clock, registry, tokens, *([] if sources is None else [sources.readable]))


async def registered(ours: Authorization, name: str = "lamp") -> str:
    return (await ours.register(name, None, HERE)).client_secret


async def token(ours: Authorization, name: str = "lamp") -> str:
    return ours.token(name, await registered(ours, name), HERE).token


def code_of(ours: Authorization, authorization: object) -> str:
    with pytest.raises(UnauthorizedError) as caught:
        ours.caller(authorization, HERE)
    assert caught.value.status == 401
    return caught.value.code


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_is_compared_without_case(tmp_path: Path, scheme: str) -> None:
    ours = authorization(tmp_path)
    caller = ours.caller(f"{scheme} {await token(ours)}", HERE)
    assert (caller.name, caller.registered, caller.operator) == ("lamp", True, False)
    assert caller.access.read.every
    assert not caller.access.write.every


async def test_what_is_no_bearer_authorization_is_refused_by_the_table(tmp_path: Path) -> None:
    ours = authorization(tmp_path)
    good = await token(ours)
    refused = {
        None: "invalid_request",
        5: "invalid_request",
        "": "unsupported_grant_type",
        "Bearer": "invalid_request",
        "Bearer ": "invalid_request",
        good: "unsupported_grant_type",
        f"Basic {good}": "unsupported_grant_type",
        "Bearer no.token": "invalid_request",
    }
    assert {given: code_of(ours, given) for given in refused} == refused


async def test_the_token_of_a_removed_client_is_refused_at_once_and_for_ever(tmp_path: Path) -> None:
    ours = authorization(tmp_path)
    old = f"Bearer {await token(ours)}"
    assert ours.caller(old, HERE).name == "lamp"
    await ours.registry.remove("lamp")
    assert code_of(ours, old) == "invalid_grant"
    assert ours.access_of("lamp") is None
    new = f"Bearer {await token(ours)}"
    assert ours.caller(new, HERE).name == "lamp"
    assert code_of(ours, old) == "invalid_grant", "it was given to another client of that name"


async def test_new_permissions_hold_at_once(tmp_path: Path) -> None:
    ours = authorization(tmp_path)
    bearer = f"Bearer {await token(ours)}"
    assert not ours.caller(bearer, HERE).operator
    await ours.registry.permit("lamp", Permissions(operate=True))
    assert ours.caller(bearer, HERE).operator
    assert not ours.caller(bearer, HERE).access.read.every


async def test_by_default_a_new_client_may_do_nothing(tmp_path: Path) -> None:
    ours = authorization(tmp_path, grant_read=[])
    access = ours.caller(f"Bearer {await token(ours)}", HERE).access
    assert [access.read.names, access.write.names, access.subscribe.names] == [frozenset()] * 3


async def test_the_test_identity_is_there_only_when_switched_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lamplighter.audit")
    plain = authorization(tmp_path, registration="listed")
    with pytest.raises(UnauthorizedError):
        await plain.register("SEPATest", None, HERE)
    with pytest.raises(UnauthorizedError):
        plain.token("SEPATest", "SEPATest", HERE)
    clock = FakeClock()
    tested = authorization(tmp_path, clock, registration="listed", test_identity=True)
    for _ in range(2):  # it registers again and again
        assert (await tested.register("SEPATest", None, HERE)).client_secret == "SEPATest"
        assert fields(caplog.records[-1])["TEST"] == "True"
    given = tested.token("SEPATest", "SEPATest", HERE)
    assert given.life_s == 5
    assert tested.caller(f"Bearer {given.token}", HERE).access.full
    clock.advance(5)
    assert code_of(tested, f"Bearer {given.token}") == "invalid_grant"
    fresh = tested.token("SEPATest", "SEPATest", HERE).token
    assert code_of(authorization(tmp_path, clock), f"Bearer {fresh}") == "invalid_grant"


async def test_a_code_may_stand_behind_the_name(tmp_path: Path) -> None:
    ours = authorization(tmp_path, registration="code")
    code = await ours.registry.code("a#b", Permissions(), Permissions())
    assert (await ours.register(f"a#b#{code}", None, HERE)).client_id == "a#b"


async def test_an_address_that_fails_too_often_waits_and_good_credentials_pass(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = authorization(tmp_path, clock, attempts_per_min=6)
    secret = await registered(ours)
    good = f"Bearer {ours.token('lamp', secret, HERE).token}"
    outcomes = []
    for _ in range(7):
        with pytest.raises(GatewayError) as caught:
            ours.caller("Bearer x", HERE)
        outcomes.append(caught.value.status)
    assert outcomes == [401] * 5 + [429] * 2, "the registration was one attempt"
    assert isinstance(caught.value, QueueFullError)
    assert caught.value.retry_after_s == 10
    with pytest.raises(QueueFullError):
        ours.token("lamp", "wrong", HERE)
    with pytest.raises(QueueFullError):
        await ours.register("another", None, HERE)
    assert ours.caller(good, HERE).name == "lamp"
    assert ours.token("lamp", secret, HERE)
    with pytest.raises(UnauthorizedError):
        ours.caller("Bearer x", "192.0.2.2")
    clock.advance(10)
    with pytest.raises(UnauthorizedError):
        ours.caller("Bearer x", HERE)


async def coded(ours: Authorization, name: str = "lamp") -> str:
    """The operator gives a one-time code for a name."""
    return await ours.registry.code(name, Permissions(), Permissions())


async def guess(ours: Authorization, address: str, code: str = "0000-0000", name: str = "lamp") -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await ours.register(name, code, address)
    return caught.value


async def test_code_is_the_default_and_a_name_alone_registers_nobody(tmp_path: Path) -> None:
    assert SecuritySettings().registration == "code"
    ours = authorization(tmp_path, registration=SecuritySettings().registration)
    await ours.registry.add("lamp", Permissions())
    for _ in range(3):  # somebody asks again and again, to be there before the device
        with pytest.raises(UnauthorizedError):
            await ours.register("lamp", None, "192.0.2.66")
    assert (await ours.register("lamp", await coded(ours), HERE)).client_id == "lamp"


async def test_wrong_codes_lock_who_guesses_and_not_the_code(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = authorization(tmp_path, clock, registration="code")
    code, other = await coded(ours), await coded(ours, "other")
    for guesser in ("192.0.2.66", "2001:db8::1"):
        statuses = [(await guess(ours, guesser)).status for _ in range(8)]
        assert statuses == [401] * CODE_TRIES + [429] * 3
        error = await guess(ours, guesser, code)
        assert isinstance(error, QueueFullError), "the right one is not told from a wrong one"
        assert error.retry_after_s == 120
        assert (await guess(ours, guesser, name="nobody")).status == 429, "whatever name is guessed for"
    assert (await guess(ours, "2001:db8::ffff:2")).status == 429, "the same network"
    for _ in range(100):
        clock.advance(1)
        await guess(ours, "192.0.2.67")
    assert (await ours.register("lamp", code, HERE)).client_id == "lamp"
    assert (await ours.register("other", other, "2001:db8:0:1::1")).client_id == "other"


async def test_good_codes_count_against_nobody(tmp_path: Path) -> None:
    """An installer registers twenty devices from one address."""
    ours = authorization(tmp_path, registration="code")
    for number in range(20):
        name = f"lamp-{number}"
        assert (await ours.register(name, await coded(ours, name), HERE)).client_id == name
    assert (await guess(ours, HERE)).status == 401


async def test_guesses_that_come_at_the_same_time_are_counted_too(tmp_path: Path) -> None:
    ours = authorization(tmp_path, registration="code")
    await coded(ours)
    outcomes = await asyncio.gather(
        *(ours.register("lamp", f"0000-{number:04}", "192.0.2.66") for number in range(50)), return_exceptions=True
    )
    statuses = [outcome.status for outcome in outcomes if isinstance(outcome, GatewayError)]
    assert (len(statuses), statuses.count(401)) == (50, CODE_TRIES)


async def test_codes_cannot_be_guessed_from_many_addresses_either(tmp_path: Path) -> None:
    """2^40 codes at this rate are 700 years."""
    clock = FakeClock()
    ours = authorization(tmp_path, clock, registration="code")
    await coded(ours)
    answers = []
    for number in range(3000):
        clock.advance(0.005)
        answers.append((await guess(ours, f"10.{number >> 8}.{number & 255}.1")).status)
    taken = answers.count(401)
    assert taken + answers.count(429) == 3000
    assert CODES_PER_S * 15 <= taken <= CODES_PER_S * 17
    assert 2**40 / CODES_PER_S / (365 * 86_400) > 600
    clock.advance(1)
    assert (await ours.register("lamp", await coded(ours), HERE)).client_id == "lamp"


async def test_a_code_that_nobody_has_checked_does_not_count_against_who_sent_it(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = authorization(tmp_path, clock, registration="code")
    code = await coded(ours)
    while (await guess(ours, f"10.0.0.{len(ours._guesses)}")).status == 401:
        pass  # until others have used up what all may try
    for _ in range(2 * CODE_TRIES):
        assert (await guess(ours, HERE, code)).status == 429
    clock.advance(1)
    assert (await ours.register("lamp", code, HERE)).client_id == "lamp"


async def test_a_client_has_its_requests_a_second(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = authorization(tmp_path, clock, requests_per_s=3)
    lamp, other = f"Bearer {await token(ours)}", f"Bearer {await token(ours, 'other')}"
    clock.advance(1)
    for _ in range(3):
        ours.caller(lamp, HERE)
    with pytest.raises(QueueFullError, match="requests_per_s = 3") as caught:
        ours.caller(lamp, HERE)
    assert caught.value.code == "too_many_requests"
    assert ours.caller(other, HERE).name == "other"
    clock.advance(0.4)
    assert ours.caller(lamp, HERE).name == "lamp"


async def test_a_token_counts_as_a_request_of_its_client(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = authorization(tmp_path, clock, requests_per_s=2)
    lamp, other = [(await ours.register(name, None, HERE)) for name in ("lamp", "other")]
    for _ in range(2):
        ours.token(lamp.client_id, lamp.client_secret, HERE)
    with pytest.raises(QueueFullError, match="requests_per_s = 2"):
        ours.token(lamp.client_id, lamp.client_secret, HERE)
    assert ours.token(other.client_id, other.client_secret, HERE).token
    clock.advance(0.5)
    assert ours.token(lamp.client_id, lamp.client_secret, HERE).token


@each_row(
    ("address", "same"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::"),
        ("2001:db8::ffff:1", "2001:db8::"),
        ("fe80::1%eth0", "fe80::"),
        ("local", "local"),
    ],
)
def test_addresses_that_one_machine_can_change_at_will_are_one(address: str, same: str) -> None:
    assert network(address) == same


async def test_audit_lines_are_one_line_each_and_hold_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lamplighter.audit")
    ours = authorization(tmp_path)
    secret = await registered(ours)
    given = ours.token("lamp", secret, HERE).token
    for name in ("a\nforged client=admin", "\x1b[31m", "\x7f", "é", "a" * 5000):
        with pytest.raises(UnauthorizedError):
            ours.token(name, secret, HERE)
    with pytest.raises(UnauthorizedError):
        ours.caller(f"Bearer {given[:-12]}{'A' * 12}", HERE)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "registered client=lamp address=192.0.2.1 mode=open"
    assert lines[1] == "token_given client=lamp address=192.0.2.1 life_s=43200"
    assert lines[2].startswith(r'token_refused client="a\nforged client=admin" address=192.0.2.1 reason=unauthorized_c')
    assert lines[-1].startswith("request_refused address=192.0.2.1 reason=invalid_grant why=")
    for line in lines:
        assert line.isascii() and line.isprintable()
        assert secret not in line and given not in line
        assert len(line) < 600


async def test_a_client_may_read_inferred_graphs_with_their_sources(tmp_path: Path) -> None:
    inferred = "<urn:lamplighter:inferred:default>"
    for number, (granted, readable) in enumerate(
        ((["default", "a:ontology"], True), (["default", inferred[1:-1]], False))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        sources = Sources((None,), ("<a:ontology>",))
        ours = authorization(folder, sources=sources, grant_read=granted, grant_subscribe=granted)
        caller = ours.caller(f"Bearer {await token(ours)}", HERE)
        assert (inferred in caller.access.read, inferred in caller.access.subscribe) == (readable, readable)
        assert ours.access_of("lamp") == caller.access
