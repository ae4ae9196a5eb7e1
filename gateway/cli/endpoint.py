"""How commands reach a gateway: the one of this machine's settings, or the one at `--url`."""

from __future__ import annotations

import argparse
import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lamplighter.engine.client.addresses import trusting
from lamplighter.engine.client.files import read_text
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.terms import Bag, Term
from lamplighter.gateway.cli.options import settings_and_data
from lamplighter.gateway.gates.local_call import ANSWER_S, READ_S, Readable, call, exchange

if TYPE_CHECKING:
    from lamplighter.engine.client import Tokens

_DEFAULT_PORTS = {"http": 8000, "https": 8443, "ws": 9000, "wss": 9443}


@dataclass(frozen=True)
class EndpointAddresses:
    """unix: path of the Unix socket for HTTP. token: URL of the token endpoint."""

    query: str
    update: str
    subscribe: str
    token: str = ""
    unix: Path | None = None


def add_reach_options(parser: argparse.ArgumentParser, url: str = "default: the gateway of this machine") -> None:
    """Declares `--url` and the credentials for it. They may stand before a subcommand, too."""
    text = f"http(s)://HOST:PORT or ws(s)://HOST:PORT ({url})"
    parser.add_argument("--url", metavar="URL", default=argparse.SUPPRESS, help=text)
    add_credentials(parser)


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `tokens`, and `--ca`."""
    for option, text in (
        ("--client", "credentials file of `lamplighter register`"),
        ("--token", "file with a bearer token"),
        ("--ca", "trusted certificates (default: the system's)"),
    ):
        parser.add_argument(option, metavar="FILE", type=Path, default=argparse.SUPPRESS, help=text)


def url_option(options: argparse.Namespace) -> str | None:
    """`--url`, if it was given."""
    value: str | None = getattr(options, "url", None)
    return value


def file_option(options: argparse.Namespace, name: str) -> Path | None:
    """One of the files of `add_reach_options`, if it was given."""
    value: Path | None = getattr(options, name, None)
    return value


def addresses_at(url: str) -> EndpointAddresses:
    """The classic layout (SEPA protocol 1.1) around an address of either gate: their ports are 1000 apart."""
    place = urlsplit(url)
    if place.scheme not in _DEFAULT_PORTS or not place.hostname:
        raise ConfigurationError(
            f"--url: {url!r} is not an address; write one such as http://HOST:8000 or wss://HOST:9443"
        )
    host = f"[{place.hostname}]" if ":" in place.hostname else place.hostname
    try:
        port = place.port or _DEFAULT_PORTS[place.scheme]
    except ValueError as error:
        raise ConfigurationError(f"--url: {url!r}: {error}") from error
    secure = place.scheme in ("https", "wss")
    is_socket = place.scheme in ("ws", "wss")
    http = f"{'https' if secure else 'http'}://{host}:{port - 1000 if is_socket else port}"
    socket = f"{'wss' if secure else 'ws'}://{host}:{port if is_socket else port + 1000}"
    path, token = place.path.rstrip("/"), f"{http}/oauth/token"
    if is_socket:
        return EndpointAddresses(f"{http}/query", f"{http}/update", f"{socket}{path or '/subscribe'}", token)
    if path:  # another endpoint, for both
        return EndpointAddresses(f"{http}{path}", f"{http}{path}", f"{socket}/subscribe", token)
    return EndpointAddresses(f"{http}/query", f"{http}/update", f"{socket}/subscribe", token)


def sparql_paths(options: argparse.Namespace) -> tuple[str, str]:
    url = url_option(options)
    if url is None:
        http = settings_and_data(options)[0].http
        return http.query_path, http.update_path
    there = addresses_at(url)
    return urlsplit(there.query).path, urlsplit(there.update).path


@dataclass(frozen=True)
class _OneToken:
    value: str

    async def token(self) -> str:
        return self.value

    def expired(self, token: str) -> None:
        pass


def tokens(options: argparse.Namespace, addresses: EndpointAddresses) -> Tokens | None:
    """The tokens of --token or --client, if one is given. Raises ConfigurationError."""
    file, client = file_option(options, "token"), file_option(options, "client")
    if file is not None:
        try:
            return _OneToken(read_text(file).strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--token: {file}: {error}") from error
    if client is None:
        return None
    from lamplighter.engine.client import Credentials, OAuth

    return OAuth(addresses.token, Credentials.load(client), ca=file_option(options, "ca"))


def call_gateway(
    options: argparse.Namespace,
    method: str,
    path: str,
    content: Readable | bytes | None = None,
    headers: dict[str, str] | None = None,
    patience_s: float | None = None,
) -> http.client.HTTPResponse:
    """The answer of the gateway, to be read and closed. path: ``/backup``. patience_s: as of `call`. Raises
    UpstreamError when no gateway answers, RefusedError, ConfigurationError."""
    url = url_option(options)
    if url is None:
        settings, data = settings_and_data(options)
        return call(settings, data, method, path, content, headers, patience_s)
    addresses = addresses_at(url)
    place = urlsplit(addresses.query)
    authorization = _authorization(options, addresses)
    connection: http.client.HTTPConnection
    if place.scheme == "https":
        tls = trusting(file_option(options, "ca"))
        connection = http.client.HTTPSConnection(place.hostname or "", place.port, timeout=ANSWER_S, context=tls)
    else:
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_S)
    return exchange(
        connection, f"{place.scheme}://{place.netloc}", method, path, content, {**authorization, **(headers or {})}
    )


def _authorization(options: argparse.Namespace, addresses: EndpointAddresses) -> dict[str, str]:
    """The header with the token. It is fetched once for each command."""
    given = tokens(options, addresses)
    if given is None:
        return {}
    if "fetched" not in options:
        # Few commands have a token to fetch, and those that only make a call have no event loop.
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as thread:  # the command may have an event loop of its own
            options.fetched = thread.submit(asyncio.run, _first(given)).result()
    return {"Authorization": f"Bearer {options.fetched}"}


async def _first(given: Tokens) -> str:
    return await given.token()


class RunningDataset:
    """The dataset of the gateway with the configuration that a command was given."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.settings, _ = settings_and_data(options)
        self._options = options
        self._query_path, self._update_path = sparql_paths(options)

    def rows(self, query: str) -> list[tuple[Term | None, ...]]:
        """The result of a SELECT query. Raises UpstreamError, RefusedError."""
        headers = {"Content-Type": "application/sparql-query", "Accept": "application/sparql-results+json"}
        with call_gateway(self._options, "POST", self._query_path, query.encode(), headers, READ_S) as answer:
            text = answer.read()
        try:
            return list(Bag.from_json(json.loads(text)))
        except (ValueError, KeyError, TypeError) as error:
            raise UpstreamError(f"the gateway's answer is not a table: {error!r}") from error

    def update(self, text: str) -> None:
        """Raises UpstreamError, RefusedError."""
        headers = {"Content-Type": "application/sparql-update"}
        with call_gateway(self._options, "POST", self._update_path, text.encode(), headers) as answer:
            answer.read()
