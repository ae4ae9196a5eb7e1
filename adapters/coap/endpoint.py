"""One UDP socket with the layers of aiocoap above it, bounded.

::

    CoapSocket     datagrams           UDP over IPv6 and IPv4
    CoapMessages   message ids         retransmission, duplicates, one confirmable message at a time to a peer
    CoapTokens     tokens              requests and their answers
    Endpoint       the whole

The layers are the library's classes, composed as its `Context` does. This is the only module that knows their inner
attributes; a test names each of them. The library keeps some state without a bound: the subclasses bound it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiocoap
import aiocoap.error
from aiocoap.messagemanager import MessageManager
from aiocoap.numbers.codes import Code
from aiocoap.numbers.contentformat import ContentFormat
from aiocoap.numbers.optionnumbers import OptionNumber
from aiocoap.numbers.types import Type
from aiocoap.pipe import Pipe
from aiocoap.protocol import Context
from aiocoap.tokenmanager import TokenManager
from aiocoap.transports.udp6 import MessageInterfaceUDP6, UDP6EndpointAddress

from lamplighter.adapters.coap.admission import network
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.coap.udp_socket import udp_socket
from lamplighter.adapters.networks import Address
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.sharing import Usage, fits

# The library's logger. It logs each bad datagram, which is counted here, so it logs errors only.
LOGGER = f"{__name__}.aiocoap"
logging.getLogger(LOGGER).setLevel(logging.ERROR)

# Asked for; the system may allow less. With the default, a few hundred answers at once do not fit.
RECEIVE_BUFFER_BYTES = 4 << 20
# Peers whose message ids are counted. The least recent goes.
REMOTES_MAX = 10_000
# Requests that are remembered, to recognise them when they come again, and the answers to them. The oldest goes. 247 s
# is EXCHANGE_LIFETIME of RFC 7252 section 4.8.2.
ANSWERS_MAX, ANSWERS_BYTES_MAX, ANSWERS_S = 10_000, 4 << 20, 247.0
# Confirmable answers that wait for one peer to acknowledge.
QUEUED_MAX = 64
# Answers to one multicast request.
COLLECTED_MAX = 1_000
# Options of a message. The library takes up to 3 us for each, and a datagram has room for 4,000.
OPTIONS_MAX = 64

# option -> its least and greatest length (RFC 7252, 7641, 7959, 7967, 8613, 8768, 9175).
_OPTION_BYTES = {
    1: (0, 8),  # If-Match
    3: (1, 255),  # Uri-Host
    4: (1, 8),  # ETag
    5: (0, 0),  # If-None-Match
    6: (0, 3),  # Observe
    7: (0, 2),  # Uri-Port
    8: (0, 255),  # Location-Path
    9: (0, 255),  # OSCORE
    11: (0, 255),  # Uri-Path
    12: (0, 2),  # Content-Format
    14: (0, 4),  # Max-Age
    15: (0, 255),  # Uri-Query
    16: (1, 1),  # Hop-Limit
    17: (0, 2),  # Accept
    20: (0, 255),  # Location-Query
    23: (0, 3),  # Block2
    27: (0, 3),  # Block1
    28: (0, 4),  # Size2
    35: (1, 1034),  # Proxy-Uri
    39: (1, 255),  # Proxy-Scheme
    60: (0, 4),  # Size1
    252: (1, 40),  # Echo
    258: (0, 1),  # No-Response
    292: (0, 8),  # Request-Tag
}
_ANY_LENGTH = 0, 0xFFFF
_NUMBERS_KEPT = 256
_NUMBERS = {kind: len(kind._value2member_map_) for kind in (ContentFormat, OptionNumber)}
_NON, _ACK, _RST = 1, 2, 3  # types of messages
_PAYLOAD_MARKER = 0xFF
_EXTENDED_BYTES, _EXTENDED_FROM = {13: 1, 14: 2}, {1: 13, 2: 269}  # of numbers and lengths of options
_ONLY_IN_BLOCKS = b"\xd1\x0e\x06"  # the option Block1 of an answer: blocks of 1,024 bytes (RFC 7959 section 2.9.3)
_CODE_CLASSES = (0, 2, 4, 5)  # the others are reserved (RFC 7252 section 3)
_PACKET_INFO = struct.Struct("16sI")  # in6_pktinfo of RFC 3542


@dataclass(slots=True)
class EndpointCounters:
    """Since the start. datagrams_malformed: datagrams that are no message, or have an option that cannot be read;
    duplicates: requests that came again; requests_dropped: requests above a bound, which got no answer;
    answers_unknown: answers to no request of ours; notifications_replaced: notifications that a newer one replaced
    before they were sent."""

    datagrams_malformed: int = 0
    duplicates: int = 0
    requests_dropped: int = 0
    answers_unknown: int = 0
    notifications_replaced: int = 0


class ServerPlace(Protocol):
    """host: an IP address; port: 0 for one that the system chooses; requests_max: requests that are being answered."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def requests_max(self) -> int: ...


class DatagramInterface(Protocol):
    """What is below the messages: a socket, or the wire of a test."""

    def address(self, ip: Address, port: int, scope: int) -> Any: ...
    def send(self, message: aiocoap.Message) -> None: ...
    def send_datagram(self, data: bytes, remote: Any) -> None: ...
    async def shutdown(self) -> None: ...


class DatagramError(Exception):
    """A datagram that is no proper message. in_option: it is one but for an option, or has too many of them."""

    def __init__(self, *, in_option: bool = False) -> None:
        super().__init__()
        self.in_option = in_option


def read_datagram(data: bytes, remote: Any = None) -> aiocoap.Message:
    """The message of a datagram. An elective option with a length that it cannot have is left out (RFC 7252 section
    5.4.3). Raises DatagramError."""
    # Version, type and token length are in byte 0, the code in byte 1, the message id behind them (RFC 7252 section 3).
    # Another version is to be ignored silently.
    if len(data) < 4 or data[0] >> 6 != 1:
        raise DatagramError
    kind, token_bytes, code = (data[0] >> 4) & 3, data[0] & 15, data[1]
    # Token lengths 9 to 15 are reserved. Code 0.00 is an empty message, which has nothing behind the message id.
    if token_bytes > 8 or len(data) < 4 + token_bytes or code >> 5 not in _CODE_CLASSES or (not code and len(data) > 4):
        raise DatagramError
    # Combinations that RFC 7252 section 4.3, table 1, does not have: an empty NON, a request in an ACK, and a RST with
    # content.
    if (kind == _NON and not code) or (kind == _ACK and 0 < code < 32) or (kind == _RST and code):
        raise DatagramError
    # Counted before the library decodes them: it makes an object of each, also of thousands in one datagram.
    if _has_too_many_options(data, 4 + token_bytes):
        raise DatagramError(in_option=True)
    try:
        message = aiocoap.Message.decode(data, remote)
    except aiocoap.error.UnparsableMessage as error:
        raise DatagramError from error
    except UnicodeDecodeError as error:
        raise DatagramError(in_option=True) from error
    finally:
        _forget_numbers()
    # The list is in the order of numbers. Deltas may add up to numbers that no registry has.
    options = list(message.opt.option_list())
    if options and options[-1].number > 0xFFFF:
        raise DatagramError
    if not message.payload and data[-1] == 0xFF and 4 + token_bytes + len(message.opt.encode()) < len(data):
        raise DatagramError  # the marker of a payload, and none
    for option in options:
        least, most = _OPTION_BYTES.get(option.number, _ANY_LENGTH)
        if not least <= _length(option) <= most:
            if option.number.is_critical():
                raise DatagramError(in_option=True)
            message.opt.delete_option(option.number)
    return message


def _is_request(data: bytes) -> bool:
    """Whether a datagram says that it is a request; it may be malformed."""
    return len(data) >= 4 and data[0] >> 6 == 1 and 0 < data[1] < 32


def _has_too_many_options(data: bytes, at: int) -> bool:
    """at: where the options begin. A damaged option ends the count."""
    for _ in range(OPTIONS_MAX):
        if at >= len(data) or data[at] == _PAYLOAD_MARKER:
            return False
        delta, length = data[at] >> 4, data[at] & 15
        at += 1 + _EXTENDED_BYTES.get(delta, 0)
        # Nibbles 13 and 14 say that 1 or 2 further bytes hold delta or length (RFC 7252 section 3.1).
        extended = _EXTENDED_BYTES.get(length, 0)
        if extended:
            length = int.from_bytes(data[at : at + extended]) + _EXTENDED_FROM[extended]
        at += extended + length
    return at < len(data) and data[at] != _PAYLOAD_MARKER


def _length(option: Any) -> int:
    value = option.value
    if type(value) is int:
        return (value.bit_length() + 7) // 8
    return len(value if type(value) is bytes else option.encode())


def _forget_numbers() -> None:
    """The library keeps each number of an option or a format that it meets for good. Any sender can make up numbers."""
    # What was registered when this module was loaded comes first in the dictionary of the enumeration; only the rest
    # goes.
    for kind, known in _NUMBERS.items():
        members = kind._value2member_map_
        if len(members) > known + _NUMBERS_KEPT:
            for number in list(members)[known:]:
                del members[number]


def _source(remote: Any) -> str:
    """As whom a peer shares the requests that are being answered: its `network`. Empty for loopback, behind which
    programs cannot be told apart."""
    address = ipaddress.ip_address(remote.sockaddr[0].partition("%")[0])
    # The socket serves both families, so an IPv4 peer comes as ::ffff:a.b.c.d.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return "" if (mapped or address).is_loopback else network(address).hex()


class Confirmable(aiocoap.TransportTuning):  # type: ignore[misc]  # the library ships no types
    """Requests are confirmable and retransmitted as the settings say."""

    reliability = True

    def __init__(self, settings: CoapSettings) -> None:
        self.ACK_TIMEOUT = settings.ack_timeout_s
        self.MAX_RETRANSMIT = settings.retransmissions_max


class CoapTokens(TokenManager):  # type: ignore[misc]
    """Requests and answers by token. A token is random, or chosen to renew a registration under the same.

    answering: requests without an answer so far, by source. collecting: answers to multicast requests by token and
    peer, and what permits a peer.
    """

    def __init__(self, context: Context, counters: EndpointCounters) -> None:
        super().__init__(context)
        self.answering = Usage()
        self.collecting: dict[bytes, tuple[dict[Any, aiocoap.Message], Callable[[Any], bool]]] = {}
        self._chosen: bytes | None = None
        self._counters = counters

    def next_token(self) -> bytes:
        return self._chosen or secrets.token_bytes(8)

    def request_by(self, token: bytes | None, pipe: Pipe) -> None:
        """Sends the request of the pipe. token: None for a random one."""
        self._chosen = token
        try:
            self.request(pipe)
        finally:
            self._chosen = None

    def expects(self, message: aiocoap.Message) -> bool:
        """Whether the message answers a request of ours."""
        return (message.token, message.remote) in self.outgoing_requests or message.token in self.collecting

    def process_request(self, request: aiocoap.Message) -> None:
        super().process_request(request)
        found = self.incoming_requests.get((request.token, request.remote))
        if found is None:
            return
        source = _source(request.remote)
        self.answering.add(source)

        # Called with the first event of any kind; False removes the callback, so that a source is given back its place
        # once.
        def answered(_: Any) -> bool:
            self.answering.add(source, -1)
            return False

        pipe = found[0]
        pipe.on_event(answered, is_interest=False)
        # An observer that leaves must not get the notification that still waits behind a confirmable one.
        pipe.on_interest_end(lambda: self.token_interface.drop_notification(request.remote, request.token))

    def process_response(self, response: aiocoap.Message) -> bool:
        if response.token in self.collecting:
            answers, permits = self.collecting[response.token]
            # True: it was expected. Otherwise the library would reset it.
            if len(answers) < COLLECTED_MAX and permits(response.remote):
                answers.setdefault(response.remote, response)
            return True
        pipe = self.outgoing_requests.get((response.token, response.remote))
        matched: bool = super().process_response(response)
        if pipe is not None and (pipe.request.opt.observe != 0 or response.opt.observe is None):
            # The answer acknowledges the request, also if the acknowledgement itself was lost.
            self.token_interface.forget(response.remote, pipe.request.mid)
        return matched


@dataclass(slots=True)
class _Received:
    """A request that was received. digest: of the datagram: a peer that rebooted may use a message id again."""

    digest: int
    at: float
    answer: bytes = b""


class CoapMessages(MessageManager):  # type: ignore[misc]
    """Messages by message id: acknowledgements, retransmission, duplicates.

    requests_max: requests that are being answered at a time, which their sources share; admits: whether a peer may send
    a request of so many bytes now. Others get no answer.
    """

    def __init__(
        self, tokens: CoapTokens, counters: EndpointCounters, requests_max: int, admits: Callable[[Any, int], bool]
    ) -> None:
        super().__init__(tokens)
        self._counters = counters
        self._requests_max = requests_max
        self._admits = admits
        self._ids: OrderedDict[Any, int] = OrderedDict()  # peer -> its last message id
        self._peer: Any = None
        self._digest = 0
        self._received: OrderedDict[tuple[Any, int], _Received] = OrderedDict()  # by time
        self._answers_bytes = 0

    def receive(self, data: bytes, remote: Any, *, cut: bool = False) -> None:
        """Takes a datagram. cut: it was longer. A request is admitted before it is read, because reading takes long."""
        # The order matters: what is dropped here costs a look at two bytes, and no answer to an address that may be
        # forged.
        serves = self.token_manager.context.serversite is not None
        if serves and _is_request(data) and not self._has_room(remote, len(data)):
            self._counters.requests_dropped += 1
            return
        if cut:
            self._counters.datagrams_malformed += 1
            self._reject(data, remote, Code.REQUEST_ENTITY_TOO_LARGE, _ONLY_IN_BLOCKS)
            return
        try:
            message = read_datagram(data, remote)
        except DatagramError as error:
            self._counters.datagrams_malformed += 1
            self._reject(data, remote, Code.BAD_OPTION if error.in_option else None)
            return
        if message.code.is_request():
            if not serves:
                self._reject(data, remote, None)
                return
        elif message.code.is_response() and not self.token_manager.expects(message):
            self._counters.answers_unknown += 1
            # A confirmable one goes on to the library, which resets it (RFC 7252 section 4.2), so that the peer stops
            # repeating it.
            if message.mtype is not Type.CON:
                return  # also an acknowledgement with a wrong token, so that the exchange goes on
        # The library passes on the message alone, and `_deduplicate_message` compares the datagram.
        self._digest = hash(data)
        self.dispatch_message(message)

    def _has_room(self, remote: Any, size: int) -> bool:
        answering, source = self.token_manager.answering, _source(remote)
        free = self._requests_max - answering.total
        return fits(source, answering.of(source), 1, free) and self._admits(remote, size)

    def _reject(self, data: bytes, remote: Any, code: Code | None, options: bytes = b"") -> None:
        """Answers a confirmable message that cannot be taken (RFC 7252 sections 4.2 and 5.4.1).

        code: of the answer to a request; None: it is reset, as other messages are.
        """
        # Version 1 and type CON. Only these are answered, or two broken peers would answer each other for ever.
        confirmable = len(data) >= 4 and data[0] >> 4 == 0b0100
        if not confirmable or remote.is_multicast_locally:
            return
        token = data[4 : 4 + (data[0] & 15)]
        if code is not None and 0 < data[1] < 32 and len(token) <= 8:
            # Version 1 and type ACK with the id and token of the request, written by hand: the library makes answers of
            # messages only, and this is none.
            answer = bytes([0b0110_0000 | len(token), code]) + data[2:4] + token + options
        else:
            # RST, empty.
            answer = b"\x70\x00" + data[2:4]
        self.message_interface.send_datagram(answer, remote.as_response_address())

    def _next_message_id(self) -> int:
        """A peer's ids are counted from a random one, so that many peers do not share 65,536 of them."""
        last = self._ids.pop(self._peer, None)
        number = secrets.randbelow(1 << 16) if last is None else (last + 1) & 0xFFFF
        self._ids[self._peer] = number
        if len(self._ids) > REMOTES_MAX:
            self._ids.popitem(last=False)
        return number

    def send_message(self, message: aiocoap.Message, messageerror_monitor: Callable[[], None]) -> None:
        """Sends or queues a message. A notification replaces one of the same observation that is queued."""
        remote = message.remote
        # `_next_message_id` gets no argument from the library.
        self._peer = remote
        if not message.code.is_response():
            super().send_message(message, messageerror_monitor)
            return
        queued = self._backlogs.get(remote, [])
        # Notifications of one observation supersede each other (RFC 7641 section 4.5.2), so one place in the queue is
        # enough.
        place = self._queued_notification(remote, message.token) if message.opt.observe is not None else None
        if place is not None:
            self._counters.notifications_replaced += 1
            del queued[place]
        # An answer that fits into an acknowledgement needs no place in the queue.
        elif len(queued) >= QUEUED_MAX and (remote, message.token) not in self._piggyback_opportunities:
            self._counters.requests_dropped += 1
            return
        before = len(queued)
        super().send_message(message, messageerror_monitor)
        # The library appends. The newer state takes the turn of the one that it replaces, or a chatty observation would
        # never have one.
        if place is not None and len(queued) > before:
            queued.insert(place, queued.pop())

    def _queued_notification(self, remote: Any, token: bytes) -> int | None:
        for place, (message, _) in enumerate(self._backlogs.get(remote, ())):
            if message.token == token and message.code.is_response() and message.opt.observe is not None:
                return place
        return None

    def drop_notification(self, remote: Any, token: bytes) -> None:
        """Drops the queued notification of an observation that has ended."""
        place = self._queued_notification(remote, token)
        if place is not None:
            del self._backlogs[remote][place]

    def is_pending(self, remote: Any, mid: int | None) -> bool:
        """Whether a confirmable message is queued or not acknowledged."""
        queued = self._backlogs.get(remote, ())
        return (remote, mid) in (self._active_exchanges or ()) or any(message.mid == mid for message, _ in queued)

    def forget(self, remote: Any, mid: int | None) -> None:
        """Ends the transmission of a message. The next one to the peer leaves at once."""
        if self._active_exchanges is None or mid is None:
            return
        # Each peer has one confirmable message under way (NSTART = 1, RFC 7252 section 4.7), so the next one waits for
        # this.
        found = self._active_exchanges.pop((remote, mid), None)
        if found is not None:
            found[1].cancel()
            self._continue_backlog(remote)
        elif remote in self._backlogs:
            queued = self._backlogs[remote]
            queued[:] = [one for one in queued if one[0].mid != mid]

    def _continue_backlog(self, remote: Any) -> None:
        """Sends what is queued, up to the next confirmable message. The library's method visits all exchanges."""
        queued = self._backlogs.get(remote, [])
        while queued:
            message, monitor = queued.pop(0)
            self._send_initially(message, monitor)
            if message.mtype is Type.CON:
                return
        self._backlogs.pop(remote, None)

    def _deduplicate_message(self, message: aiocoap.Message) -> bool:
        """Whether the request came before; if so, it gets the same answer again."""
        key, now = (message.remote, message.mid), self.loop.time()
        found = self._received.get(key)
        # A peer that rebooted may choose an id that it has used: then the datagram differs.
        if found is not None and found.digest == self._digest and now < found.at + ANSWERS_S:
            self._counters.duplicates += 1
            # Without one, the answer is being made, and will come.
            if found.answer:
                self.message_interface.send_datagram(found.answer, message.remote.as_response_address())
            return True
        self._drop_answer(key)
        # The key was removed before, so that it stands at the end: the oldest is the first.
        self._received[key] = _Received(self._digest, now)
        self._bound_answers(now)
        return False

    def _store_response_for_duplicates(self, message: aiocoap.Message) -> None:
        """Only acknowledgements and resets have the message id of the request."""
        found = self._received.get((message.remote, message.mid))
        if found is not None and message.mtype in (Type.ACK, Type.RST):
            self._answers_bytes -= len(found.answer)
            found.answer = message.encode()
            self._answers_bytes += len(found.answer)
            self._bound_answers(self.loop.time())

    def _bound_answers(self, now: float) -> None:
        while self._received:
            key, oldest = next(iter(self._received.items()))
            if (
                len(self._received) <= ANSWERS_MAX
                and self._answers_bytes <= ANSWERS_BYTES_MAX
                and now < oldest.at + ANSWERS_S
            ):
                return
            self._drop_answer(key)

    def _drop_answer(self, key: tuple[Any, int]) -> None:
        found = self._received.pop(key, None)
        if found is not None:
            self._answers_bytes -= len(found.answer)

    async def shutdown(self) -> None:
        for _, handle in self._piggyback_opportunities.values():
            handle.cancel()
        self._piggyback_opportunities.clear()
        await super().shutdown()


class CoapSocket(MessageInterfaceUDP6):  # type: ignore[misc]
    """A UDP socket for IPv6 and IPv4. Errors of the network arrive at the requests to the peer that they concern."""

    _sending_to: Any = None

    @classmethod
    async def opened(
        cls, messages: CoapMessages, bind: tuple[str, int], multicast: Sequence[tuple[str, str]]
    ) -> CoapSocket:
        """multicast: groups to join, each with the name of an interface. Raises OSError."""
        # The library would let a second gateway share the port (SO_REUSEPORT), so that each gets a part of the
        # datagrams.
        link = udp_socket()
        try:
            # Datagrams that come in a burst while the loop is busy wait in the kernel.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            link.bind(bind)
        except OSError:
            link.close()
            raise
        opening = asyncio.ensure_future(
            cls._create_transport_endpoint(link, messages, messages.log, messages.loop, multicast)
        )
        try:
            # Shielded, so that a cancelled start does not leave a transport that nobody closes.
            found: CoapSocket = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await (await opening).shutdown()  # the library cannot close a socket that it has half opened
            raise
        except BaseException:
            link.close()
            raise
        return found

    @property
    def port(self) -> int:
        return int(self.transport.get_extra_info("socket").getsockname()[1])

    def address(self, ip: Address, port: int, scope: int) -> UDP6EndpointAddress:
        sockaddr = (_as_ipv6(ip), port, 0, scope)
        if not scope:
            return UDP6EndpointAddress(sockaddr, self)
        source = "::ffff:0.0.0.0" if ip.version == 4 else "::"
        # IPV6_PKTINFO chooses the interface; the address 0 leaves the source to the kernel. IPv4 needs the mapped form.
        chosen = _PACKET_INFO.pack(socket.inet_pton(socket.AF_INET6, source), scope)
        return UDP6EndpointAddress(sockaddr, self, pktinfo=chosen)

    def datagram_msg_received(self, data: bytes, ancdata: Sequence[Any], flags: int, address: Any) -> None:
        info = next((value for level, kind, value in ancdata if kind == socket.IPV6_PKTINFO), None)
        cut = bool(flags & socket.MSG_TRUNC)  # the library receives the first 4,096 bytes
        self._ctx.receive(data, UDP6EndpointAddress(address, self, pktinfo=info), cut=cut)

    def send(self, message: aiocoap.Message) -> None:
        self.send_datagram(message.encode(), message.remote)

    def send_datagram(self, data: bytes, remote: UDP6EndpointAddress) -> None:
        # An answer leaves from the address that the request came to; else the peer would not know it.
        extra = [] if remote.pktinfo is None else [(socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, remote.pktinfo)]
        # asyncio calls `error_received` within `sendmsg` if sending fails at once, without the peer.
        self._sending_to = remote
        try:
            self.transport.sendmsg(data, extra, 0, remote.sockaddr)
        finally:
            self._sending_to = None

    def error_received(self, exc: OSError) -> None:
        """A full send buffer loses the datagram, as the network may. An error while receiving concerns no peer."""
        if self._sending_to is not None and not isinstance(exc, BlockingIOError):
            self._ctx.dispatch_error(exc, self._sending_to)


def _as_ipv6(ip: Address) -> str:
    """As the system writes the sender of a datagram, because addresses are compared as texts."""
    if ip.version == 4:
        return f"::ffff:{ip}"
    return socket.inet_ntop(socket.AF_INET6, ip.packed)


class Ongoing:
    """A request that was started."""

    __slots__ = ("_messages", "_request", "_stop")

    def __init__(self, messages: CoapMessages, request: aiocoap.Message, stop: Callable[[], None]) -> None:
        self._messages, self._request, self._stop = messages, request, stop

    @property
    def acknowledged(self) -> bool:
        """Whether the peer has the request."""
        return not self._messages.is_pending(self._request.remote, self._request.mid)

    def stop(self) -> None:
        """Ends the request: nothing is sent any more, and answers are ignored. Also when it has ended."""
        self._stop()
        self._messages.forget(self._request.remote, self._request.mid)


class Endpoint:
    """Requests to peers, and the requests of peers to a site.

    site: has `render_to_pipe`, as the library's sites; None: requests are rejected. tuning: of requests. requests_max,
    admits: as in `CoapMessages`. `attach` gives it the interface, once.
    """

    def __init__(
        self,
        counters: EndpointCounters,
        *,
        site: Any = None,
        tuning: aiocoap.TransportTuning | None = None,
        requests_max: int = 0,
        admits: Callable[[Any, int], bool] = lambda remote, size: True,
    ) -> None:
        self._context = Context(loop=asyncio.get_running_loop(), serversite=site, loggername=LOGGER)
        self._tokens = CoapTokens(self._context, counters)
        self.messages = CoapMessages(self._tokens, counters, requests_max, admits)
        self._tokens.token_interface = self.messages
        self._tuning = tuning
        self._interface: Any = None

    def attach(self, interface: DatagramInterface) -> None:
        self._interface = self.messages.message_interface = interface

    @classmethod
    async def client(cls, settings: CoapSettings, counters: EndpointCounters) -> Endpoint:
        """An endpoint for requests, on a port that the system chooses: a new one at each start, so that a device cannot
        take a request for one of the process before. Raises UpstreamError."""
        endpoint = cls(counters, tuning=Confirmable(settings))
        await endpoint._open(("::", 0), ())
        return endpoint

    @classmethod
    async def server(
        cls,
        settings: ServerPlace,
        site: Any,
        counters: EndpointCounters,
        *,
        multicast: Sequence[tuple[str, str]] = (),
        admits: Callable[[Any, int], bool] = lambda remote, size: True,
    ) -> Endpoint:
        """An endpoint that answers requests. multicast: as in `CoapSocket.opened`. Raises UpstreamError."""
        endpoint = cls(counters, site=site, requests_max=settings.requests_max, admits=admits)
        await endpoint._open((_as_ipv6(ipaddress.ip_address(settings.host)), settings.port), multicast)
        return endpoint

    async def _open(self, bind: tuple[str, int], multicast: Sequence[tuple[str, str]]) -> None:
        try:
            self.attach(await CoapSocket.opened(self.messages, bind, multicast))
        except OSError as error:
            raise UpstreamError(f"no UDP socket on port {bind[1]} of {bind[0]}: {error}") from error

    @property
    def port(self) -> int:
        return int(self._interface.port)

    def address(self, ip: Address, port: int, scope: int = 0) -> Any:
        """A peer, for `Message.remote`. scope: the number of an interface, for link-local and multicast addresses."""
        return self._interface.address(ip, port, scope)

    def start(self, message: aiocoap.Message, on_event: Callable[[Any], None], token: bytes | None = None) -> Ongoing:
        """Sends a request, whose remote is set.

        on_event: takes the library's events (message, exception, is_last): each answer and notification, or a failure,
        which may come before this returns. It must not raise, and starts no request. token: None for a random one. A
        request with the token of an earlier one follows at once after its `stop`.
        """
        pipe = Pipe(message, self._context.log)
        if self._tuning is not None:
            message.transport_tuning = self._tuning

        def take(event: Any) -> bool:
            on_event(event)
            return not event.is_last

        stop = pipe.on_event(take)
        self._tokens.request_by(token, pipe)
        return Ongoing(self.messages, message, stop)

    async def collect(
        self, message: aiocoap.Message, seconds: float, permits: Callable[[Any], bool] = lambda remote: True
    ) -> list[aiocoap.Message]:
        """The answers to a multicast request, one of a peer. permits: whether the answer of a peer is taken."""
        message.token = secrets.token_bytes(8)
        # Multicast is never confirmable (RFC 7252 section 8.1).
        message.transport_tuning = aiocoap.Unreliable()
        answers: dict[Any, aiocoap.Message] = {}
        self._tokens.collecting[message.token] = answers, permits
        try:
            self.messages.send_message(message, lambda: None)
            await asyncio.sleep(seconds)
        finally:
            del self._tokens.collecting[message.token]
        return list(answers.values())

    async def close(self) -> None:
        """Ends all requests with an error, and closes the socket. Also when it is closed."""
        if self._interface is not None:
            self._interface = None
            await self._tokens.shutdown()
