"""Messages that the CoAP server sends: ETag, blocks, and the bounds for sources that are not verified. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import aiocoap
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.admission import block_bytes
from lamplighter.adapters.coap.blocks import EXPONENT_MAX, PAUSE_S_MAX, Block, entity_tag, part
from lamplighter.adapters.coap.serving import SiteAnswer, SiteRefusal

REASON_BYTES_MAX = 60
# Answers whose next blocks may be asked for. The oldest is dropped, and is made again if it is asked for.
KEPT_MAX, KEPT_BYTES_MAX = 64, 1 << 20
# Of an empty acknowledgement, which may come before the answer.
ACK_BYTES = 4
_BLOCK2_BYTES = 5


def block_option(option: Any) -> Block | None:
    """The option Block1 or Block2 of a message."""
    return None if option is None else Block(*option)


def answer_message(answer: SiteAnswer, request: aiocoap.Message, *, observe: int | None = None) -> aiocoap.Message:
    """The whole answer. observe: the number of a notification. A peer that has the body already gets 2.03 instead."""
    message = aiocoap.Message(code=answer.code, payload=answer.body)
    message.opt.content_format = answer.content_format
    message.opt.location_path = answer.location
    message.opt.max_age = answer.max_age
    message.opt.block1 = request.opt.block1
    message.opt.observe = observe
    if answer.code is Code.CONTENT:
        message.opt.etag = entity_tag(answer.body)
        if observe is None and message.opt.etag in request.opt.etags:
            message.code, message.payload, message.opt.content_format = Code.VALID, b"", None
    return message


def refusal_message(refusal: SiteRefusal, request: aiocoap.Message) -> aiocoap.Message:
    """An answer with an error, always small."""
    if refusal.message is not None:
        return refusal.message
    reason = refusal.reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
    message = aiocoap.Message(code=refusal.code, payload=reason)
    message.opt.max_age = refusal.max_age
    message.opt.size1 = refusal.size
    message.opt.block1 = request.opt.block1
    return message


def fit_answer(
    message: aiocoap.Message, asked: Block | None, bytes_max: int | None, echo: Callable[[], bytes]
) -> aiocoap.Message | None:
    """An answer as it is sent: whole, or the block that was asked for.

    message: becomes the answer. asked: Block2 of the request. bytes_max: of the datagrams to a source that is not
    verified, None: no limit; a longer answer is sent in a smaller block with an Echo value. None: the source has to be
    verified first. Raises BlockError if the body has no such block.
    """
    body, number = message.payload, 0 if asked is None else asked.number
    exponent = EXPONENT_MAX if asked is None else min(asked.exponent, EXPONENT_MAX)
    if number or len(body) > 16 << exponent:
        _keep_block(message, body, number, exponent)
        if not number and bytes_max is None:
            message.opt.size2 = len(body)
    if bytes_max is None or ACK_BYTES + message_bytes(message) <= bytes_max:
        return message
    if number:
        return None
    message.payload, message.opt.block2, message.opt.echo = b"", None, echo()
    size = block_bytes(bytes_max - ACK_BYTES, message_bytes(message) + _BLOCK2_BYTES)
    if size is None:
        return None
    _keep_block(message, body, 0, min(exponent, size.bit_length() - 5))
    return message


def _keep_block(message: aiocoap.Message, body: bytes, number: int, exponent: int) -> None:
    block, message.payload = part(body, number, exponent)
    message.opt.block2 = block


def message_bytes(message: aiocoap.Message, token_bytes: int = 8) -> int:
    """Of a message on the wire, without a token of its own."""
    payload = len(message.payload) + 1 if message.payload else 0
    return 4 + token_bytes + len(message.opt.encode()) + payload


class KeptAnswers:
    """Answers that are longer than a block, so that all blocks are of the same state."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, tuple[SiteAnswer, float]] = OrderedDict()  # by time
        self._bytes = 0

    def get(self, key: Hashable, at: float) -> SiteAnswer | None:
        """at: seconds of a monotonic clock."""
        found = self._answers.get(key)
        return None if found is None or at >= found[1] + PAUSE_S_MAX else found[0]

    def keep(self, key: Hashable, answer: SiteAnswer, at: float) -> None:
        self._drop(key)
        self._answers[key] = answer, at
        self._bytes += len(answer.body)
        while len(self._answers) > KEPT_MAX or self._bytes > KEPT_BYTES_MAX:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: Hashable) -> None:
        found = self._answers.pop(key, None)
        if found is not None:
            self._bytes -= len(found[0].body)
