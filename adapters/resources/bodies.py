"""Bodies of messages with their content formats. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lamplighter.adapters.mapping import cbor
from lamplighter.adapters.mapping.modbus_rules import RegisterBody
from lamplighter.adapters.mapping.payloads import AbsentError, Found, Payload
from lamplighter.adapters.mapping.resources import BodyFormats
from lamplighter.engine.errors import PayloadError

Decoded = TypeVar("Decoded")

_RECORDS = {
    "senml": ("senml+json", "senml+cbor"),
    "lwm2m": ("lwm2m+tlv", "lwm2m+json"),
}
_JSON_BEGINS = (b"[", b" ", b"\n", b"\r", b"\t")


class Body(Payload):
    """A body that is read as its content format says, and in no other way. form: a name of `FORMAT_NUMBERS`."""

    __slots__ = ("_form",)

    def __init__(self, data: bytes, form: str) -> None:
        super().__init__(data)
        self._form = form

    @property
    def form(self) -> str:
        return self._form

    def whole(self) -> Found:
        """A text, or the only value of a JSON or CBOR document. Raises AbsentError and PayloadError."""
        if self._form == "text":
            return self.text()
        document = self.json()
        if document is None:
            raise AbsentError("the document is null")
        if isinstance(document, dict | list):
            raise PayloadError("the document is not a single value; the rule needs member")
        found: Found = document
        return found

    def binary(self) -> bytes:
        self._check("octets")
        return self.data

    def text(self) -> str:
        self._check("text")
        return super().text()

    def json(self) -> Any:
        """The document of JSON or CBOR; the keys of its maps are texts. Raises PayloadError."""
        if self._form == "cbor":
            return self.once("cbor", lambda: _with_text_keys(cbor.decode(self.data)))
        self._check("json")
        return super().json()

    def once(self, format_: str, decode: Callable[[], Decoded]) -> Decoded:
        forms = _RECORDS.get(format_)
        if forms is not None:
            self._check(*forms)
            if self._form == "senml+json" and not self.data.startswith(_JSON_BEGINS):
                raise PayloadError("payload is not JSON")
        return super().once(format_, decode)

    def _check(self, *forms: str) -> None:
        if self._form not in forms:
            raise PayloadError(f"the content format is {self._form}, and the value is in {' or '.join(forms)}")


def read_body(body: bytes, content_format: int | None, accepted: BodyFormats) -> Payload:
    """A body for `ReadingRules.readings` and `StateRule.value`.

    content_format: of the message, None if it names none. accepted: of the rule. Raises PayloadError if the rule does
    not read this content format.
    """
    form = accepted.form(content_format)
    return Body(body, form) if accepted.registers is None else RegisterBody(body, accepted.registers)


def _with_text_keys(item: Any) -> Any:
    if isinstance(item, dict):
        found = {str(key): _with_text_keys(member) for key, member in item.items()}
        if len(found) < len(item):
            raise PayloadError("payload has a CBOR map with equal keys")
        return found
    return [_with_text_keys(one) for one in item] if isinstance(item, list) else item
