"""Tokens: their signature, and their lifetime by the right clock."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lamplighter.engine.errors import ConfigurationError, QueueFullError, UnauthorizedError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.security.revocations import PER_CLIENT_MAX, REVOKED
from lamplighter.gateway.security.tokens import KEYS, Claims, TokenIssuer
from tests.support.gateway_parts import FakeClock
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.tables import each_row

LIFE_S = 3600
YEARS = timedelta(days=3650)


def tokens(folder: Path, clock: FakeClock | None = None) -> TokenIssuer:
    return TokenIssuer(folder, clock or FakeClock(), Disk(), LIFE_S)


def code_of(ours: TokenIssuer, token: str) -> str:
    """The error's code when a token is refused."""
    with pytest.raises(UnauthorizedError) as caught:
        ours.check(token)
    assert caught.value.status == 401
    return caught.value.code


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, payload = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2])
    return header, payload


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_token_says_whose_it_is(tmp_path: Path) -> None:
    ours = tokens(tmp_path)
    token = ours.give("gateway:7f", "r1")
    assert ours.check(token) == Claims("gateway:7f", "r1")
    header, payload = parts(token)
    assert (header["alg"], header["kid"]) == ("ES256", ours.jwk["kid"])
    assert payload["exp"] - payload["iat"] == LIFE_S
    assert payload["jti"] != parts(ours.give("gateway:7f", "r1"))[1]["jti"]
    assert FakeClock().boot not in json.dumps(payload), "the machine's id of the boot is nobody's business"
    assert jwt.decode(token, jwt.PyJWK(ours.jwk), ["ES256"], options={"verify_exp": False})["sub"] == "gateway:7f"


def test_a_token_lives_by_the_time_that_goes_by(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = tokens(tmp_path, clock)
    token = ours.give("c", "r")
    clock.advance(LIFE_S - 1)
    assert ours.check(token).client == "c"
    clock.advance(1)
    assert code_of(ours, token) == "invalid_grant"


@each_row("trusted", [True, False])
@each_row("by", [YEARS, -YEARS])
def test_stepping_the_wall_clock_changes_no_life(tmp_path: Path, by: timedelta, trusted: bool) -> None:
    clock = FakeClock(trusted=trusted)
    ours = tokens(tmp_path, clock)
    token = ours.give("c", "r")
    clock.step(by)
    assert ours.check(token).client == "c"
    clock.advance(LIFE_S)
    clock.step(-by)
    assert code_of(ours, token) == "invalid_grant"


@each_row(
    ("before", "after", "off_s", "good"),
    [
        (True, True, 60, True),
        (True, True, LIFE_S, False),
        (False, True, 60, False),
        (True, False, 60, False),
    ],
)
def test_across_boots_a_token_is_good_by_trusted_clocks_only(
    tmp_path: Path, before: bool, after: bool, off_s: float, good: bool
) -> None:
    clock = FakeClock(trusted=before)
    token = tokens(tmp_path, clock).give("c", "r")
    clock.reboot("boot-2", off_s=off_s)
    clock.synchronised = after
    ours = tokens(tmp_path, clock)
    if good:
        assert ours.check(token) == Claims("c", "r")
    else:
        assert code_of(ours, token) == "invalid_grant"


def test_a_token_from_the_future_is_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = tokens(tmp_path, clock)
    token = ours.give("c", "r")
    clock.reboot("boot-2")
    clock.step(-timedelta(hours=1))
    assert code_of(tokens(tmp_path, clock), token) == "invalid_grant"


def test_a_token_of_another_device_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    ours, others = tokens(tmp_path / "one"), tokens(tmp_path / "other")
    assert code_of(ours, others.give("c", "r")) == "invalid_grant"


def forged(
    ours: TokenIssuer, header: dict[str, Any], payload: dict[str, Any] | None = None, signature: str = "AAAA"
) -> str:
    good_header, good_payload = parts(ours.give("c", "r"))
    return f"{encoded({**good_header, **header})}.{encoded(payload or good_payload)}.{signature}"


def test_forged_tokens_are_refused(tmp_path: Path) -> None:
    ours = tokens(tmp_path)
    good = ours.give("c", "r")
    header, payload = parts(good)
    stranger = ec.generate_private_key(ec.SECP256R1())
    public = jwt.PyJWK(ours.jwk).key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with_public_key = jwt.api_jws.PyJWS().encode(
        json.dumps(payload).encode(), base64.b64encode(public), "HS256", {"kid": header["kid"]}
    )
    refused = {
        "alg none": forged(ours, {"alg": "none"}, signature=""),
        "alg none in capitals": forged(ours, {"alg": "NONE"}, signature=""),
        "HS256 with the public key": with_public_key,
        "ES384": forged(ours, {"alg": "ES384"}),
        "wrong kid": forged(ours, {"kid": "x"}, signature=good.rpartition(".")[2]),
        "no kid": f"{encoded({'alg': 'ES256', 'typ': 'JWT'})}.{good.partition('.')[2]}",
        "another's signature": jwt.encode(payload, stranger, "ES256", {"kid": header["kid"]}),
        "another subject": forged(ours, {}, {**payload, "sub": "operator"}, good.rpartition(".")[2]),
        "a longer life": forged(ours, {}, {**payload, "life_us": 10**15}, good.rpartition(".")[2]),
        "no signature": good.rpartition(".")[0] + ".",
    }
    assert {what: code_of(ours, token) for what, token in refused.items()} == dict.fromkeys(refused, "invalid_grant")
    assert code_of(ours, good[:-40]) in ("invalid_grant", "invalid_request")
    assert ours.check(good).client == "c"


@each_row("token", ["", "x", "a.b", "a.b.c", "....", "é.é.é", "\x00", "e30.e30." + "A" * 5000])
def test_what_is_no_signed_token_is_an_invalid_request(tmp_path: Path, token: str) -> None:
    assert code_of(tokens(tmp_path), token) == "invalid_request"


def test_a_token_signed_by_us_of_another_shape_is_refused(tmp_path: Path) -> None:
    ours = tokens(tmp_path)
    token = jwt.encode({"sub": "c"}, ours._private, "ES256", {"kid": ours.jwk["kid"]})
    assert code_of(ours, token) == "invalid_grant"


async def test_after_a_rotation_the_key_before_verifies_until_its_tokens_are_over(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = tokens(tmp_path, clock)
    old, old_key = ours.give("c", "r"), ours._private
    await ours.rotate()
    new = ours.give("c", "r")
    assert parts(new)[0]["kid"] != parts(old)[0]["kid"]
    again = tokens(tmp_path, clock)  # both keys are kept
    assert {again.check(old), again.check(new), ours.check(old)} == {Claims("c", "r")}
    # Somebody who has the old key signs with it for ever.
    for_ever = jwt.encode({**parts(old)[1], "life_us": 10**15}, old_key, "ES256", {"kid": parts(old)[0]["kid"]})
    assert ours.check(for_ever).client == "c"
    clock.advance(LIFE_S)
    newer = ours.give("c", "r")
    assert code_of(ours, for_ever) == "invalid_grant", "also where its signature was found good before"
    assert code_of(again, for_ever) == "invalid_grant"
    assert ours.check(newer).client == "c"


async def test_a_revoking_rotation_refuses_all_tokens_at_once(tmp_path: Path) -> None:
    ours = tokens(tmp_path)
    old = ours.give("c", "r")
    await ours.rotate(revoke=True)
    assert code_of(ours, old) == "invalid_grant"


async def test_a_rotation_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    class Full(Disk):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

    ours = tokens(tmp_path)
    token, kept = ours.give("c", "r"), (tmp_path / KEYS).read_bytes()
    ours._disk = Full()
    with pytest.raises(UnauthorizedError, match="No space left") as caught:
        await ours.rotate()
    assert (caught.value.code, caught.value.status) == ("security_error", 500)
    assert ours.check(token).client == "c"
    assert (tmp_path / KEYS).read_bytes() == kept
    assert ours.check(ours.give("d", "r")).client == "d"


async def test_a_power_cut_in_a_rotation_leaves_one_of_the_keys_whole(tmp_path: Path) -> None:
    for operations in range(1, 7):
        disk = SimulatedDisk(tmp_path / f"disk{operations}")
        folder = disk.root / "security"
        disk.make_folder(folder)
        disk.sync_folder(disk.root)
        clock = FakeClock()
        ours = TokenIssuer(folder, clock, disk, LIFE_S)
        token = ours.give("c", "r")
        disk.stop_at(operations)
        with contextlib.suppress(PowerCut):
            await ours.rotate()
        for seed in range(4):
            after = tmp_path / f"cut{operations}-{seed}"
            disk.cut(random.Random(seed), after)
            assert tokens(after / "security", clock).check(token).client == "c"


async def test_a_revoked_token_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = tokens(tmp_path, clock)
    ended, other = ours.give("c", "r"), ours.give("c", "r")
    await ours.revoke(ended)
    for now in (ours, tokens(tmp_path, clock)):
        assert code_of(now, ended) == "invalid_grant"
        assert now.check(other).client == "c"
    with pytest.raises(UnauthorizedError, match="revoked"):
        await ours.revoke(ended)
    await ours.rotate()
    assert code_of(ours, ended) == "invalid_grant", "also with the previous key"


async def test_a_token_stays_revoked_while_a_later_clock_may_find_it_valid(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = tokens(tmp_path, clock)
    ended = ours.give("c", "r")
    await ours.revoke(ended)
    clock.boot, clock.synchronised = "another", False
    ours = tokens(tmp_path, clock)
    await ours.revoke(ours.give("d", "r"))
    clock.synchronised = True
    assert code_of(ours, ended) == "invalid_grant"
    with pytest.raises(UnauthorizedError, match="revoked"):
        ours.check(ended)


async def test_revoked_tokens_are_forgotten_when_they_expire_and_are_bounded(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = tokens(tmp_path, clock)
    for _ in range(PER_CLIENT_MAX):
        await ours.revoke(ours.give("c", "r"))
    one_more = ours.give("c", "r")
    with pytest.raises(QueueFullError, match="keys rotate --revoke"):
        await ours.revoke(one_more)
    assert ours.check(one_more).client == "c"
    await ours.revoke(ours.give("another", "r"))
    assert (tmp_path / REVOKED).stat().st_size < PER_CLIENT_MAX * 250
    clock.advance(LIFE_S)
    await ours.revoke(ours.give("c", "r"))
    assert len(json.loads((tmp_path / REVOKED).read_bytes())) == 1


async def test_a_revocation_that_cannot_be_written_holds_until_the_next_start(tmp_path: Path) -> None:
    class Full(Disk):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

    clock = FakeClock()
    ours = TokenIssuer(tmp_path, clock, Disk(), LIFE_S)
    token = ours.give("c", "r")
    ours._revoked._disk = Full()
    with pytest.raises(UnauthorizedError, match="No space left") as caught:
        await ours.revoke(token)
    assert (caught.value.code, caught.value.status) == ("security_error", 500)
    assert code_of(ours, token) == "invalid_grant"
    assert tokens(tmp_path, clock).check(token).client == "c"


def test_damaged_revocations_are_told(tmp_path: Path) -> None:
    (tmp_path / REVOKED).write_text('[{"id": 5}]')
    with pytest.raises(ConfigurationError, match=r"revoked\.json is damaged.*keys rotate --revoke"):
        tokens(tmp_path)


def test_keys_are_for_the_owner_alone_and_damage_is_told(tmp_path: Path) -> None:
    tokens(tmp_path)
    assert (tmp_path / KEYS).stat().st_mode & 0o777 == 0o600
    (tmp_path / KEYS).write_text('{"private": "x"}')
    with pytest.raises(ConfigurationError, match=r"keys\.json is damaged"):
        tokens(tmp_path)
