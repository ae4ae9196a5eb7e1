"""The developer of a SEPA application moves it to this gateway: it runs, and nothing is lost when the gateway dies."""

from __future__ import annotations

import shutil
import signal

from tests.clients.peer import javascript_environment
from tests.support.places import ROOT
from tests.trials.reader import Page, Reader

README, SEPA, EXAMPLES = Page("README.md"), Page("docs/sepa.md"), Page("docs/examples/README.md")


def test_a_sepa_developer_runs_the_application_and_the_data_survive_a_kill(
    reader: Reader,
) -> None:
    shutil.copytree(ROOT / "docs" / "examples", reader.folder / "docs" / "examples")
    http, websocket = (reader.replaced[port][1:] for port in (":8000", ":9000"))
    reader.replaced |= {"port: 8000": f"port: {http}", "port: 9000": f"port: {websocket}"}
    reader.write("lamps.js", SEPA.block("js", "new SEPA("))
    reader.environment = javascript_environment()
    start = README.command(".venv/bin/lamplighter run")
    query = "lamplighter query 'SELECT ?state { <http://example.org/lamp/1> <http://example.org/state> ?state }'"

    with reader.running(start, end=signal.SIGKILL) as gateway:
        gateway.until("subscribe")
        assert reader.run(SEPA.inline("node lamps.js")).splitlines()[-1] == "1 http://example.org/lamp/1 ON"
    with reader.running(start) as gateway:
        gateway.until("is ready, with")
        assert '"ON"' in reader.run(query)
        settings = (
            "host=127.0.0.1",
            f"sparql11protocol.port={http}",
            f"sparql11seprotocol.availableProtocols.ws.port={websocket}",
        )
        chat = EXAMPLES.inline(".venv/bin/python docs/examples/chat/chat.py")
        told = reader.run(chat, *(word for setting in settings for word in ("--set", setting)))
        assert told.endswith("12 messages were sent, read and removed; 0 quads are left\n")
