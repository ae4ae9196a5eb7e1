"""Subscription records: what `<lake>/subscriptions/records/<id>.json` has. No Spark.

Records have no secrets: keys, passwords and headers are in files on the machine that delivers, and a record has the
names of these files.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

QUERY_CHARACTERS_MAX = 65_536
SINKS_MAX = 16
PATTERNS_MAX = 1_000
# An order about what was true a day ago does more harm than good.
EVENT_AGE_S_MAX = 86_400

_ID = r"\A[a-z0-9][a-z0-9-]{0,63}\Z"
Id = Annotated[str, msgspec.Meta(pattern=_ID)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=QUERY_CHARACTERS_MAX)]
Url = Annotated[str, msgspec.Meta(min_length=1, max_length=2_048, pattern=r"\A[^\x00-\x20\x7f]+\Z")]
# An absolute path, or a plain name in the folder of systemd's credentials. Empty: none.
FileName = Annotated[str, msgspec.Meta(max_length=1_024, pattern=r"\A(/[^\x00]*|[^/\x00]*)\Z")]
# As `fnmatch.fnmatchcase` reads it: ``*``, ``?``, ``[seq]`` and ``[!seq]``.
GatewayPattern = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]

Changes: TypeAlias = Literal["added", "deleted", "both"]
Begin: TypeAlias = Literal["now", "all"]
State: TypeAlias = Literal["active", "paused", "removed"]


class _SinkBase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """What all sinks have: a kind."""


class FilesSink(_SinkBase, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="files"):
    """Notifications as lines of files. url: an absolute path of a folder, or a URL that fsspec can open.

    options_file: TOML file with the options (names, keys, addresses) of the URL's file system.
    """

    name: Id = "files"
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=2_048, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
    options_file: FileName = ""

    def __post_init__(self) -> None:
        _check_url(self.url, "options_file")


class WebhookSink(_SinkBase, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="webhook"):
    """Notifications by POST. url: of http or https.

    secret_file: file with the key of the HMAC over the body, on its first line. headers_file: file with further
    headers, such as Authorization, one ``Name: value`` a line. ca_file: authorities that the server's certificate is
    checked against; empty: those of the system.
    """

    name: Id = "webhook"
    url: Url
    secret_file: FileName = ""
    headers_file: FileName = ""
    ca_file: FileName = ""

    def __post_init__(self) -> None:
        _check_url(self.url, "headers_file")
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise ValueError(f"url {self.url!r}: write http://HOST/PATH or https://HOST/PATH")


class MqttSink(_SinkBase, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mqtt"):
    """Notifications as messages of a topic. broker: name or address.

    The other members are those of `[mqtt]` of lamplighter.toml: password_file has the password on its first line;
    ca_file, certificate_file and key_file are used with tls.
    """

    name: Id = "mqtt"
    broker: Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"\A[A-Za-z0-9._:-]+\Z")]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1883
    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
    qos: Literal[0, 1, 2] = 1
    username: Annotated[str, msgspec.Meta(max_length=256)] = ""
    password_file: FileName = ""
    tls: bool = False
    ca_file: FileName = ""
    certificate_file: FileName = ""
    key_file: FileName = ""

    def __post_init__(self) -> None:
        if not _TOPIC.fullmatch(self.topic):
            raise ValueError(f"topic {self.topic!r}: write a topic without '+', '#' and control characters, not $...")
        if self.password_file and not self.username:
            raise ValueError("password_file needs username")
        if self.key_file and not self.certificate_file:
            raise ValueError("key_file needs certificate_file")
        if (self.ca_file or self.certificate_file) and not self.tls:
            raise ValueError("ca_file and certificate_file need tls = true")


class UpdateSink(_SinkBase, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="update"):
    """A SPARQL update for gateways, once for each row. gateways: patterns of those that execute it.

    update: the variables of the query that occur in it are bound to the terms of the row. event_age_s_max: an older
    event is a dead letter, and so is one of a clock that is not trusted, because its age is unknown; 0: no bound. What
    gateways tell ahead of their segments without a time is new.
    """

    name: Id = "update"
    gateways: Annotated[tuple[GatewayPattern, ...], msgspec.Meta(min_length=1, max_length=PATTERNS_MAX)]
    update: Text
    event_age_s_max: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = EVENT_AGE_S_MAX


Sink: TypeAlias = FilesSink | WebhookSink | MqttSink | UpdateSink


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet subscription.

    version: grows by one whenever query or changes change, and when a removed subscription is added again.
    state: a removed subscription stays as a tombstone, so that its versions are not given out again.
    changes: which events it sees: those of added quads, of deleted quads, or both.
    gateways: patterns of the gateways whose events it sees; empty: all.
    begin: "now", events of segments that land from now on; "all", those of the whole lake too.
    landing: the last number of the landing log when it was added; None: the lake had no log.
    created, changed: by the clock of the machine that wrote the record.
    """

    id: Id
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1
    query: Text
    state: State = "active"
    changes: Changes = "added"
    gateways: Annotated[tuple[GatewayPattern, ...], msgspec.Meta(max_length=PATTERNS_MAX)] = ()
    begin: Begin = "now"
    landing: Annotated[int, msgspec.Meta(ge=0)] | None = None
    deliver: Annotated[tuple[Sink, ...], msgspec.Meta(max_length=SINKS_MAX)] = ()
    created: Moment
    changed: Moment

    def __post_init__(self) -> None:
        names = [sink.name for sink in self.deliver]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sinks have the name {name!r}; give each a name of its own")


_TOPIC = re.compile(r"(?!\$)[^+#\x00-\x1f\x7f]+")


def _check_url(url: str, instead: str) -> None:
    """Raises ValueError for a URL with a user name or a password, which is printed with the record."""
    try:
        place = urlsplit(url).netloc
    except ValueError as error:
        raise ValueError(f"url {url!r}: {error}") from error
    if "@" in place:
        raise ValueError(f"url: the part before @ is secret; put it into a file and name that as {instead}")
