"""Orders of the fleet at a running gateway: updates, subscriptions, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lamplighter.cloud_sync.__main__ import main
from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.early_notifications import EarlyNotificationOutbox
from lamplighter.cloud_sync.order_client import GatewayAccess, OrderRound
from lamplighter.cloud_sync.order_intake import OrderIntake, read_order_state
from lamplighter.cloud_sync.orders import Kind, Orders
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.cloud_sync.settings import OrderSettings
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.client import Credentials
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import health, rows, running_gateway, update
from tests.support.secure_gateway import SecureGateway

KEY = Ed25519PrivateKey.generate()
LAMPS = "SELECT ?lamp WHERE { ?lamp <http://e/on> true }"
ON = "INSERT DATA { <http://e/%s> <http://e/on> true }"


class Site:
    """A gateway with a destination, and the fleet at its other side."""

    def __init__(self, folder: Path, addresses: Addresses) -> None:
        self.addresses = addresses
        self.data = folder / "data"
        (folder / "to").mkdir(exist_ok=True)
        self.to = LocalFolder(folder / "to")
        self.orders = Orders(self.to, KEY)
        self.sent = 0
        self.name = "gw"

    def send(self, kind: Kind, *, order_id: str = "", **body: str | int) -> int:
        self.sent += 1
        return self.orders.send(self.name, order_id or f"o{self.sent}", kind, body, 3600)

    def round(self, intake: OrderIntake | None = None, **settings: Any) -> OrderRound:
        """The next round of a process that has just started."""
        intake = intake or OrderIntake(self.data, self.to, "gw", [KEY.public_key()], PaceClock())
        access = GatewayAccess(OrderSettings(**{"url": self.addresses.subscribe, **settings}), self.data)
        return OrderRound(self.data, intake, EarlyNotificationOutbox(self.data, self.to, "gw"), "gw", access)

    def answered(self, number: int) -> tuple[str, str]:
        answer = self.orders.answer(self.name, number)
        assert answer is not None
        return answer.outcome, answer.reason

    def ahead(self) -> list[dict[str, Any]]:
        """All notifications at the destination."""
        folder = f"ahead/{self.name}"
        objects = [self.to.get(f"{folder}/{entry.name}") or b"" for entry in self.to.entries(folder)]
        return [json.loads(line) for data in objects for line in data.splitlines()]


@asynccontextmanager
async def site(folder: Path, **tables: Any) -> AsyncIterator[Site]:
    async with running_gateway(folder, **tables) as addresses:
        yield Site(folder, addresses)


def lamps(notification: dict[str, Any], member: str = "added") -> list[str]:
    found = notification.get(member, {"results": {"bindings": []}})
    return [row["lamp"]["value"].removeprefix("http://e/") for row in found["results"]["bindings"]]


async def test_orders_are_executed_in_order_and_answered(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        here.send("update", update=ON % "a")
        here.send("update", update="DELETE DATA { <http://e/a> <http://e/on> true }")
        here.send("update", update="INSERT DATA { broken")
        here.send("update", update=ON % "b")
        await here.round().run()
        assert await rows(here.addresses, LAMPS) == [{"lamp": "http://e/b"}]
        assert [here.answered(number)[0] for number in (1, 2, 3, 4)] == ["done", "done", "refused", "done"]
        assert "SPARQL11ProtocolException" in here.answered(3)[1]


async def test_an_update_is_applied_once_though_its_mark_was_lost(tmp_path: Path) -> None:
    append = "DELETE { <http://e/n> <http://e/v> ?v } INSERT { <http://e/n> <http://e/v> ?w } WHERE { %s }"
    async with site(tmp_path) as here:
        await update(here.addresses, "INSERT DATA { <http://e/n> <http://e/v> 0 }")
        here.send("update", update=append % "<http://e/n> <http://e/v> ?v BIND(?v + 1 AS ?w)")
        killed = here.round()

        def kill(*_: object) -> None:
            raise KeyboardInterrupt

        killed.intake.settle = kill  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            await killed.run()
        assert read_order_state(here.data).number == 0
        await here.round().run()
        assert await rows(here.addresses, "SELECT ?v { <http://e/n> <http://e/v> ?v }") == [{"v": "1"}]
        assert here.answered(1) == ("done", "")


async def test_rows_come_back_and_the_subscription_survives_both_processes(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await update(here.addresses, ON % "a")
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        await here.round().run()
        [first] = here.ahead()
        assert (first["subscription"], first["version"], first["sequence"], lamps(first)) == ("lamps", 1, 0, ["a"])
        await update(here.addresses, ON % "b")  # no client is connected
        await here.round().run()
    async with site(tmp_path) as here:
        await update(here.addresses, ON % "c")
        await here.round().run()
        await here.round().run()
        found = here.ahead()
        assert [(one["sequence"], lamps(one)) for one in found] == [(0, ["a"]), (1, ["b"]), (2, ["c"])]
        assert len({one["incarnation"] for one in found}) == 1
        assert [one.get("commit") for one in found] == [None, [1, 3], [1, 4]]
        # The first record is in a sealed segment by now, the second one in that which the gateway writes.
        lines = (line for path in (here.data / "log").glob("*.zst") for line in FrameReader(path.read_bytes()))
        records = {f"{record['epoch']}/{record['seq']}": record for record in map(json.loads, lines)}
        assert [(one.get("at"), one.get("trusted")) for one in found] == [
            (None, None),
            *((records[place]["ts"], records[place]["trusted"]) for place in ("1/3", "1/4")),
        ]
        assert read_order_state(here.data).subscriptions[0].spuid not in json.dumps(found)
        here.sent = 1
        here.send("unsubscribe", subscription="lamps", version=1)
        await here.round().run()
        assert (await health(here.addresses))["subscriptions"] == 0
        await update(here.addresses, ON % "d")
        await here.round().run()
        assert len(here.ahead()) == 3


async def test_a_higher_version_replaces_a_lower_one_and_a_lower_one_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await update(here.addresses, ON % "a")
        off = LAMPS.replace("true", "false")
        here.send("subscribe", subscription="lamps", version=2, query=LAMPS)
        here.send("subscribe", subscription="lamps", version=1, query=off)
        here.send("subscribe", subscription="lamps", version=2, query=LAMPS)
        here.send("subscribe", subscription="lamps", version=2, query=off)
        here.send("subscribe", subscription="lamps", version=3, query="SELECT * { broken")
        here.send("subscribe", subscription="lamps", version=4, query=off)
        here.send("unsubscribe", subscription="lamps", version=3)
        here.send("unsubscribe", subscription="lamps", version=4)
        here.send("subscribe", subscription="lamps", version=4, query=off)
        here.send("unsubscribe", subscription="never", version=1)
        await here.round().run()
        outcomes = [here.answered(number)[0] for number in range(1, 11)]
        assert outcomes == [
            "done", "refused", "done", "refused", "refused", "done", "refused", "done", "refused", "done"
        ]  # fmt: skip
        assert "use a higher one" in here.answered(2)[1]
        assert [(one["version"], lamps(one)) for one in here.ahead()] == [(2, ["a"]), (4, [])]
        assert (await health(here.addresses))["subscriptions"] == 0


async def test_what_was_taken_before_a_kill_is_told_again_under_the_same_name(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        await here.round().run()
        await update(here.addresses, ON % "a")
        before = read_order_state(here.data)
        await here.round().run()
        (here.data / "orders.json").write_bytes(msgspec.json.encode(before))
        await here.round().run()  # finds the same content at the destination
        assert [one["sequence"] for one in here.ahead()] == [0, 1]
        (here.data / "orders.json").write_bytes(msgspec.json.encode(before))
        await update(here.addresses, ON % "b")
        await here.round().run()
        assert [(one["sequence"], lamps(one)) for one in here.ahead()] == [
            (0, []), (1, ["a"]), (1, ["a"]), (2, ["b"])
        ]  # fmt: skip
        assert len({one["incarnation"] for one in here.ahead()}) == 1


async def test_a_full_outbox_leaves_notifications_with_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as here:
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        await here.round().run()
        await update(here.addresses, ON % "a")
        monkeypatch.setattr("lamplighter.cloud_sync.early_notifications.OUTBOX_BYTES_MAX", 0)
        await here.round().run()
        assert len(here.ahead()) == 1
        monkeypatch.undo()
        monkeypatch.setattr("lamplighter.cloud_sync.early_notifications.RESULTS_BYTES_MAX", 10)
        await here.round().run()
        assert [one.get("cut", False) for one in here.ahead()] == [False, True]
        assert "added" not in here.ahead()[1]


async def test_the_fleet_is_told_of_a_subscription_that_the_gateway_ends(tmp_path: Path) -> None:
    async with site(tmp_path, limits={"first_result_rows_max": 1}) as here:
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        await here.round().run()
        for lamp in "ab":
            await update(here.addresses, ON % lamp)
        lost = here.round()
        [one] = lost.intake.state.subscriptions
        lost.intake.note_begun(msgspec.structs.replace(one, spuid="unknown"))  # as after a loss of the gateway's data
        await lost.run()
        assert "limit_exceeded" in here.ahead()[-1]["ended"]
        assert read_order_state(here.data).subscriptions == ()
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        await here.round().run()
        assert "use a higher one" in here.answered(2)[1]


async def test_an_order_waits_for_a_gateway_that_is_away(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        here.send("update", update=ON % "a")
        away = here.round(url="ws+unix:/nowhere/ws.sock")
        away.answer_s = 0.0
        with pytest.raises(UpstreamError, match=r"sync\.orders\.url"):
            await away.run()
        assert here.orders.answer("gw", 1) is None
        await here.round().run()
        assert here.answered(1) == ("done", "")


def test_an_order_has_the_rights_of_the_fleets_client(tmp_path: Path) -> None:
    with SecureGateway(tmp_path) as gateway:
        here = Site(tmp_path, gateway.addresses)
        secret = gateway.client("fleet", read=["*"], write=["http://e/fleet"], subscribe=["default"])
        Credentials("fleet", secret).save(here.data / "fleet.json")
        settings = {
            "token_url": f"https://localhost:{gateway.port}/oauth/token",
            "url": f"wss://localhost:{gateway.socket_port}/secure/subscribe",
            "credentials_file": "fleet.json",
            "ca_file": str(gateway.authority),
        }
        here.send("update", update="INSERT DATA { GRAPH <http://e/fleet> { <http://e/a> <http://e/on> true } }")
        here.send("update", update=ON % "b")
        here.send("subscribe", subscription="all", version=1, query="SELECT ?lamp { GRAPH ?g { ?lamp ?p ?o } }")
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        asyncio.run(here.round(**settings).run())
        outcomes = [here.answered(number) for number in (1, 2, 3, 4)]
        assert [outcome for outcome, _ in outcomes] == ["done", "refused", "done", "done"]
        assert outcomes[1][1].startswith("forbidden (403): ")
        assert {one["subscription"]: lamps(one) for one in here.ahead()} == {"all": [], "lamps": []}

        # After a change of its permissions, the gateway begins both anew.
        wanted = json.dumps({"read": ["*"], "write": [], "subscribe": []})
        assert gateway.local("PUT", "/clients/fleet", wanted).status == 200
        asyncio.run(here.round(**settings).run())
        found = here.ahead()
        assert [one["sequence"] for one in found] == [0] * 4
        assert len({one["incarnation"] for one in found}) == 4

        # A fault of the credentials refuses no order.
        Credentials("fleet", "wrong").save(here.data / "fleet.json")
        number = here.send("update", update=ON % "c")
        with pytest.raises(ConfigurationError, match=r"sync\.orders\.credentials_file"):
            asyncio.run(here.round(**settings).run())
        assert here.orders.answer("gw", number) is None


async def test_the_command_executes_orders_and_tells_their_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "lamplighter.toml"

    async def sync(*arguments: str) -> int:
        return await asyncio.to_thread(main, [*arguments, "--config", str(config)])

    async with site(tmp_path) as here:
        here.name = (here.data / "identity").read_text().strip()
        public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / "fleet.pem").write_bytes(public)
        (tmp_path / "fleet.pem").chmod(0o644)
        orders = f'key_file = "fleet.pem"\nurl = "{here.addresses.subscribe}"\n'
        config.write_text(f'[gateway]\nclock_trusted = "always"\n[sync]\ndestination = "to"\n[sync.orders]\n{orders}')
        here.send("update", update=ON % "a")
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        here.send("update", update="INSERT DATA { broken")
        assert await sync("run", "--once") == 0
        assert await rows(here.addresses, LAMPS) == [{"lamp": "http://e/a"}]
        [first] = here.ahead()
        assert (first["gateway"], lamps(first)) == (here.name, ["a"])
        capsys.readouterr()
        assert await sync("status") == 0
        told = capsys.readouterr().out
        assert "\norders        up to 3; 2 done, 1 refused, 0 missing\n" in told
        assert "\nsubscribed    1 subscription of the fleet\n" in told
        assert "\nlast refusal  order 3: SPARQL11ProtocolException (400): " in told
        assert await sync("status", "--json") == 0
        assert json.loads(capsys.readouterr().out)["orders"]["subscribed"] == "1 subscription of the fleet"

        # A fault of orders does not stop the shipper.
        (tmp_path / "fleet.pem").chmod(0o666)
        assert await sync("run", "--once") == 2
        told_of = capsys.readouterr()
        assert "chmod go-w" in told_of.err
        assert told_of.out.startswith("sent up to ")


async def test_a_round_takes_no_more_than_the_outbox_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as here:
        here.send("subscribe", subscription="lamps", version=1, query=LAMPS)
        await here.round().run()
        for lamp in "ab":
            await update(here.addresses, ON % lamp)
        monkeypatch.setattr("lamplighter.cloud_sync.early_notifications.OUTBOX_BYTES_MAX", 1)
        for count in (2, 3, 3):
            await here.round().run()
            assert [one["sequence"] for one in here.ahead()] == list(range(count))
