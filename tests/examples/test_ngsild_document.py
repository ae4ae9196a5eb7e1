"""docs/ngsi-ld.md says what is so: its requests are sent, and answered as they show."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

from lamplighter.gateway.settings import read_settings
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.receivers import HttpReceiver
from tests.support.running_gateway import running_gateway, update
from tests.support.small_house import SMALL_HOUSE

DOCUMENT = (ROOT / "docs" / "ngsi-ld.md").read_text()


async def test_the_requests_are_answered_as_shown(tmp_path: Path) -> None:
    require_command("curl")
    with HttpReceiver() as receiver:
        await answered_as_shown(tmp_path, receiver)


async def answered_as_shown(tmp_path: Path, receiver: HttpReceiver) -> None:
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT, re.S)
    calls = [call for block in blocks for call in re.findall(r"^\$ (curl .*)\n(.*)$", block, re.M)]
    assert len(calls) == 9
    [notification] = re.findall(r"```json\n(.*?)\n```", DOCUMENT, re.S)
    subscriptions = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": []}
    ngsild = {"enabled": True, "subscriptions": subscriptions}
    async with running_gateway(tmp_path, ngsild=ngsild) as at:
        assert (await update(at, SMALL_HOUSE)).status == 200
        place = at.query.removeprefix("http://").removesuffix("/query")
        for command, shown in calls:
            line = command.replace("127.0.0.1:8000", place).replace("http://127.0.0.1:8088/hook", receiver.url())
            made = await asyncio.to_thread(
                subprocess.run, ["sh", "-c", line], capture_output=True, text=True, check=True
            )
            assert made.stdout == shown, command
        [told] = await asyncio.to_thread(receiver.wait_posted, 1)
    assert told.headers["authorization"] == "Bearer 7f3c"
    changing = re.compile(r'(Notification:)[0-9a-f-]{36}|("notifiedAt":")[^"]+')
    assert changing.sub(r"\1\2", told.body.decode()) == changing.sub(r"\1\2", notification)


def test_the_settings_are_read(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"
    config.write_text("".join(re.findall(r"```toml\n(.*?)```", DOCUMENT, re.S)))
    settings = read_settings(config).ngsild
    assert settings.subscriptions.enabled and settings.subscriptions.networks == ["127.0.0.0/8"]
    assert settings.enabled and list(settings.contexts.values()) == [str(tmp_path / "weather.jsonld")]
