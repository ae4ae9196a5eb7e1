"""The OSCORE contexts of all devices of an adapter: which one belongs to an address, or to a request that arrives.

This module loads no cryptography; `secured` does, with the first context.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from lamplighter.adapters.coap.context_files import (
    CONTEXTS_MAX,
    Key,
    Numbers,
    check_private,
    context_names,
    key_command,
    locked_folder,
    read_key,
    read_sequence,
)
from lamplighter.engine.errors import ConfigurationError

if TYPE_CHECKING:  # it loads cryptography
    from lamplighter.adapters.coap.secured import SecuredContext


class Contexts:
    """The contexts of all devices. One process at a time may have them.

    problems: name of a context that cannot be used -> the reason and the cure.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """folder: of the contexts, None: there are none."""
        self.problems: dict[str, str] = {}
        self._folder = folder
        self._changing = threading.Lock()
        self._closed = False
        self._contexts: dict[str, SecuredContext] = {}
        self._addresses: dict[str, str] = {}
        self._unusable: dict[str, str] = {}  # address -> name
        self._kids: dict[tuple[bytes, bytes | None], str] = {}
        self._without_address = ""  # the name of a context whose address cannot be read
        self._lock: int | None = None
        self._writer: ThreadPoolExecutor | None = None

    @classmethod
    def load(cls, folder: Path) -> Contexts:
        """The contexts below a folder; none if it does not exist. It blocks: each context is written and synced.

        Raises ConfigurationError if the folder cannot be used. A damaged context is a problem of its device only.
        """
        found = cls(folder)
        try:
            found.add_new()
        except BaseException:
            found.close()
            raise
        return found

    def add_new(self) -> list[str]:
        """Adds the contexts that were made since the last call; returns their names. It blocks, and may run in another
        thread. Raises ConfigurationError if the folder cannot be used."""
        folder = self._folder
        if folder is None:
            return []
        with self._changing:
            try:
                names = [one for one in context_names(folder) if one not in self._contexts and one not in self.problems]
                if self._closed or not names:
                    return []
                check_private(folder)
                # Taken with the first key, so that a gateway without keys makes no file.
                if self._lock is None:
                    self._lock = locked_folder(folder)
            except OSError as error:
                raise ConfigurationError(f"{folder}: {error.strerror}; it must belong to the adapter's user") from error
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "coap contexts")
            for name in names:
                self._add(folder / name)
            return names

    def address(self, name: str) -> str:
        """Of a context, as in `Key`; "" if it cannot be used."""
        return next((address for address, one in self._addresses.items() if one == name), "")

    def _add(self, folder: Path) -> None:
        """Adds a context, or why it cannot be used."""
        name, address = folder.name, ""
        try:
            key = read_key(folder)
            address = key.address
            self._add_key(folder, key)
        except (ConfigurationError, OSError) as error:
            reason = (
                str(error) if isinstance(error, ConfigurationError) else f"{error.filename or folder}: {error.strerror}"
            )
            self.problems[name] = reason  # first, because requests look at the others
            # Without an address, each device may be the one with the damaged key: no request goes out plain.
            if address:
                self._unusable[address] = name
            else:
                self._without_address = name

    def _add_key(self, folder: Path, key: Key) -> None:
        """Raises ConfigurationError, OSError."""
        from lamplighter.adapters.coap.secured import SecuredContext

        assert self._writer is not None
        stored = read_sequence(folder)
        kid = key.recipient_id, key.id_context
        for other, what in (
            (self._addresses.get(key.address), f"the address {key.address}"),
            (self._kids.get(kid), f"the device identifier {key.recipient_id.hex()}"),
        ):
            if other is not None:
                raise ConfigurationError(f"{folder}: context {other} has {what} too; remove one of the folders")
        if len(self._contexts) == CONTEXTS_MAX:
            raise ConfigurationError(f"{folder}: only {CONTEXTS_MAX:,} contexts can be used; remove folders")
        context = SecuredContext(key, Numbers(folder, stored, self._writer.submit))
        self._contexts[key.name] = context
        self._addresses[key.address] = key.name
        self._kids[kid] = key.name

    def __len__(self) -> int:
        return len(self._contexts)

    def named(self, name: str) -> SecuredContext:
        """Raises ConfigurationError if there is none, or if it cannot be used."""
        if name in self.problems:
            raise ConfigurationError(self.problems[name])
        if name not in self._contexts:
            raise ConfigurationError(f"there is no OSCORE context {name}; make it with `{key_command(name)}`")
        return self._contexts[name]

    def of(self, *addresses: str) -> SecuredContext | None:
        """The context of a device by its address, as in `Key`, or by one of several; None: it has no key.

        Raises ConfigurationError if its context cannot be used, or if this cannot be known.
        """
        for address in addresses:
            if address in self._addresses:
                return self._contexts[self._addresses[address]]
            # Without this, damage to a file would make requests plain.
            if address in self._unusable:
                raise ConfigurationError(self.problems[self._unusable[address]])
        if self._without_address:
            problem = self.problems[self._without_address]
            raise ConfigurationError(f"whether {addresses[0]} has a key cannot be known, because of {problem}")
        return None

    def by_kid(self, kid: bytes, kid_context: bytes | None) -> SecuredContext | None:
        """The context of a request that arrives."""
        name = self._kids.get((kid, kid_context))
        return None if name is None else self._contexts[name]

    def close(self) -> None:
        """Stores the exact state of all contexts. It blocks. Nothing can be sent or received with them afterwards.

        If it runs in another thread than the endpoints, they must be closed before: a request that is received
        meanwhile would be missing in the stored window.
        """
        with self._changing:
            # First: a request that came after its window was read would be missing in the file.
            self._closed = True
        windows = [(context, context.ended()) for context in self._contexts.values()]
        for context, window in windows:
            context.numbers.close(window)
        if self._writer is not None:
            self._writer.shutdown()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
