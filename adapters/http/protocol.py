"""Requests to web servers of devices. It is a `PolledProtocol`.

A name is resolved when a connection begins, and the connection goes to an address that was checked
(`engine.client.outward`). Redirects are not followed: the rule names the resource. Bodies are read up to their limit.
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from lamplighter.adapters.http.credentials import HttpCredentials, read_credentials
from lamplighter.adapters.http.settings import HttpDevicesSettings, origin
from lamplighter.adapters.mapping.resources import FORMAT_NUMBERS
from lamplighter.adapters.networks import Networks, NotAllowedError, refusal
from lamplighter.adapters.parts import AdapterInput
from lamplighter.adapters.resources.exchange import BODY_BYTES_MAX, DeviceRequest
from lamplighter.adapters.resources.polled import DeviceReply, PolledProtocol
from lamplighter.adapters.resources.polled_adapter import PolledParts, polled_parts
from lamplighter.engine.client.outward import AddressRefusedError, OutwardAnswer, OutwardHttp
from lamplighter.engine.client.outward import origin as url_origin
from lamplighter.engine.errors import PayloadError

# Of the content formats that rules have.
MEDIA_TYPES = {
    "text": "text/plain",
    "json": "application/json",
    "cbor": "application/cbor",
    "senml+json": "application/senml+json",
    "senml+cbor": "application/senml+cbor",
    "octets": "application/octet-stream",
}
_TYPES = {FORMAT_NUMBERS[name]: media for name, media in MEDIA_TYPES.items()}
_NUMBERS = {media: number for number, media in _TYPES.items()}
_SAFE = "%/:?#[]@!$&'()*+,;=-._~"
# Of a text of a device that is shown to people.
SAID_BYTES_MAX = 200


class HttpDevices(PolledProtocol):
    """networks: of the setting ``http_devices.networks``."""

    def __init__(
        self, settings: HttpDevicesSettings, networks: Networks, credentials: HttpCredentials | None = None
    ) -> None:
        self._networks = networks
        self._credentials = credentials or HttpCredentials()
        self._http = OutwardHttp(
            lambda address: refusal(address, networks.current()),
            total_s=settings.answer_timeout_s,
            answer_bytes_max=BODY_BYTES_MAX + 1,
            connections_max=settings.concurrency_max,
            tls=self._credentials.tls(),
        )

    async def read(self, request: DeviceRequest) -> DeviceReply:
        media = "*/*" if request.accept is None else _media_type(request.accept)
        answer = await self._send(request, {"Accept": media})
        if not 200 <= answer.status < 300:
            return _refusing(answer)
        if len(answer.body) > request.limit:
            raise PayloadError(f"the answer has more than {request.limit:,} bytes")
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise PayloadError(f"the answer is encoded as {encoding[:40]}, which was not asked for")
        return DeviceReply(str(answer.status), answer.body, _format(answer.headers.get("content-type", ""), request))

    async def write(self, request: DeviceRequest) -> DeviceReply:
        headers = {} if request.format is None else {"Content-Type": _media_type(request.format)}
        answer = await self._send(request, headers)
        return DeviceReply(str(answer.status)) if 200 <= answer.status < 300 else _refusing(answer)

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, request: DeviceRequest, headers: dict[str, str]) -> OutwardAnswer:
        secret = self._credentials.authorizations.get(origin(request.uri))
        if secret is not None:
            headers = headers | {"Authorization": secret}
        url = _ascii(request.uri)
        content = None if request.method == "GET" else request.body
        try:
            return await self._http.send(request.method, url, headers | {"Host": urlsplit(url).netloc}, content)
        except AddressRefusedError as error:
            allowed = ", ".join(map(str, self._networks.current())) or "none"
            raise NotAllowedError(
                f"{error}; http_devices.networks allows {allowed}; add the network there if it has devices"
            ) from error


def http_parts(given: AdapterInput) -> PolledParts:
    """Raises ConfigurationError."""
    return polled_parts(given, HttpDevices, read_credentials(given.settings, given.folder))


def _media_type(number: int) -> str:
    """Raises PayloadError."""
    if number not in _TYPES:
        raise PayloadError(f"the content format {number} has no media type of HTTP; write {', '.join(MEDIA_TYPES)}")
    return _TYPES[number]


def _format(content_type: str, request: DeviceRequest) -> int | None:
    """The content format of a body; None: it names none. Raises PayloadError.

    Many devices name text/plain or text/html whatever they send, so that a format that the rule asks for counts then.
    """
    media = content_type.partition(";")[0].strip().lower()
    if media in _NUMBERS and media != "text/plain":
        return _NUMBERS[media]
    if media.startswith("application/") and media.endswith("+json"):
        return _NUMBERS["application/json"]
    if not media or (media.startswith("text/") and request.accept is not None):
        return None
    if media == "text/plain":
        return FORMAT_NUMBERS["text"]
    known = ", ".join(_NUMBERS)
    raise PayloadError(
        f"the content type is {media[:80]}; rules read {known}, and text types if accept says what it is"
    )


def _refusing(answer: OutwardAnswer) -> DeviceReply:
    code = str(answer.status)
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "")
        to = url_origin(place)[:100] if "://" in place else "another path"  # a path may be secret
        return DeviceReply(code, f"redirects to {to}; redirects are not followed".encode())
    texts = answer.headers.get("content-type", "").partition("/")[0].strip().lower() == "text"
    return DeviceReply(code, answer.body[:SAID_BYTES_MAX] if texts else b"")


def _ascii(uri: str) -> str:
    """A URI in normal form, as it is sent (RFC 3987, section 3.1)."""
    if uri.isascii():
        return uri
    parts = urlsplit(uri)
    host = (parts.hostname or "").encode("idna").decode()
    netloc = host if parts.port is None else f"{host}:{parts.port}"
    return quote(parts._replace(netloc=netloc).geturl(), safe=_SAFE)
