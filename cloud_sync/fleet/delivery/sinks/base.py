"""The interface of a sink, and what sinks share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.engine.client.files import open_file
from lamplighter.engine.errors import ConfigurationError, UpstreamError

P = ParamSpec("P")
R = TypeVar("R")

SECRET_BYTES_MAX = 64 * 1024
# Where systemd puts what a unit's `LoadCredential=` names.
_CREDENTIALS = "CREDENTIALS_DIRECTORY"


class UndeliveredError(UpstreamError):
    """A sink did not accept a notification.

    accepted: how many before it were accepted. permanent: another attempt would have the same end. refused: how many
    from it on have that end, for the same reason. wait_s: how long the peer asks to wait.
    """

    def __init__(
        self, message: str, *, accepted: int = 0, permanent: bool = False, refused: int = 1, wait_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.accepted = accepted
        self.permanent = permanent
        self.refused = refused
        self.wait_s = wait_s


class DeliverySink(Protocol):
    """Where the notifications of one subscription go. One task uses a sink."""

    bounds: ChunkBounds
    """What it takes at once."""
    blocking: bool
    """Whether a delivery occupies a thread."""

    async def deliver(self, notifications: Sequence[MatchNotification]) -> None:
        """Returns when all are accepted, in order. Raises UndeliveredError for the first that is not.

        ConfigurationError and UpstreamError: none is accepted. Every body has been made before.
        """
        ...

    async def close(self) -> None:
        """Closes the connections. Raises nothing."""
        ...


class SinkThreads:
    """A bounded number of threads for what cannot be awaited."""

    def __init__(self, threads_max: int) -> None:
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="sink")

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a function in a thread. If the task is cancelled, it first waits for the function's end."""
        running = asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # otherwise asyncio logs an exception that was never retrieved
            raise

    def close(self) -> None:
        """Waits for the threads."""
        self._pool.shutdown()


def secret(file: str, what: str) -> str:
    """The text of a file with secrets. what: names the setting in errors, such as ``sink alarms: secret_file``.

    file: an absolute path, or a name in systemd's credentials folder. Raises ConfigurationError, also for a
    world-readable file.
    """
    path = Path(file)
    if not path.is_absolute():
        credentials = os.environ.get(_CREDENTIALS)
        if not credentials:
            raise ConfigurationError(
                f"{what}: {file} is the name of a credential of systemd, which gives none here; write a path that "
                "begins with /"
            )
        path = Path(credentials) / file
    try:
        with open_file(path) as opened:
            if os.fstat(opened.fileno()).st_mode & 0o007:
                raise ConfigurationError(f"{path}: the file has secrets and is world-readable; chmod 600 {path}")
            return opened.read(SECRET_BYTES_MAX).decode()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; correct {what}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8; correct {what}") from error
