"""PartialBodies that are longer than a datagram, in blocks (RFC 7959), with ETag and Request-Tag (RFC 9175). Pure.

`BodyOut` sends the body of a request (Block1). `BodyIn` receives the body of an answer (Block2) or of a request
(Block1). `PartialBodies` holds those that a server has received in part, within bounds. `part` cuts a block of an
answer.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lamplighter.adapters.resources.exchange import BODY_BYTES_MAX
from lamplighter.engine.errors import PayloadError, UpstreamError

# Blocks of 1,024 bytes. The exponent 7 is reserved on UDP.
EXPONENT_MAX = 6
BLOCKS_MAX = 4_096
# A server keeps a part of a body so long without a further block.
PAUSE_S_MAX = 60.0
# Bodies that a server holds in part.
BODIES_MAX, BODIES_BYTES_MAX, BODIES_OF_SOURCE_MAX = 64, 1 << 20, 4


class BlockError(PayloadError):
    """A block does not fit. fault: "gap": it is not the next one; "size": its payload has not the size of a block;
    "limit": the body is too large; "changed": it is of another version of the body."""

    def __init__(self, fault: Literal["gap", "size", "limit", "changed"], message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Block(NamedTuple):
    """The option Block1 or Block2. exponent: the block has 2 ** (exponent + 4) bytes. It equals aiocoap's tuple."""

    number: int
    more: bool
    exponent: int

    @property
    def size(self) -> int:
        # SZX: sizes are 16 to 1,024 bytes (RFC 7959 section 2.2).
        return 16 << self.exponent

    @property
    def start(self) -> int:
        return self.number * self.size


def part(body: bytes, number: int, exponent: int) -> tuple[Block, bytes]:
    """A block of a body. Raises BlockError if the body ends before it."""
    block = Block(number, False, exponent)
    if block.start >= max(1, len(body)):
        raise BlockError("gap", f"the body has no byte {block.start:,}")
    end = block.start + block.size
    return block._replace(more=end < len(body)), body[block.start : end]


def entity_tag(body: bytes) -> bytes:
    """An ETag that differs for different bodies."""
    return hashlib.blake2b(body, digest_size=8).digest()


class BodyOut:
    """The body of a request, which is sent block by block (RFC 7959 section 2.5)."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._exponent = EXPONENT_MAX
        self._restarts = 0

    def block(self) -> tuple[Block, bytes]:
        """The block to send now."""
        # A block number counts blocks of the present size, so it is made of the offset: the size may shrink between two
        # blocks.
        return part(self._body, self._at >> (self._exponent + 4), self._exponent)

    def answered(self, code: str, option: Block | None) -> bool:
        """Takes the answer to the block, as in "2.31", with its option Block1; whether it is the answer to the whole.

        Raises UpstreamError if the peer took a part of the body for the whole.
        """
        block, payload = self.block()
        smaller = option is not None and option.exponent < self._exponent
        # Too large, with a smaller size in Block1: the device has little room for one message.
        if code == "4.13" and smaller and self._at == 0:
            assert option is not None
            self._exponent = option.exponent  # a hint (RFC 7959 section 2.9.3)
            return False
        if code == "4.08" and self._restarts == 0 and self._at:
            self._restarts += 1
            self._at = 0  # the peer lost the blocks before this one
            return False
        if not block.more or code[0] != "2":
            return True
        if option is None or option.number != block.number:
            raise UpstreamError(f"the device answered {code} to block {block.number} of a body with more blocks")
        self._at += len(payload)
        # The size may change only where the offset is a multiple of the new one.
        if smaller and self._at % option.size == 0:
            self._exponent = option.exponent
        return False


@dataclass(slots=True)
class BodyIn:
    """A body that is received block by block, in order. limit: bytes."""

    limit: int = BODY_BYTES_MAX
    body: bytearray = field(default_factory=bytearray)
    blocks: int = 0
    tag: bytes | None = None

    def add(self, block: Block, payload: bytes, tag: bytes | None = None) -> bool:
        """Adds the next block; whether the body is complete. tag: the ETag of an answer. Raises BlockError."""
        if block.exponent > EXPONENT_MAX:
            raise BlockError("size", "the size of the block is reserved")
        if len(payload) > block.size or (block.more and len(payload) != block.size):
            raise BlockError("size", f"the block has {len(payload):,} bytes instead of {block.size:,}")
        if block.start != len(self.body):
            raise BlockError("gap", f"byte {block.start:,} came instead of byte {len(self.body):,}")
        if self.blocks and tag != self.tag:
            raise BlockError("changed", "the body changed during its transfer")
        # `more` counts as one byte: at least one follows.
        if len(self.body) + len(payload) + block.more > self.limit:
            raise BlockError("limit", f"the body has more than {self.limit:,} bytes")
        if self.blocks == BLOCKS_MAX:
            raise BlockError("limit", f"the body has more than {BLOCKS_MAX:,} blocks")
        self.body += payload
        self.blocks += 1
        self.tag = tag
        return not block.more

    def next(self, exponent: int) -> Block:
        """What to ask for next. exponent: of the block before; the size of a block may only shrink."""
        return Block(len(self.body) >> (exponent + 4), False, exponent)


@dataclass(slots=True)
class _Held:
    source: Hashable
    body: BodyIn
    at: float


class PartialBodies:
    """Bodies of requests that a server has received in part. The oldest is dropped where a bound is reached.

    Times are those of one clock that never goes back, in seconds.
    """

    def __init__(self, limit: int = BODY_BYTES_MAX) -> None:
        self._limit = limit
        self._held: OrderedDict[Hashable, _Held] = OrderedDict()  # by the time of the last block
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_crowded(self) -> bool:
        """Whether half of the room is taken."""
        return len(self._held) >= BODIES_MAX // 2 or self._bytes >= BODIES_BYTES_MAX // 2

    def add(self, source: Hashable, name: Hashable, block: Block, payload: bytes, at: float) -> bytes | None:
        """Adds a block; the whole body if this was its last one.

        source: who sends; name: which body of this source, such as method, path and Request-Tag. Block 0 begins anew.
        Raises BlockError; the part that was held is dropped then, except if the block is repeated.
        """
        key = source, name
        self._expire(at)
        held = self._held.get(key)
        # It is no duplicate by its message id, which the endpoint answers. Without this the repetition would be a gap.
        if held is not None and block.number and block.more and held.body.body[block.start :] == payload:
            return None  # sent again, as a new message
        held = self._take(key)
        body = held.body if held is not None and block.number else BodyIn(self._limit)
        if body.add(block, payload):
            return bytes(body.body)
        self._held[key] = _Held(source, body, at)
        self._bytes += len(body.body)
        self._drop_oldest(source)
        return None

    def _take(self, key: Hashable) -> _Held | None:
        held = self._held.pop(key, None)
        if held is not None:
            self._bytes -= len(held.body.body)
        return held

    def _expire(self, at: float) -> None:
        while self._held:
            key, held = next(iter(self._held.items()))
            if at < held.at + PAUSE_S_MAX:
                return
            self._take(key)

    def _drop_oldest(self, source: Hashable) -> None:
        of_source = [key for key, held in self._held.items() if held.source == source]
        for key in of_source[: max(0, len(of_source) - BODIES_OF_SOURCE_MAX)]:
            self._take(key)
        while len(self._held) > BODIES_MAX or self._bytes > BODIES_BYTES_MAX:
            self._take(next(iter(self._held)))
