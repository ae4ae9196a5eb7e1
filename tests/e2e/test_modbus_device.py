"""docs/devices.md: the blocks of the section on Modbus devices are executed, with pymodbus's server as the device."""

from __future__ import annotations

import asyncio
import re
import shlex
import tomllib
from pathlib import Path

from lamplighter.adapters.mapping import ReadTable, load_resource_rules
from lamplighter.adapters.mapping.tables import CommandBase, ResourceCommandTable
from tests.support.commands import command
from tests.support.gateway_process import GatewayProcess
from tests.support.modbus_device import ModbusDevice
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "devices.md").read_text()
[SECTION] = re.findall(r"^## Connect a Modbus device\n(.*?)^## ", DOCUMENT, re.M | re.S)
SETTINGS, RULES, MORE = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
[CONSOLE] = re.findall(r"```console\n(.*?)```", SECTION, re.S)
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}")
KEYS = {"type", "byte_order", "word_order", "scale", "offset"}


def test_the_device_is_read_and_switched_as_the_document_says(tmp_path: Path) -> None:
    test, read, *shown = CONSOLE.splitlines()
    (tmp_path / "mapping").mkdir()
    settings = tomllib.loads(SETTINGS)["modbus"] | {"networks": ["127.0.0.0/8"], "retry_max_s": 1.0}

    async def run() -> None:
        device = ModbusDevice()
        await device.start()
        place = f"127.0.0.1:{device.port}"
        rules = RULES.replace("192.0.2.30", place).replace("poll_s = 10", "poll_s = 1")
        (tmp_path / "mapping" / "cellar.toml").write_text(rules)

        async def told(line: str) -> list[str]:
            _, *words = shlex.split(line.removeprefix("$ ").replace("192.0.2.30", place))
            done = await asyncio.to_thread(command, *words, "--config", gateway.config)
            assert done.returncode == 0, done.stderr
            return [TIME.sub("TIME", text) for text in done.stdout.splitlines()]

        async def printed(value: str) -> bool:
            lines = [TIME.sub("TIME", text).replace("1234.5", value) for text in shown]
            return await told(read) == lines

        async def until(condition: object, what: str) -> None:
            while not await condition():  # type: ignore[operator]
                await asyncio.sleep(0.05)

        await device.write("input_register", 52, [0x449A, 0x5000])
        gateway = await asyncio.to_thread(GatewayProcess(tmp_path, "--all", modbus=settings).__enter__)
        try:
            assert any("1234.5" in text for text in await told(test))
            await until(lambda: printed("1234.5"), "the reading")
            update = "INSERT DATA { <http://lamplighter.local/pump> <http://lamplighter.example/ns/gateway#desiredState> true }"
            await told(f"$ lamplighter update '{update}'")

            async def switched() -> bool:
                return await device.read("coil", 3) == [1]

            await until(switched, "the pump")
            await device.stop()
            await device.start()  # its registers are zero again
            await until(switched, "the pump after the reboot of the device")
            await device.write("input_register", 52, [0x449A, 0x7000])
            await until(lambda: printed("1235.5"), "the reading after the reboot")
        finally:
            await asyncio.to_thread(gateway.__exit__, None, None, None)
            await device.stop()

    asyncio.run(asyncio.wait_for(run(), 600))


def test_all_rules_of_the_document_are_good_and_name_each_key(tmp_path: Path) -> None:
    for number, text in enumerate((RULES, MORE)):
        (tmp_path / f"{number}.toml").write_text(text)
    found = load_resource_rules(tmp_path, "http://lamplighter.local/", "modbus")
    assert (len(found.resources), len(found.commands)) == (2, 3)
    names = (line.split("|")[1] for line in SECTION.splitlines() if line.startswith("| `"))
    keys = {key for name in names for key in re.findall(r"`(\w+)`", name)}
    assert keys == KEYS | {"quantity", "entity", "function"}
    assert KEYS - set(ReadTable.__struct_fields__) == KEYS & set(ResourceCommandTable.__struct_fields__) - {
        "scale",
        "offset",
    }
    assert not KEYS & set(CommandBase.__struct_fields__)
