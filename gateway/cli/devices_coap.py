"""CoAP devices: `lamplighter devices discover` and `lamplighter devices key`.

The search runs beside the adapter and uses no keys, which only the adapter may have: the adapter itself finds a device
that answers no plain requests, when the device registers. A key needs no running gateway: the command writes the
gateway's half for the adapter, and gives the device's half once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.gateway.cli.console import print_json
from lamplighter.gateway.cli.options import add_json, settings_and_data

if TYPE_CHECKING:
    from lamplighter.adapters.coap.discovery import Proposal


def add_discover_arguments(discover: argparse.ArgumentParser) -> None:
    discover.add_argument(
        "host", nargs="?", metavar="HOST", help="host or host:port of one device; without it, all are asked (multicast)"
    )


def found_devices(settings: CoapSettings, host: str | None) -> Sequence[Proposal]:
    """The devices that answer, as their links describe them. Raises UpstreamError and PayloadError."""
    from lamplighter.adapters.coap.discovering import Searcher
    from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
    from lamplighter.adapters.coap.exchanges import Exchanges
    from lamplighter.adapters.networks import Networks

    async def search() -> Sequence[Proposal]:
        networks = Networks(settings.networks, "coap.networks")
        endpoint = await Endpoint.client(settings, EndpointCounters())
        try:
            searcher = Searcher(endpoint, Exchanges(endpoint, networks, settings), networks)
            return await searcher.everywhere() if host is None else [await searcher.at(host)]
        finally:
            await endpoint.close()

    return asyncio.run(search())


def add_key_arguments(key: argparse.ArgumentParser) -> None:
    key.add_argument("name", metavar="NAME", help="name of the key, such as hall-lamp")
    key.add_argument("--address", metavar="HOST", required=True, help="host or host:port, as in the URIs of the device")
    output = key.add_mutually_exclusive_group()
    output.add_argument(
        "--print", action="store_true", help="print the device's half (JSON) instead of writing NAME.oscore.json"
    )
    add_json(output, "the files that were made", below=True)
    key.add_argument("--replace", action="store_true", help="give the device a new key; the old one becomes invalid")


def make_key(options: argparse.Namespace) -> int:
    from lamplighter.adapters.coap.context_files import (  # most commands need none
        check_name,
        contexts_folder,
        make_context,
    )
    from lamplighter.adapters.coap.settings import normal_authority

    check_name(options.name)
    try:
        address = normal_authority(options.address)
    except PayloadError as error:
        raise ConfigurationError(f"--address: {error}") from error
    _, data = settings_and_data(options)
    folder = contexts_folder(data)
    output = None if options.print else Path(f"{options.name}.oscore.json")
    with _file_of_the_device(output) as file:
        try:
            with _as_owner_of(data, folder.parent):
                half = make_context(folder, options.name, address, replace=options.replace)
        except OSError as error:
            reason = f"{error.strerror}; run the command as root or as the user of the gateway"
            raise ConfigurationError(f"{error.filename or folder}: {reason}") from error
        text = json.dumps(half, indent=1) + "\n"
        if file is None:
            print(text, end="")
        else:
            os.write(file, text.encode())
            os.fsync(file)
    if options.json:
        print_json({"made": str(folder / options.name), "address": address, "device": str(output)})
    elif output is not None:
        print(f"made {folder / options.name}, the key of {address}")
        print(f"{output} has the half of the device. Move it to the device, and delete it here: it is secret.")
    return 0


@contextlib.contextmanager
def _file_of_the_device(path: Path | None) -> Iterator[int | None]:
    """A new file, opened before the key is made, because the half of the device cannot be had again."""
    if path is None:
        yield None
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = f"{error.strerror}; delete it, change the folder, or add --print"
        raise ConfigurationError(f"{path}: {reason}") from error
    try:
        yield file
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(file)


@contextlib.contextmanager
def _as_owner_of(data: Path, folder: Path) -> Iterator[None]:
    """For root: makes the folder, and acts as the user of the gateway, who could not read the files of root."""
    from lamplighter.adapters.coap.context_files import make_folder

    if os.geteuid() != 0:
        yield
        return
    try:
        owner = (folder if folder.exists() else data).stat()
    except FileNotFoundError:
        yield  # a gateway that root has not started yet
        return
    if not folder.exists():
        make_folder(folder)
        os.chown(folder, owner.st_uid, owner.st_gid)
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
