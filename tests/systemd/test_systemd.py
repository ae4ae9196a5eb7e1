"""What is said to systemd and to the journal, byte by byte."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamplighter.adapters.mqtt.credentials import with_passwords
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.engine.log_events import Event
from lamplighter.gateway import systemd
from lamplighter.gateway.security.audit import log_refusal
from lamplighter.gateway.systemd import (
    JournalHandler,
    PrefixFormatter,
    Supervisor,
    fields,
    journal_handler,
    mark_lines,
    priority,
)
from tests.support.tables import each_row


class Listening:
    """A datagram socket that somebody says something to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(60)

    def heard(self) -> bytes:
        return self._socket.recv(1 << 20)

    @property
    def silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    one = Listening(tmp_path / "socket")
    yield one
    one.close()


def supervisor(listening: Listening, **environment: str) -> Supervisor:
    return Supervisor({"NOTIFY_SOCKET": str(listening.path), **environment}, pid=7, monotonic=iter(range(100)).__next__)


def test_nobody_is_told_where_nobody_asks() -> None:
    silent = Supervisor({})
    assert not silent.active
    silent.ready("fine")
    silent.alive()
    assert silent.sockets() == []
    assert silent.credential("x") is None


def test_readiness_and_state_are_told_together(listening: Listening) -> None:
    supervisor(listening).ready("3 subscriptions\nREADY=0")
    assert listening.heard() == b"READY=1\nSTATUS=3 subscriptions READY=0"


def test_an_unchanged_line_is_told_once(listening: Listening) -> None:
    service = supervisor(listening)
    service.status("fine")
    service.status("fine")
    assert listening.heard() == b"STATUS=fine"
    assert listening.silent


def test_a_reload_begins_with_the_time(listening: Listening) -> None:
    supervisor(listening).reloading()
    first, second = listening.heard().split(b"\n")
    assert first == b"RELOADING=1"
    assert second.startswith(b"MONOTONIC_USEC=") and second.partition(b"=")[2].isdigit()


def test_abstract_addresses_are_known() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(f"\0lamplighter-test-{os.getpid()}")
        Supervisor({"NOTIFY_SOCKET": f"@lamplighter-test-{os.getpid()}"}).stopping("over")
        assert there.recv(100) == b"STOPPING=1\nSTATUS=over"


@pytest.mark.parametrize(
    ("environment", "limit"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({}, None),
    ],
)
def test_watchdog_is_fed_by_whom_it_watches(
    listening: Listening, environment: dict[str, str], limit: float | None
) -> None:
    service = supervisor(listening, **environment)
    assert service.watchdog_s == limit
    service.alive()
    if limit:
        assert listening.heard() == b"WATCHDOG=1"
    else:
        assert listening.silent


def test_a_start_that_gets_on_has_the_time_it_needs(listening: Listening) -> None:
    service = supervisor(listening)
    for records in range(1, 3001):
        service.recovering(records)
    for records in ("1,000", "2,000", "3,000"):
        assert listening.heard() == b"EXTEND_TIMEOUT_USEC=120000000"
        assert listening.heard() == f"STATUS=recovering, {records} records so far".encode()
    assert listening.silent


def test_credentials_are_files_of_the_folder_that_systemd_names(tmp_path: Path) -> None:
    (tmp_path / "lamplighter.mqtt-password").write_text("secret")
    service = Supervisor({"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert service.credential("lamplighter.mqtt-password") == tmp_path / "lamplighter.mqtt-password"
    for other in ("other", "", "..", "../x", "/etc/passwd"):
        assert service.credential(other) is None
    named = with_passwords(MqttSettings(host="broker", username="gateway"), service.credential)
    assert named.password_file == str(tmp_path / "lamplighter.mqtt-password")
    own = MqttSettings(host="broker", username="gateway", password_file="/etc/mine")
    assert with_passwords(own, service.credential) == own
    assert with_passwords(MqttSettings(host="broker"), service.credential) == MqttSettings(host="broker")


# --- the journal ---


def record(message: object, *arguments: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("gateway.test", level, __file__, 1, message, arguments, None)


@each_row(
    ("event", "found"),
    [
        (Event("started", {}), {}),
        (
            Event("coap device unreachable", {"device": "d", "resource": "coap://d/r", "reason": "no answer"}),
            {"DEVICE": "d", "RESOURCE": "coap://d/r", "REASON": "no answer"},
        ),
        (Event("subscription expired", {"spuid": "s-1"}), {"SUBSCRIPTION": "s-1"}),
        (Event("delayed update missed", {"id": "t", "late_s": 1.5}), {"TIMER_ID": "t", "LATE_S": "1.5"}),
        (Event("a value", {"topic": "x priority=0 MESSAGE=y"}), {"TOPIC": "x priority=0 MESSAGE=y"}),
        (Event("mine", {"message": "a", "priority": "b", "gateway": "c", "code_line": 1}), {}),
    ],
)
def test_fields_of_an_event_are_fields_of_the_journal(event: Event, found: dict[str, str]) -> None:
    assert fields(record(event)) == found


def test_a_record_of_a_library_has_no_fields() -> None:
    assert fields(record("topic=%s reason=%s", "a", "b")) == {}


def entry(datagram: bytes) -> dict[str, str]:
    found, rest = {}, datagram
    while rest:
        line, _, rest = rest.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[9 + size :]
        found[name.decode()] = value.decode()
    return found


def test_a_line_goes_to_the_journal_with_its_fields(listening: Listening) -> None:
    handler = JournalHandler(listening.path)
    handler.constant["GATEWAY"] = "gw-1"
    event = Event("mqtt reading dropped", {"topic": "a/b", "reason": "two\nlines"})
    handler.handle(record(event, level=logging.WARNING))
    handler.close()
    assert entry(listening.heard()) == {
        "MESSAGE": 'mqtt reading dropped topic=a/b reason="two\\nlines"',
        "PRIORITY": "4",
        "LOGGER": "gateway.test",
        "SYSLOG_IDENTIFIER": "lamplighter",
        "GATEWAY": "gw-1",
        "TOPIC": "a/b",
        "REASON": "two\nlines",
    }


def test_audit_lines_bring_their_fields(listening: Listening) -> None:
    handler = JournalHandler(listening.path)
    logger = logging.getLogger("lamplighter.audit")
    logger.addHandler(handler)
    try:
        log_refusal("denied", client="lamp", operation="update", priority="0", address="::ffff:192.0.2.7")
    finally:
        logger.removeHandler(handler)
        handler.close()
    found = entry(listening.heard())
    assert (found["CLIENT"], found["OPERATION"], found["PRIORITY"]) == ("lamp", "update", "4")
    assert found["MESSAGE"].endswith("address=192.0.2.7")
    assert found["ADDRESS"] == "192.0.2.7", "as it is looked for"


def test_a_line_that_is_too_long_is_cut(listening: Listening) -> None:
    handler = JournalHandler(listening.path)
    handler.handle(record(Event("long", {"reason": "x" * 300_000})))
    handler.close()
    found = entry(listening.heard())
    assert found["MESSAGE"].startswith("long reason=xxx") and found["MESSAGE"].endswith(" ...")


def test_without_the_journal_lines_go_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = JournalHandler(tmp_path / "nobody")
    handler.handle(record("lost", level=logging.ERROR))
    handler.close()
    assert capsys.readouterr().err == "<3>lost\n"


def test_a_journal_that_takes_nothing_holds_up_no_line_but_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, waits = 0.0, 0
    monkeypatch.setattr(systemd.time, "monotonic", lambda: now)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        handler = JournalHandler(tmp_path / "journal")
        handler._socket.setblocking(False)
        send = handler._socket.sendto

        class Waiting:
            """The handler's socket, which waits no time in the test."""

            def sendto(self, data: bytes, path: str) -> int:
                nonlocal waits
                try:
                    return send(data, path)
                except BlockingIOError:
                    waits += 1
                    raise TimeoutError from None

            close = handler._socket.close

        handler._socket = Waiting()  # type: ignore[assignment]

        def heard() -> list[str]:
            journal.setblocking(False)
            found = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(entry(journal.recv(65536))["MESSAGE"])
            return found

        for number in range(5000):  # more than the kernel keeps for a journal that hangs
            handler.handle(record(f"line {number}"))
        assert waits == 1
        now += systemd._JOURNAL_PAUSE_S
        handler.handle(record("it hangs still"))
        handler.handle(record("and this is not tried"))
        assert waits == 2
        lines = heard()
        handler.handle(record("too early"))
        now += systemd._JOURNAL_PAUSE_S
        handler.handle(record("it works again"))
        handler.handle(record("and goes on"))
        handler.close()
        lost = 5000 - len(lines) + 3
        assert heard() == [
            f'log lines lost count={lost} reason="the journal took none"',
            "it works again",
            "and goes on",
        ]
    assert capsys.readouterr().err == ""


def test_lines_of_standard_error_carry_their_priority() -> None:
    assert PrefixFormatter().format(record("one\ntwo")) == "<6>one\n<6>two"
    assert [priority(level) for level in (10, 20, 30, 40, 50)] == [7, 6, 4, 3, 2]


def test_the_journal_is_used_where_standard_error_is_it(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream:
        status = os.fstat(stream.fileno())
        here = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        handler = journal_handler(here, stream.fileno())
        assert handler is not None
        handler.close()
        assert journal_handler({"JOURNAL_STREAM": "1:2"}, stream.fileno()) is None
        assert journal_handler({}, stream.fileno()) is None


def test_lines_are_marked_in_the_journal_only(listening: Listening) -> None:
    handler = JournalHandler(listening.path)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        mark_lines(GATEWAY="gw-2")
        assert handler.constant == {"GATEWAY": "gw-2"}
    finally:
        root.removeHandler(handler)
        handler.close()


def test_a_program_that_prints_no_utf_8_is_read_all_the_same() -> None:
    assert systemd._output("printf", r"a\377b") == "a\ufffdb"
    assert systemd._output("no-such-program") == ""
