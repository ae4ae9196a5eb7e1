"""Orders: what the fleet asks of one gateway, as signed objects at the sync destination.

An order is the object ``orders/<gateway>/<number>.json``. Its Ed25519 signature (RFC 8032) covers every member, also
gateway, number and expiry. A gateway therefore executes no order of another gateway, and none twice. The gateway
answers with ``<number>.answer.json``. Numbers of a gateway begin with 1 and have no gaps.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from lamplighter.cloud_sync.answers import ORDERS
from lamplighter.cloud_sync.destinations import Destination
from lamplighter.engine.client.files import read_file, read_text
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError, UpstreamError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

VERSION = 1
ORDER_BYTES_MAX = 256 * 1024
ANSWER_SUFFIX = ".answer.json"
# The most objects above the newest order that a sender looks at. Only others can have made them.
FORGED_MAX = 1000
_KEYS_MAX = 16
# Before the signed bytes, so that the signature counts for nothing else.
_CONTEXT = b"lamplighter order 1\n"
_GATEWAY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(r"([0-9]{12})\.json")
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----")

Kind = Literal["update", "subscribe", "unsubscribe"]
Number = Annotated[int, msgspec.Meta(ge=1, lt=10**12)]
Version = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
SubscriptionName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class UpdateBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """update: the text of a SPARQL update."""

    update: Annotated[str, msgspec.Meta(min_length=1)]


class SubscribeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription of the fleet. A higher version replaces a lower one. query: a SPARQL SELECT."""

    subscription: SubscriptionName
    version: Version
    query: Annotated[str, msgspec.Meta(min_length=1)]


class UnsubscribeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ends a subscription. version: the last one that it ends."""

    subscription: SubscriptionName
    version: Version


Body = UpdateBody | SubscribeBody | UnsubscribeBody
_BODIES: dict[str, type[UpdateBody] | type[SubscribeBody] | type[UnsubscribeBody]] = {
    "update": UpdateBody,
    "subscribe": SubscribeBody,
    "unsubscribe": UnsubscribeBody,
}


class FleetOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order. id: a repetition with the same id has no second effect; body: as its kind says; issued, expires: UTC;
    signature: Base64."""

    v: int
    gateway: str
    number: Number
    id: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,150}$")]
    kind: Kind
    body: dict[str, str | int]
    issued: Instant
    expires: Instant
    signature: Annotated[str, msgspec.Meta(max_length=100)] = ""

    @property
    def content(self) -> Body:
        """Its body as a value. Raises MalformedRequestError."""
        try:
            return msgspec.convert(self.body, _BODIES[self.kind])
        except msgspec.ValidationError as error:
            raise MalformedRequestError(f"body of kind {self.kind}: {error}") from error

    @property
    def signed_bytes(self) -> bytes:
        """What the signature covers: all members but itself, in one spelling."""
        return _CONTEXT + msgspec.json.encode(msgspec.structs.replace(self, signature=""))


class OrderAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gateway's answer. It is not signed. id: of the order, empty if it could not be read; reason: of a refusal; at:
    RFC 3339 time, empty while the clock is not trusted."""

    v: int
    gateway: str
    number: int
    id: str
    outcome: Literal["done", "refused"]
    reason: str = ""
    at: str = ""


def order_name(gateway: str, number: int) -> str:
    return f"{ORDERS}/{gateway}/{number:012d}.json"


def answer_name(gateway: str, number: int) -> str:
    return f"{ORDERS}/{gateway}/{number:012d}{ANSWER_SUFFIX}"


def order_number(name: str) -> int | None:
    """The number in the name of an order, without its folder; None for another object."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


# --- keys and signatures ------------------------------------------------------------------------------------------


def trusted_keys(path: Path) -> list[Ed25519PublicKey]:
    """The Ed25519 public keys (PEM) in a file, each of which may sign orders.

    Raises ConfigurationError, also if users besides the owner can write to the file: they could add a key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        if path.stat().st_mode & 0o022:
            raise ConfigurationError(f"{path}: other users can change whose orders are executed; chmod go-w {path}")
        found = _PEM.findall(read_text(path, encoding="ascii"))
        keys = [load_pem_public_key(text.encode()) for text in found[:_KEYS_MAX]]
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; correct sync.orders.key_file") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: not a public key in PEM: {error}; see Orders in docs/ship.md") from error
    ed25519 = [key for key in keys if isinstance(key, Ed25519PublicKey)]
    if not ed25519 or len(ed25519) != len(found):
        raise ConfigurationError(
            f"{path}: it has to have 1 to {_KEYS_MAX} public keys, all Ed25519, in PEM; make one with "
            "`openssl pkey -in fleet.key -pubout`"
        )
    return ed25519


def signing_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 private key (PEM) in a file. Raises ConfigurationError, also if other users can read it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path}: others can read this key; chmod 600 {path}")
        key = load_pem_private_key(read_file(path), password=None)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name the file of the fleet's key") from error
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path}: not a private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"{path}: not an Ed25519 key; make one with `openssl genpkey -algorithm ed25519`")
    return key


def sign(order: FleetOrder, key: Ed25519PrivateKey) -> bytes:
    """The object of an order."""
    signature = base64.b64encode(key.sign(order.signed_bytes)).decode()
    return msgspec.json.encode(msgspec.structs.replace(order, signature=signature)) + b"\n"


def verify(data: bytes, gateway: str, number: int, keys: Sequence[Ed25519PublicKey]) -> FleetOrder:
    """The order in an object, for this gateway and with this number.

    data: of any size. Raises MalformedRequestError with the reason. The expiry is not checked.
    """
    from cryptography.exceptions import InvalidSignature

    if len(data) > ORDER_BYTES_MAX:
        raise MalformedRequestError(f"it has more than {ORDER_BYTES_MAX} bytes")
    try:
        order = msgspec.json.decode(data, type=FleetOrder)
        signature = base64.b64decode(order.signature, validate=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, ValueError, RecursionError) as error:
        raise MalformedRequestError(f"not an order: {str(error)[:200]}") from error
    for key in keys:
        with suppress(InvalidSignature):
            key.verify(signature, order.signed_bytes)
            break
    else:
        raise MalformedRequestError("it is not signed by a key of sync.orders.key_file")
    if order.v != VERSION:
        raise MalformedRequestError(f"it has version {order.v}; this program executes version {VERSION}")
    if order.gateway != gateway:
        raise MalformedRequestError(f"it was signed for the gateway {order.gateway[:100]!r}")
    if order.number != number:
        raise MalformedRequestError(f"it was signed with the number {order.number}")
    return order


def read_order(source: Destination, name: str) -> bytes | None:
    """The bytes of an order's object, at most one more than `ORDER_BYTES_MAX`; None if it does not exist.

    Raises UpstreamError.
    """
    return source.get(name, ORDER_BYTES_MAX + 1)


# --- sending ------------------------------------------------------------------------------------------------------


class Orders:
    """Sends orders, signed with a key. former: other keys of the fleet, whose orders count too; clock: seconds since
    1970.

    Several senders may use one destination if it creates objects atomically: a folder, or S3. Nothing below
    ``orders/`` may expire: the numbers continue behind the newest order that is there.
    """

    def __init__(
        self,
        destination: Destination,
        key: Ed25519PrivateKey,
        former: Sequence[Ed25519PublicKey] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._to = destination
        self._key = key
        self._trusted = [key.public_key(), *former]
        self._clock = clock
        self._newest: dict[str, int] = {}

    def send(self, gateway: str, order_id: str, kind: Kind, body: Mapping[str, str | int], expires_s: float) -> int:
        """Sends an order, unless the same was sent before. Returns its number.

        order_id: 1 to 150 printable ASCII characters; the gateway executes an update once for each. kind, body: as in
        `UpdateBody`, `SubscribeBody`, `UnsubscribeBody`. expires_s: seconds from now. Raises MalformedRequestError,
        also for an id that an order with another body has; UpstreamError, after which sending may be repeated.
        """
        if not _GATEWAY.fullmatch(gateway):
            raise MalformedRequestError(f"{gateway!r} is not the name of a gateway")
        now = int(self._clock())
        times = datetime.fromtimestamp(now, UTC), datetime.fromtimestamp(now + max(1, round(expires_s)), UTC)
        order = FleetOrder(VERSION, gateway, 1, order_id, kind, dict(body), *times)
        try:
            msgspec.json.decode(msgspec.json.encode(order), type=FleetOrder)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise MalformedRequestError(f"order {order_id[:150]!r}: {error}") from error
        order.content  # noqa: B018  (raises)
        marker = f"{ORDERS}/{gateway}/ids/{hashlib.sha256(order_id.encode()).hexdigest()}.json"
        known = self._sent_number(marker, order)
        if known is not None:
            return known
        number = self._next(gateway)
        while True:
            data = sign(msgspec.structs.replace(order, number=number), self._key)
            if len(data) > ORDER_BYTES_MAX:
                raise MalformedRequestError(
                    f"order {order_id!r} has more than {ORDER_BYTES_MAX} bytes; send it in parts"
                )
            name = order_name(gateway, number)
            created = self._to.create(name, [data])
            # What is there decides, not the answer to `create`: a request that is repeated after a lost answer finds
            # its own order, and where creating is not atomic, a second sender may have written.
            there = read_order(self._to, name)
            if there == data:
                break
            if created and there is None:
                raise UpstreamError(f"{self._to.url}/{name}: the order has gone; do not let anything expire there")
            number += 1
        self._newest[gateway] = number
        self._to.put(marker, msgspec.json.encode({"number": number}))
        return number

    def answer(self, gateway: str, number: int) -> OrderAnswer | None:
        """A gateway's answer to an order; None while there is none. Raises UpstreamError."""
        if not _GATEWAY.fullmatch(gateway):
            return None  # no order was sent to it
        name = answer_name(gateway, number)
        content = self._to.get(name)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=OrderAnswer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UpstreamError(f"{self._to.url}/{name}: not an answer: {error}; remove it") from error

    def answers(self, gateway: str, numbers: Iterable[int]) -> dict[int, OrderAnswer]:
        """Its answers to some of the orders. One that is no answer is left out. Raises UpstreamError."""
        wanted = set(numbers)
        if not wanted or not _GATEWAY.fullmatch(gateway):
            return {}
        # In a listing, so that orders without an answer cost no request each.
        listed = self._to.entries(f"{ORDERS}/{gateway}", after=f"{min(wanted):012d}")
        there = {one.name for one in listed}
        found = {}
        for number in sorted(wanted):
            name = answer_name(gateway, number)
            content = self._to.get(name) if name.rpartition("/")[2] in there else None
            if content is not None:
                with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    found[number] = msgspec.json.decode(content, type=OrderAnswer)
        return found

    def _sent_number(self, marker: str, order: FleetOrder) -> int | None:
        """The number under which an order with this id was sent."""
        # A marker counts only if it leads to that order.
        content = self._to.get(marker)
        if content is None:
            return None
        try:
            number = msgspec.json.decode(content, type=dict[Literal["number"], Number])["number"]
            data = read_order(self._to, order_name(order.gateway, number)) or b""
            found = verify(data, order.gateway, number, self._trusted)
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, MalformedRequestError):
            return None
        if found.id != order.id:
            return None
        if (found.kind, found.body) != (order.kind, order.body):
            raise MalformedRequestError(
                f"order {order.id!r} was sent to {order.gateway} before with another body; use a new id"
            )
        return number

    def _next(self, gateway: str) -> int:
        """The number behind the newest order that one of this fleet has signed. Forged objects do not count."""
        newest = self._newest.get(gateway, 0)
        after = f"{newest:012d}.json" if newest else ""
        names = (order_number(one.name) for one in self._to.entries(f"{ORDERS}/{gateway}", after=after))
        numbers = sorted((number for number in names if number), reverse=True)
        for number in numbers[:FORGED_MAX]:
            with suppress(MalformedRequestError):
                data = read_order(self._to, order_name(gateway, number)) or b""
                verify(data, gateway, number, self._trusted)
                return number + 1
        if len(numbers) > FORGED_MAX:
            raise UpstreamError(
                f"{self._to.url}/{ORDERS}/{gateway}: the last {FORGED_MAX} objects are no orders of this key; remove "
                "them, and check who else writes there"
            )
        return newest + 1
