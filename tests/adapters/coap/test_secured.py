"""OSCORE of both directions: the vectors of RFC 8613 appendix C, replays, Echo, notifications and damaged messages."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiocoap import CHANGED, CONTENT, GET, POST, PUT, Message, oscore
from aiocoap.numbers.codes import BAD_OPTION, BAD_REQUEST, UNAUTHORIZED

from lamplighter.adapters.coap import secured
from lamplighter.adapters.coap.context_files import CHUNK, Key, make_context
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.secured import ReceivedRequest, RefusedRequest, SecuredContext, SentRequest, received
from lamplighter.engine.errors import UpstreamError
from tests.support.amounts import Amounts
from tests.support.oscore_devices import Device, arriving, crashed
from tests.support.tables import each_row

SECRET, SALT = bytes(range(1, 17)), bytes.fromhex("9e7ca92223786340")
ID_CONTEXT = bytes.fromhex("37cbf3210017a2d3")


class Counted:
    """Sender numbers in memory."""

    window = (0, 0)

    def __init__(self, first: int) -> None:
        self.next = first

    def take(self) -> int:
        self.next += 1
        return self.next - 1


def in_memory(sender: str, recipient: str, *, salt: bytes = b"", context: bytes | None = None, first: int = 0) -> Any:
    key = Key("tv", "tv", bytes.fromhex(sender), bytes.fromhex(recipient), SECRET, salt, context)
    return SecuredContext(key, Counted(first))  # type: ignore[arg-type]


def holding(context: SecuredContext) -> Contexts:
    def by_kid(kid: bytes, kid_context: bytes | None) -> SecuredContext | None:
        return context if (kid, kid_context) == (context.recipient_id, context.id_context) else None

    return SimpleNamespace(by_kid=by_kid)  # type: ignore[return-value]


def encoded(message: Message, like: Message) -> str:
    message.mtype, message.mid, message.token = like.mtype, like.mid, like.token
    return message.encode().hex()


@each_row(
    ("ids", "salt", "context", "keys", "iv"),
    [
        (
            ("", "01"),
            SALT,
            None,
            ("f0910ed7295e6ad4b54fc793154302ff", "ffb14e093c94c9cac9471648b4f98710"),
            "4622d4dd6d944168eefb54987c",
        ),
        (
            ("00", "01"),
            b"",
            None,
            ("321b26943253c7ffb6003b0b64d74041", "e57b5635815177cd679ab4bcec9d7dda"),
            "be35ae297d2dace910c52e99f9",
        ),
        (
            ("", "01"),
            SALT,
            ID_CONTEXT,
            ("af2a1300a5e95788b356336eeecd2b92", "e39a0c7c77b43f03b4b39ab9a268699f"),
            "2ca58fb85ff1b81c0b7181b85e",
        ),
    ],
    ids=["C.1", "C.2", "C.3"],
)
def test_keys_are_derived_as_in_the_rfc(
    ids: tuple[str, str], salt: bytes, context: bytes | None, keys: tuple[str, str], iv: str
) -> None:
    client = in_memory(*ids, salt=salt, context=context)
    server = in_memory(*reversed(ids), salt=salt, context=context)
    assert (client.sender_key.hex(), client.recipient_key.hex()) == keys
    assert (server.recipient_key.hex(), server.sender_key.hex()) == keys
    assert client.common_iv.hex() == server.common_iv.hex() == iv


@each_row(
    ("ids", "salt", "context", "plain", "protected"),
    [
        (
            ("", "01"),
            SALT,
            None,
            "44015d1f00003974396c6f63616c686f737483747631",
            "44025d1f00003974396c6f63616c686f7374620914ff612f1092f1776f1c1668b3825e",
        ),
        (
            ("00", "01"),
            b"",
            None,
            "440171c30000b932396c6f63616c686f737483747631",
            "440271c30000b932396c6f63616c686f737463091400ff4ed339a5a379b0b8bc731fffb0",
        ),
        (
            ("", "01"),
            SALT,
            ID_CONTEXT,
            "44012f8eef9bbf7a396c6f63616c686f737483747631",
            "44022f8eef9bbf7a396c6f63616c686f73746b19140837cbf3210017a2d3ff72cd7273fd331ac45cffbe55c3",
        ),
    ],
    ids=["C.4", "C.5", "C.6"],
)
def test_requests_are_protected_as_in_the_rfc(
    ids: tuple[str, str], salt: bytes, context: bytes | None, plain: str, protected: str
) -> None:
    like = Message.decode(bytes.fromhex(plain))
    sent = SentRequest(
        in_memory(*ids, salt=salt, context=context, first=20),
        Message(code=GET, uri_host="localhost", uri_path=like.opt.uri_path),
    )
    assert encoded(sent.outer, like) == protected
    server = in_memory(*reversed(ids), salt=salt, context=context)
    found = received(holding(server).by_kid, Message.decode(bytes.fromhex(protected)))
    assert (found.inner.code, found.inner.opt.uri_path) == (GET, ("tv1",))


def test_answers_are_protected_as_in_the_rfc() -> None:
    request = bytes.fromhex("44025d1f00003974396c6f63616c686f7374620914ff612f1092f1776f1c1668b3825e")
    like = Message.decode(bytes.fromhex("64455d1f00003974ff48656c6c6f20576f726c6421"))
    found = received(holding(in_memory("01", "", salt=SALT)).by_kid, Message.decode(request))
    # C.7, and the second answer to the same request, which needs a number of its own: C.8
    answers = [encoded(found.outer(Message(code=CONTENT, payload=b"Hello World!")), like) for _ in range(2)]
    assert answers == [
        "64445d1f0000397490ffdbaad1e9a7e7b2a813d3c31524378303cdafae119106",
        "64445d1f00003974920100ff4d4c13669384b67354b2b6175ff4b8658c666a6cf88e",
    ]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    half = make_context(tmp_path / "contexts", "hall", "127.0.0.1")
    return Device(tmp_path / "device", half)


@pytest.fixture
def contexts(tmp_path: Path, device: Device) -> Any:
    found = Contexts.load(tmp_path / "contexts")
    yield found
    found.close()


def switched(contexts: Contexts, message: Message) -> ReceivedRequest:
    return received(contexts.by_kid, arriving(message))


def test_a_device_gets_a_command_and_its_answer_is_verified(contexts: Contexts, device: Device) -> None:
    sent = SentRequest(contexts.named("hall"), Message(code=PUT, uri_path=["lamp"], payload=b"ON"))
    assert b"ON" not in sent.outer.payload and sent.outer.code is POST and not sent.outer.opt.uri_path
    request, ids = device.context.unprotect(arriving(sent.outer))
    assert (request.code, request.opt.uri_path, request.payload) == (PUT, ("lamp",), b"ON")
    answer = sent.inner(arriving(device.context.protect(Message(code=CHANGED), ids)[0]))
    assert answer.code is CHANGED


def test_an_answer_without_protection_is_never_trusted(contexts: Contexts, device: Device) -> None:
    sent = SentRequest(contexts.named("hall"), Message(code=PUT, uri_path=["lamp"], payload=b"ON"))
    with pytest.raises(UpstreamError, match=r"without OSCORE: 2\.04$"):
        sent.inner(arriving(Message(code=CHANGED)))
    with pytest.raises(UpstreamError, match=r"without OSCORE: 4\.01 Security context not found$"):
        sent.inner(arriving(Message(code=UNAUTHORIZED, payload=b"Security context not found")))


def test_an_answer_to_another_request_is_refused(contexts: Contexts, device: Device) -> None:
    first, second = (SentRequest(contexts.named("hall"), Message(code=PUT, payload=state)) for state in (b"0", b"1"))
    _, ids = device.context.unprotect(arriving(first.outer))
    answer, _ = device.context.protect(Message(code=CHANGED), ids)
    with pytest.raises(UpstreamError, match="cannot be verified"):
        second.inner(arriving(answer))
    assert first.inner(arriving(answer)).code is CHANGED


def test_a_request_of_a_device_is_taken_once(contexts: Contexts, device: Device) -> None:
    outer, ids = device.context.protect(Message(code=POST, uri_path=["readings"], payload=b"21"))
    found = switched(contexts, outer)
    assert (found.context.name, found.inner.code, found.inner.payload) == ("hall", POST, b"21")
    answer, _ = device.context.unprotect(arriving(found.outer(Message(code=CHANGED))), ids)
    assert answer.code is CHANGED
    with pytest.raises(RefusedRequest, match="Replay detected") as refused:
        switched(contexts, outer)
    assert refused.value.answer.code is UNAUTHORIZED


def test_requests_may_arrive_in_another_order(contexts: Contexts, device: Device) -> None:
    outers = [device.context.protect(Message(code=POST, payload=b"%d" % n))[0] for n in range(32)]
    random.Random(5).shuffle(outers)
    assert sorted(int(switched(contexts, outer).inner.payload) for outer in outers) == list(range(32))
    for outer in outers:
        with pytest.raises(RefusedRequest, match="Replay detected"):
            switched(contexts, outer)


def test_after_a_crash_a_device_repeats_its_request_with_an_echo_value(tmp_path: Path, device: Device) -> None:
    before = Contexts.load(tmp_path / "contexts")
    old, _ = device.context.protect(Message(code=POST, payload=b"old"))
    used = {switched(before, old).outer(Message(code=CHANGED)).payload}
    crashed(before)
    contexts = Contexts.load(tmp_path / "contexts")
    with pytest.raises(RefusedRequest, match="Echo needed"):  # a replay gets this too, and nothing else
        switched(contexts, old)
    new, ids = device.context.protect(Message(code=POST, payload=b"new"))
    with pytest.raises(RefusedRequest, match="Echo needed") as refused:
        switched(contexts, new)
    asked, _ = device.context.unprotect(arriving(refused.value.answer), ids)
    assert asked.code is UNAUTHORIZED and asked.opt.echo
    repeated, ids = device.context.protect(Message(code=POST, payload=b"new", echo=asked.opt.echo))
    found = switched(contexts, repeated)
    assert found.inner.payload == b"new"
    answer = found.outer(Message(code=CHANGED))
    assert answer.payload not in used and answer.opt.oscore, "the nonce of the request is not used again"
    assert device.context.unprotect(arriving(answer), ids)[0].code is CHANGED
    for replayed in (old, new, repeated):
        with pytest.raises(RefusedRequest, match="Replay detected"):
            switched(contexts, replayed)
    contexts.close()


def test_requests_that_cannot_be_verified_write_nothing_to_disk(
    contexts: Contexts, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, _ = device.context.protect(Message(code=POST, payload=b"taken"))
    switched(contexts, taken)
    forged, _ = device.context.protect(Message(code=POST, payload=b"forged"))
    forged.payload = forged.payload[:-1] + bytes([forged.payload[-1] ^ 1])
    foreign = Message(code=POST, payload=b"x" * 20, oscore=b"\x09\x01\xfe")
    synced: list[int] = []
    monkeypatch.setattr("lamplighter.adapters.coap.contexts.os.fsync", synced.append)
    for outer in (taken, forged, foreign):
        for _ in range(2 * CHUNK):
            with pytest.raises(RefusedRequest):
                switched(contexts, outer)
    assert synced == []


def test_a_replay_after_a_crash_costs_few_writes(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the device repeats an Echo value, each replay is answered with one, which takes a sender number."""
    before = Contexts.load(tmp_path / "contexts")
    old, _ = device.context.protect(Message(code=POST, payload=b"old"))
    switched(before, old)
    crashed(before)
    contexts = Contexts.load(tmp_path / "contexts")
    synced: list[int] = []
    monkeypatch.setattr("lamplighter.adapters.coap.contexts.os.fsync", synced.append)
    for _ in range(10 * CHUNK):
        with pytest.raises(RefusedRequest, match="Echo needed"):
            switched(contexts, old)
    contexts.close()
    assert len(synced) <= 2 * 10 * 2 + 10  # a file and its folder, for each half of a chunk at most


def test_a_request_after_the_end_is_refused(tmp_path: Path, contexts: Contexts, device: Device) -> None:
    early, late = (device.context.protect(Message(code=POST, payload=b"%d" % number))[0] for number in range(2))
    switched(contexts, early)
    contexts.close()
    contexts.close()
    for outer in (early, late):
        with pytest.raises(RefusedRequest, match="Replay detected"):
            switched(contexts, outer)
    again = Contexts.load(tmp_path / "contexts")
    with pytest.raises(RefusedRequest, match="Replay detected"):
        switched(again, early)
    assert switched(again, late).inner.payload == b"1"
    again.close()


def test_an_echo_value_of_a_device_arrives_at_the_caller(contexts: Contexts, device: Device) -> None:
    device.crash()
    sent = SentRequest(contexts.named("hall"), Message(code=PUT, payload=b"ON"))
    with pytest.raises(oscore.ReplayErrorWithEcho) as refused:
        device.context.unprotect(arriving(sent.outer))
    asked = sent.inner(arriving(refused.value.to_message()))
    assert asked.code is UNAUTHORIZED
    again = SentRequest(contexts.named("hall"), Message(code=PUT, payload=b"ON", echo=asked.opt.echo))
    assert device.context.unprotect(arriving(again.outer))[0].payload == b"ON"


def test_an_old_or_repeated_notification_is_refused(contexts: Contexts, device: Device) -> None:
    sent = SentRequest(contexts.named("hall"), Message(code=GET, uri_path=["t"], observe=0))
    _, ids = device.context.unprotect(arriving(sent.outer))
    told = []
    for number in range(4):
        outer, _ = device.context.protect(Message(code=CONTENT, payload=b"%d" % number, observe=0), ids)
        outer.opt.observe = 1000 - number  # which everybody can change
        told.append(arriving(outer))
    for number, known in ((0, True), (0, False), (2, True), (1, False), (2, False), (0, False), (3, True), (3, False)):
        if known:
            found = sent.inner(told[number])
            assert found.payload == b"%d" % number
            assert found.opt.observe == (-1 if number == 0 else number - 1)
        else:
            with pytest.raises(UpstreamError, match="old or repeated"):
                sent.inner(told[number])


def test_a_notification_of_an_earlier_registration_is_refused(contexts: Contexts, device: Device) -> None:
    first, second = (SentRequest(contexts.named("hall"), Message(code=GET, observe=0)) for _ in range(2))
    ids = [device.context.unprotect(arriving(sent.outer))[1] for sent in (first, second)]
    device.context.protect(Message(code=CONTENT, observe=0), ids[0])
    late, _ = device.context.protect(Message(code=CONTENT, observe=0), ids[0])
    with pytest.raises(UpstreamError, match="cannot be verified"):
        second.inner(arriving(late))


def test_an_answer_is_a_notification_only_if_the_device_says_so(contexts: Contexts, device: Device) -> None:
    sent = SentRequest(contexts.named("hall"), Message(code=GET, observe=0))
    _, ids = device.context.unprotect(arriving(sent.outer))
    outer, _ = device.context.protect(Message(code=CONTENT), ids)
    outer.opt.observe = 5
    assert sent.inner(arriving(outer)).opt.observe is None
    sent = SentRequest(contexts.named("hall"), Message(code=GET))
    _, ids = device.context.unprotect(arriving(sent.outer))
    outer, _ = device.context.protect(Message(code=CONTENT, observe=0), ids)
    with pytest.raises(UpstreamError, match="unasked notification"):
        sent.inner(arriving(outer))


@pytest.mark.parametrize("observe", [0, 1, None])
def test_a_device_registers_and_cancels_an_observation(contexts: Contexts, device: Device, observe: int | None) -> None:
    outer, _ = device.context.protect(Message(code=GET, observe=observe))
    assert switched(contexts, outer).inner.opt.observe == observe
    outer, _ = device.context.protect(Message(code=GET, observe=observe))
    outer.opt.observe = None if observe is not None else 0
    assert switched(contexts, outer).inner.opt.observe is None


def test_each_notification_to_a_device_has_a_number_of_its_own(contexts: Contexts, device: Device) -> None:
    outer, ids = device.context.protect(Message(code=GET, observe=0))
    found = switched(contexts, outer)
    numbers = []
    for number in range(5):
        told = found.outer(Message(code=CONTENT, payload=b"%d" % number, observe=number + 7))
        assert told.opt.observe == number + 7
        inner, _ = device.context.unprotect(arriving(told), ids)
        assert inner.payload == b"%d" % number
        numbers.append(told.opt.oscore)
    assert numbers == [b"", b"\x01\x00", b"\x01\x01", b"\x01\x02", b"\x01\x03"]


@pytest.mark.parametrize(
    ("option", "code"),
    [
        (b"", BAD_OPTION),
        (b"\x09", BAD_OPTION),
        (b"\x08\x01", BAD_OPTION),  # no number
        (b"\x01\x00", BAD_OPTION),  # no kid
        (b"\x0e123456\x01", BAD_OPTION),  # a number of six bytes
        (b"\x29\x00\x01", BAD_OPTION),  # of a group
        (b"\x89\x00\x01", BAD_OPTION),
        (b"\x19\x00\x09\x01", BAD_OPTION),
        (b"\x19\x00", BAD_OPTION),
        (b"\x09\x00nobody", UNAUTHORIZED),
        (b"\x19\x00\x01x\x01", UNAUTHORIZED),
    ],
)
def test_a_damaged_option_has_a_code(contexts: Contexts, device: Device, option: bytes, code: Any) -> None:
    outer, _ = device.context.protect(Message(code=POST, payload=b"21"))
    outer.opt.oscore = option
    with pytest.raises(RefusedRequest) as refused:
        switched(contexts, outer)
    assert refused.value.answer.code is code
    assert refused.value.answer.opt.max_age == 0


def test_a_damaged_request_changes_nothing(contexts: Contexts, device: Device) -> None:
    outer, _ = device.context.protect(Message(code=POST, payload=b"21"))
    good = outer.payload
    for changed in (b"", good[:5], good[:-1], good[:-1] + bytes([good[-1] ^ 1]), good + b"x"):
        outer.payload = changed
        with pytest.raises(RefusedRequest) as refused:
            switched(contexts, outer)
        assert refused.value.answer.code is BAD_REQUEST
    outer.payload = good
    assert switched(contexts, outer).inner.payload == b"21"


def test_what_is_inside_must_be_a_request(contexts: Contexts, device: Device) -> None:
    for plaintext in (b"\x45", b"\x00", b"\x7f", b"\x02\xf1\x00", b"\x02\x3f", b"\x02\xb1\xff", b"\x02\x90"):
        device.plaintext = plaintext
        outer, _ = device.context.protect(Message(code=POST))
        with pytest.raises(RefusedRequest) as refused:
            switched(contexts, outer)
        assert refused.value.answer.code is BAD_REQUEST, plaintext


def test_what_is_inside_an_answer_must_be_an_answer(contexts: Contexts, device: Device) -> None:
    for plaintext in (b"\x01", b"\x00", b"\x7f", b"\x45\x90", b"\x45\xf1\x00", b"\x45\x3f"):
        sent = SentRequest(contexts.named("hall"), Message(code=GET))
        device.plaintext = None
        _, ids = device.context.unprotect(arriving(sent.outer))
        device.plaintext = plaintext
        with pytest.raises(UpstreamError):
            sent.inner(arriving(device.context.protect(Message(code=CONTENT), ids)[0]))


def test_no_random_message_is_taken(contexts: Contexts, device: Device, amounts: Amounts) -> None:
    chance = random.Random(8613)
    sent = SentRequest(contexts.named("hall"), Message(code=GET, observe=0))
    outer, _ = device.context.protect(Message(code=POST, payload=b"21"))
    for _ in range(amounts.of(20_000)):
        option, payload = bytearray(outer.opt.oscore), bytearray(outer.payload)
        for text in (option, payload):
            for _ in range(chance.randrange(3)):
                if text:
                    text[chance.randrange(len(text))] = chance.randrange(256)
            del text[chance.randrange(len(text) + 1) if chance.random() < 0.2 else len(text) :]
            text += chance.randbytes(chance.randrange(8) if chance.random() < 0.2 else 0)
        if (bytes(option), bytes(payload)) == (outer.opt.oscore, outer.payload):
            continue
        request = Message(code=POST, oscore=bytes(option), payload=bytes(payload))
        with pytest.raises(RefusedRequest):
            switched(contexts, request)
        with pytest.raises(UpstreamError):
            sent.inner(arriving(Message(code=CONTENT, oscore=bytes(option), payload=bytes(payload))))
    assert switched(contexts, outer).inner.payload == b"21"


def test_what_is_used_of_aiocoap_is_there() -> None:
    for owner, names in (
        (oscore.CanProtect, ("protect", "new_sequence_number", "post_seqnoincrease")),
        (oscore.CanUnprotect, ("unprotect",)),
        (oscore.SecurityContextUtils, ("derive_keys",)),
        (oscore.ReplayWindow, ("is_initialized", "initialize_from_persisted", "initialize_from_freshlyseen", "_index")),
        (oscore.ReplayWindow, ("_bitfield",)),
        (oscore.ReplayErrorWithEcho, ("to_message",)),
    ):
        assert [name for name in names if not hasattr(owner, name)] == []
    assert oscore.DEFAULT_ALGORITHM == "AES-CCM-16-64-128" and oscore.DEFAULT_WINDOWSIZE == 32
    assert secured.SecuredContext.new_sequence_number is not oscore.CanProtect.new_sequence_number
