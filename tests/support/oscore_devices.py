"""A device that speaks OSCORE with aiocoap's own context, as the other side of `adapters.coap.secured`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiocoap import CON, Message, oscore

from lamplighter.adapters.coap.contexts import Contexts


class _Context(oscore.FilesystemSecurityContext):  # type: ignore[misc]
    plaintext: bytes | None = None

    def _split_message(self, message: Message, request_id: Any) -> tuple[Message, bytes]:
        outer, plaintext = super()._split_message(message, request_id)
        return outer, plaintext if self.plaintext is None else self.plaintext

    def __del__(self) -> None:
        """Nothing is stored by chance."""


class Device:
    """half: what `make_context` returned. plaintext: what is encrypted instead of the next messages."""

    def __init__(self, folder: Path, half: dict[str, str]) -> None:
        folder.mkdir(mode=0o700)
        (folder / "settings.json").write_text(json.dumps(half))
        self._folder = folder
        self.context: Any = _Context(str(folder))

    @property
    def plaintext(self) -> bytes | None:
        return self.context.plaintext  # type: ignore[no-any-return]

    @plaintext.setter
    def plaintext(self, value: bytes | None) -> None:
        self.context.plaintext = value

    def crash(self) -> None:
        """The device starts again, without the end of the last time. It forgets what it has received."""
        self.context._store()
        self.context.replay_window_persisted = False
        self.context._store()
        self.context.lockfile.release()
        self.context.lockfile = None
        self.context = _Context(str(self._folder))

    def restart(self) -> None:
        self.context._destroy()
        self.context = _Context(str(self._folder))


def crashed(contexts: Contexts) -> None:
    """What the end of the process does: the lock is free, and nothing is stored."""
    assert contexts._writer is not None
    contexts._writer.shutdown()
    contexts._contexts.clear()
    contexts.close()


def arriving(message: Message) -> Message:
    """A message as the other side gets it."""
    message.mtype, message.mid, message.token = CON, 1, b"t"
    return Message.decode(message.encode())
