"""Orders at a destination: who may send them, and which of them a gateway takes."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lamplighter.cloud_sync.destinations import Destination, LocalFolder, destination
from lamplighter.cloud_sync.order_intake import GAP_ROUNDS, OrderIntake
from lamplighter.cloud_sync.orders import (
    ORDER_BYTES_MAX,
    FleetOrder,
    Orders,
    order_name,
    sign,
    signing_key,
    trusted_keys,
)
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, MalformedRequestError, UpstreamError

KEY, FOREIGN = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
NOW = 1_800_000_000.0
BODY = {"update": "INSERT DATA { <http://e/a> <http://e/b> 1 }"}


@pytest.fixture
def to(tmp_path: Path) -> LocalFolder:
    (tmp_path / "to").mkdir()
    return LocalFolder(tmp_path / "to")


def sender(to: Destination, key: Ed25519PrivateKey = KEY) -> Orders:
    return Orders(to, key, clock=lambda: NOW)


@pytest.fixture
def orders(to: LocalFolder) -> Orders:
    return sender(to)


class Gateway:
    """A gateway that settles whatever it gets. Each round is one of a new process."""

    def __init__(self, data: Path, to: Destination) -> None:
        self.data = data
        self.to = to
        self.now = NOW
        self.trusted = True

    def intake(self) -> OrderIntake:
        clock = PaceClock(wall=lambda: self.now, trusted=lambda: self.trusted)
        return OrderIntake(self.data, self.to, "gw", [KEY.public_key()], clock)

    def round(self) -> list[str]:
        """The ids of the orders that it takes, and the reasons of those that it refuses."""
        intake, found = self.intake(), []
        while (received := intake.next()) is not None:
            found.append(received.reason or (received.order.id if received.order else ""))
            intake.settle(received, "refused" if received.reason else "done", received.reason)
        intake.answer()
        return found

    def rounds(self) -> list[str]:
        """Those of so many rounds that an order that cannot be verified is refused."""
        found = []
        for _ in range(GAP_ROUNDS):
            assert all(not outcome.startswith("not ") for outcome in found), "refused after the last round only"
            found += self.round()
        return found


@pytest.fixture
def gateway(tmp_path: Path, to: LocalFolder) -> Gateway:
    return Gateway(tmp_path, to)


def changed(to: Destination, **members: object) -> bytes:
    """The first order at the destination with other members, and its old signature."""
    order = msgspec.json.decode(to.get(order_name("gw", 1)) or b"", type=FleetOrder)
    return msgspec.json.encode(msgspec.structs.replace(order, **members))


# --- sending ---


def test_an_order_is_sent_once(to: LocalFolder, orders: Orders) -> None:
    assert [orders.send("gw", name, "update", BODY, 60) for name in ("a", "b", "a")] == [1, 2, 1]
    assert sender(to).send("gw", "b", "update", BODY, 600) == 2
    assert sender(to).send("gw-2", "b", "update", BODY, 60) == 1
    with pytest.raises(MalformedRequestError, match="use a new id"):
        orders.send("gw", "b", "update", {"update": "CLEAR ALL"}, 60)


def test_two_senders_take_different_numbers(to: LocalFolder, gateway: Gateway) -> None:
    one, two = sender(to), sender(to)
    assert [one.send("gw", "a", "update", BODY, 60), two.send("gw", "b", "update", BODY, 60)] == [1, 2]
    assert [one.send("gw", "c", "update", BODY, 60), two.send("gw", "d", "update", BODY, 60)] == [3, 4]
    assert gateway.round() == ["a", "b", "c", "d"]


def test_what_others_write_changes_no_number(to: LocalFolder, orders: Orders) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    to.put(order_name("gw", 999_999_999_999), to.get(order_name("gw", 1)) or b"")
    to.put(order_name("gw", 2), b"noise")
    assert sender(to).send("gw", "b", "update", BODY, 60) == 3
    marker = next(entry.name for entry in to.entries("orders/gw/ids"))
    to.put(f"orders/gw/ids/{marker}", b'{"number": 2}')
    assert 4 in [sender(to).send("gw", name, "update", BODY, 60) for name in "ab"]
    for entry in to.entries("orders/gw/ids"):
        to.put(f"orders/gw/ids/{entry.name}", b'{"number": 1}')
    assert [sender(to).send("gw", name, "update", BODY, 60) for name in "ab"] == [1, 5]


def test_orders_of_a_former_key_count(to: LocalFolder, orders: Orders) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    assert Orders(to, FOREIGN, [KEY.public_key()]).send("gw", "b", "update", BODY, 60) == 2


@pytest.mark.parametrize(
    ("gateway_name", "order_id", "kind", "body", "told"),
    [
        ("../gw", "a", "update", BODY, "name of a gateway"),
        ("gw", "", "update", BODY, "order ''"),
        ("gw", "a b", "update", BODY, "order 'a b'"),
        ("gw", "a", "delete", BODY, "delete"),
        ("gw", "a", "update", {"query": "ASK {}"}, "query"),
        ("gw", "a", "subscribe", {"subscription": "UP", "version": 1, "query": "x"}, "subscription"),
        ("gw", "a", "subscribe", {"subscription": "up", "version": 0, "query": "x"}, "version"),
        ("gw", "a", "update", {"update": "\ud800"}, "surrogate"),
        ("gw", "a", "update", {"update": "x" * ORDER_BYTES_MAX}, "in parts"),
    ],
)
def test_a_wrong_order_is_not_sent(
    to: LocalFolder, orders: Orders, gateway_name: str, order_id: str, kind: str, body: dict[str, str], told: str
) -> None:
    with pytest.raises(MalformedRequestError, match=told):
        orders.send(gateway_name, order_id, kind, body, 60)  # type: ignore[arg-type]
    assert to.folders() == []


# --- what a gateway takes ---


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"body": {"update": "CLEAR ALL"}}, "not signed"),
        ({"id": "other"}, "not signed"),
        ({"gateway": "gw-2"}, "not signed"),
        ({"number": 2}, "not signed"),
        ({"kind": "unsubscribe"}, "not signed"),
        ({"v": 2}, "not signed"),
        ({"signature": ""}, "not signed"),
        ({"signature": "AAAA"}, "not signed"),
        ({"signature": "?"}, "not an order"),
        ({"signature": base64.b64encode(bytes(64)).decode()}, "not signed"),
    ],
)
def test_a_changed_order_is_refused(
    to: LocalFolder, orders: Orders, gateway: Gateway, members: dict[str, object], told: str
) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    to.put(order_name("gw", 1), changed(to, **members))
    orders.send("gw", "b", "update", BODY, 60)
    refused, taken = gateway.rounds()
    assert told in refused
    assert taken == "b"
    answer = orders.answer("gw", 1)
    assert answer is not None
    assert (answer.outcome, answer.reason) == ("refused", refused)


def test_a_later_expiry_is_not_believed(to: LocalFolder, orders: Orders, gateway: Gateway) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    order = msgspec.json.decode(to.get(order_name("gw", 1)) or b"", type=FleetOrder)
    to.put(order_name("gw", 1), changed(to, expires=order.expires.replace(year=2099)))
    gateway.now += 61
    [told] = gateway.rounds()
    assert "not signed" in told


@pytest.mark.parametrize("data", [b"", b"noise", b"[" * 100_000, b'{"v":1}', b"\xff"])
def test_what_is_no_order_is_refused_and_the_next_is_taken(
    to: LocalFolder, orders: Orders, gateway: Gateway, data: bytes
) -> None:
    to.put(order_name("gw", 1), data)
    assert orders.send("gw", "a", "update", BODY, 60) == 2
    refused, taken = gateway.rounds()
    assert refused.startswith("not an order: ")
    assert taken == "a"


def test_a_large_object_is_refused_without_being_parsed(to: LocalFolder, orders: Orders, gateway: Gateway) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    data = to.get(order_name("gw", 1)) or b""
    to.put(order_name("gw", 1), data.ljust(ORDER_BYTES_MAX + 1))
    assert gateway.rounds() == [f"it has more than {ORDER_BYTES_MAX} bytes"]


def test_an_order_of_another_key_is_refused(to: LocalFolder, gateway: Gateway) -> None:
    sender(to, FOREIGN).send("gw", "a", "update", BODY, 60)
    [told] = gateway.rounds()
    assert "not signed by a key" in told


def test_an_order_of_another_gateway_is_refused(to: LocalFolder, orders: Orders, gateway: Gateway) -> None:
    orders.send("gw-2", "a", "update", BODY, 60)
    to.put(order_name("gw", 1), to.get(order_name("gw-2", 1)) or b"")
    assert gateway.rounds() == ["it was signed for the gateway 'gw-2'"]


def test_an_old_order_is_not_taken_again(to: LocalFolder, orders: Orders, gateway: Gateway) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    assert gateway.round() == ["a"]
    assert gateway.round() == []
    to.put(order_name("gw", 2), to.get(order_name("gw", 1)) or b"")
    assert gateway.rounds() == ["it was signed with the number 1"]


def test_an_order_of_another_version_is_refused(to: LocalFolder, gateway: Gateway, orders: Orders) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    order = msgspec.json.decode(to.get(order_name("gw", 1)) or b"", type=FleetOrder)
    to.put(order_name("gw", 1), sign(msgspec.structs.replace(order, v=2), KEY))
    assert gateway.rounds() == ["it has version 2; this program executes version 1"]


def test_an_expired_order_is_refused(orders: Orders, gateway: Gateway) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    gateway.now += 60
    [told] = gateway.round()
    assert told.startswith("it has expired at 2027-")


def test_orders_wait_until_the_clock_is_synchronised(orders: Orders, gateway: Gateway) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    gateway.trusted = False
    assert gateway.round() == []
    assert "synchronised" in gateway.intake().state.waits
    gateway.trusted = True
    assert gateway.round() == ["a"]
    assert gateway.intake().state.waits == ""


def test_a_missing_order_is_waited_for_and_then_counted(to: LocalFolder, orders: Orders, gateway: Gateway) -> None:
    for name in "abc":
        orders.send("gw", name, "update", BODY, 6000)
    second = Path(to.url, order_name("gw", 2))
    kept = second.read_bytes()
    second.unlink()
    assert gateway.round() == ["a"]
    assert "order 2 is missing" in gateway.intake().state.waits
    second.write_bytes(kept)
    assert gateway.round() == ["b", "c"]

    orders.send("gw", "d", "update", BODY, 6000)
    orders.send("gw", "e", "update", BODY, 6000)
    Path(to.url, order_name("gw", 4)).unlink()
    assert [gateway.round() for _ in range(GAP_ROUNDS)] == [*[[]] * (GAP_ROUNDS - 1), ["e"]]
    state = gateway.intake().state
    assert (state.number, state.missing, state.gap) == (5, 1, 0)
    answer = orders.answer("gw", 4)
    assert answer is not None
    assert (answer.outcome, answer.reason) == (
        "refused",
        f"it was missing for {GAP_ROUNDS} rounds in which order 5 was there",
    )
    to.put(order_name("gw", 4), kept)
    assert gateway.round() == []


def test_forged_objects_behind_a_gap_move_no_number(
    to: LocalFolder, orders: Orders, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.order_intake.ROUND_MAX", 5)
    monkeypatch.setattr("lamplighter.cloud_sync.order_intake.GAP_ROUNDS", 2)
    orders.send("gw", "a", "update", BODY, 60)
    assert gateway.round() == ["a"]
    to.put(order_name("gw", 999_999_999_999), to.get(order_name("gw", 1)) or b"")
    for number in range(3, 8):
        to.put(order_name("gw", number), b"noise")
    assert [gateway.round() for _ in range(4)] == [[]] * 4
    assert orders.send("gw", "b", "update", BODY, 60) == 2
    assert gateway.round()[0] == "b"


# --- kills ---


def test_an_answer_is_told_again_after_a_kill_and_an_order_is_not_done_again(
    to: LocalFolder, orders: Orders, gateway: Gateway
) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    killed = gateway.intake()
    received = killed.next()
    assert received is not None
    killed.settle(received, "done")
    assert orders.answer("gw", 1) is None
    assert gateway.round() == []
    answer = orders.answer("gw", 1)
    assert answer is not None
    assert (answer.id, answer.outcome, answer.at) == ("a", "done", "2027-01-15T08:00:00Z")


def test_a_damaged_state_executes_nothing_again(orders: Orders, gateway: Gateway) -> None:
    orders.send("gw", "a", "update", BODY, 60)
    gateway.round()
    (gateway.data / "orders.json").write_text("noise")
    with pytest.raises(ChangeLogError, match=r"orders\.json.*number"):
        gateway.intake()


def test_a_broken_answer_is_named(to: LocalFolder, orders: Orders) -> None:
    to.put("orders/gw/000000000001.answer.json", b"noise")
    with pytest.raises(UpstreamError, match=r"000000000001\.answer\.json: not an answer"):
        orders.answer("gw", 1)


@pytest.mark.fleet
def test_orders_and_answers_by_s3(tmp_path: Path, s3: dict[str, object]) -> None:
    to = destination("s3://fleet/orders-test", s3)
    orders, gateway = sender(to), Gateway(tmp_path, to)
    assert [orders.send("gw", name, "update", BODY, 60) for name in ("a", "b", "a")] == [1, 2, 1]
    to.put(order_name("gw", 3), b"x" * (ORDER_BYTES_MAX + 1))
    to.put(order_name("gw", 4), b"")
    assert gateway.round() == ["a", "b"]
    # The round before was the first for one of them.
    large, empty = [outcome for _ in range(2 * GAP_ROUNDS - 2) for outcome in gateway.round()]
    assert "more than" in large
    assert "not an order" in empty
    assert sender(to).send("gw", "c", "update", BODY, 60) == 5
    assert gateway.round() == ["c"]
    answers = [orders.answer("gw", number) for number in range(1, 6)]
    assert [answer and answer.outcome for answer in answers] == ["done", "done", "refused", "refused", "done"]
    to.close()


# --- keys ---


def write_keys(folder: Path) -> tuple[Path, Path]:
    private, public = folder / "fleet.key", folder / "fleet.pem"
    encoding = serialization.Encoding.PEM
    private.write_bytes(KEY.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    private.chmod(0o600)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(b"".join(key.public_key().public_bytes(encoding, form) for key in (FOREIGN, KEY)))
    return private, public


def test_keys_are_read_from_files_that_nobody_else_can_change(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    assert signing_key(private).public_key() == KEY.public_key()
    assert trusted_keys(public) == [FOREIGN.public_key(), KEY.public_key()]
    public.chmod(0o664)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        trusted_keys(public)
    private.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        signing_key(private)
    for name in ("none", "fleet.key"):
        with pytest.raises(ConfigurationError):
            trusted_keys(tmp_path / name)
    (tmp_path / "text").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    (tmp_path / "text").chmod(0o600)
    with pytest.raises(ConfigurationError, match="not a public key"):
        trusted_keys(tmp_path / "text")
    with pytest.raises(ConfigurationError, match="not a private key"):
        signing_key(tmp_path / "text")
