"""An operator secures a gateway and lets a client in, sees what is wrong, and brings the data back after a loss."""

from __future__ import annotations

import re
import shutil
import socket

from tests.support.brokers import free_port
from tests.support.gateway_process import wait_for
from tests.trials.reader import Page, Reader

README, SECURITY, SEPA = Page("README.md"), Page("docs/secure.md"), Page("docs/sepa.md")
DEVICES, CHANGE_LOG = Page("docs/mqtt-devices.md"), Page("docs/change-log.md")
MONITOR, BACKUP = Page("docs/monitor.md"), Page("docs/backup-restore.md")
AWAY = re.compile(r"^mqtt/default +(degraded|failed)", re.M)
RUN = README.command(".venv/bin/lamplighter run")
QUERY = "lamplighter query 'SELECT ?s { <http://example.org/lamp/1> <http://example.org/state> ?s }'"
INSERT = "lamplighter update \"INSERT DATA { <http://example.org/lamp/1> <http://example.org/state> 'ON' }\""


def free_ports() -> tuple[int, int]:
    """For HTTPS and WSS, whose port is 1000 higher in the classic layout."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + 1000))
            except OSError:
                continue
        return port, port + 1000


def test_an_operator_secures_a_gateway_and_lets_a_client_in(reader: Reader) -> None:
    https, wss = free_ports()
    secure = SECURITY.block("toml", "enabled = true").replace("lamps.example", "localhost")
    secure += f'host = "127.0.0.1"\nhttps_port = {https}\nwss_port = {wss}\n'
    reader.write("lamplighter.toml", (reader.folder / "lamplighter.toml").read_text() + secure)
    reader.replaced |= {f"{name}.local:8443": f"localhost:{https}" for name in ("kitchen", "gateway")}
    at = ("--url", f"https://localhost:{https}", "--ca", "ca.pem", "--client")

    with reader.running(RUN) as gateway:
        gateway.until("is ready")
        fingerprint = gateway.until("fingerprint").split()[-1]
        reader.run(SECURITY.command("curl -sk -o ca.pem"))
        assert fingerprint in reader.run(SECURITY.command("openssl x509 -in ca.pem"))
        given = reader.run(SECURITY.inline("lamplighter clients code lamp"))
        code = re.findall(r"\b[0-9A-Z]{4}-[0-9A-Z]{4}\b", given)[0]
        register = SEPA.command("lamplighter register").replace("7K2M-XW4P", code).replace("chat", "lamp")
        reader.run(register)
        reader.run(INSERT, *at, "lamp.json")
        assert '"ON"' in reader.run(QUERY, *at, "lamp.json")
        reader.run(
            SECURITY.command("lamplighter clients permit lamp --write").partition(" --write")[0], "--write", "none"
        )
        assert "may not" in reader.run(INSERT, *at, "lamp.json", code=4)


def test_an_operator_sees_that_the_broker_is_away(reader: Reader) -> None:
    settings = DEVICES.block("toml", 'host = "127.0.0.1"') + f"port = {free_port()}\n"
    reader.write("lamplighter.toml", (reader.folder / "lamplighter.toml").read_text() + settings)
    with reader.running(DEVICES.command(".venv/bin/lamplighter run --all")) as gateway:
        gateway.until("is ready")
        status = MONITOR.command("lamplighter status")
        wait_for(lambda: bool(AWAY.search(reader.run(status))), what="the state of the broker")
        told = AWAY.sub("", reader.run(status))
        assert "connection refused" in told, "the reason"
        assert "lamplighter.toml" in told, "the cure"


def test_an_operator_brings_the_data_back_after_a_loss(reader: Reader) -> None:
    backup, restore = BACKUP.command("lamplighter backup"), BACKUP.command("lamplighter restore")
    with reader.running(RUN) as gateway:
        gateway.until("is ready")
        reader.run(INSERT)
        assert "checked" in reader.run(backup)
    shutil.rmtree(reader.folder / "data")
    with reader.running(RUN) as gateway:
        gateway.until("is ready")
        assert '"ON"' not in reader.run(QUERY)
        assert "--yes" in reader.run(restore, code=2)
        assert "restored" in reader.run(restore, "--yes")
        assert '"ON"' in reader.run(QUERY)
        assert "verdict    good" in reader.run(CHANGE_LOG.command("lamplighter verify"))
