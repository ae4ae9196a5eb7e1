"""An integrator couples a CoAP lamp and a program of another company: the program follows each change, the lamp obeys,
and a question why it did has an answer."""

from __future__ import annotations

import json

from tests.support.coap_peers import libcoap_server
from tests.support.gateway_process import wait_for
from tests.trials.reader import Page, Reader

DEVICES, COAP = Page("docs/mqtt-devices.md"), Page("docs/coap-devices.md")
MAPPING = Page("docs/mapping.md")
DESIRED = (
    "lamplighter subscribe --json 'SELECT ?state { ?lamp <http://lamplighter.example/ns/gateway#desiredState> ?state }'"
)


def test_an_integrator_couples_a_lamp_and_a_program(reader: Reader) -> None:
    with libcoap_server() as lamp:
        reader.replaced |= {"192.0.2.10": f"127.0.0.1:{lamp.port}"}
        ports = (reader.folder / "lamplighter.toml").read_text()
        reader.write("lamplighter.toml", ports + COAP.block("toml", 'networks = ["127.0.0.0/8"]'))
        reader.write("mapping/lamp.toml", COAP.block("toml", 'resource = "coap://192.0.2.10/lamp"'))
        reader.run(MAPPING.command("lamplighter mapping check"))

        with reader.running(DEVICES.command(".venv/bin/lamplighter run --all")) as gateway:
            gateway.until("is ready")
            with reader.running(DESIRED) as program:
                assert json.loads(program.until("sequence"))["sequence"] == 0
                reader.run(
                    COAP.command(".venv/bin/lamplighter update 'INSERT DATA { <http://lamplighter.local/actuator/hall>")
                )
                [row] = json.loads(program.until("sequence"))["addedResults"]["results"]["bindings"]
                assert row["state"]["value"] == "true"
            client = COAP.command("coap-client-notls coap://192.0.2.10/lamp")
            wait_for(lambda: '{"on": true}' in reader.run(client), what="the lamp")
            explain = DEVICES.command("lamplighter explain").replace("actuator/kitchen --at 21:03", "actuator/hall")
            wait_for(lambda: "acknowledgement" in reader.run(explain), what="the record of the actuation")
            assert "mapping/lamp.toml line 1" in reader.run(explain)
