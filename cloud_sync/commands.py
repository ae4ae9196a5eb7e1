"""`lamplighter sync run|status|resend`; and `python -m lamplighter.cloud_sync`, the same in a light process."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.destinations import Destination, destination
from lamplighter.cloud_sync.files import check_owner
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.cloud_sync.settings import GatewayKeys, SyncSettings, clock_trusted, storage_options
from lamplighter.cloud_sync.shipper import Shipper, alone, gateway_identity
from lamplighter.cloud_sync.status import Status, age, read_status, rewind, sealed_segments, with_lag
from lamplighter.engine.client.files import read_text, toml_document
from lamplighter.engine.client.places import with_absolute_places, without_credentials
from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.engine.tables import count_text

_PLACE = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,11})")


@dataclass(frozen=True)
class Context:
    """Input of the commands. folder: that of the configuration file; trusted: whether the wall clock is trusted."""

    settings: SyncSettings
    data: Path
    folder: Path
    trusted: Callable[[], bool]


def add_modes(parser: argparse.ArgumentParser, context: Callable[[argparse.Namespace], Context]) -> None:
    """Declares `run`, `status` and `resend` below a command, each with its function as `command`."""
    modes = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True, dest="mode")

    def mode(name: str, text: str, function: Callable[[argparse.Namespace, Context], int]) -> argparse.ArgumentParser:
        one: argparse.ArgumentParser = modes.add_parser(name, help=text, description=text)
        for option in ("--config", "--data"):  # also accepted before the subcommand
            one.add_argument(option, type=Path, default=argparse.SUPPRESS, help="as for all commands")
        one.set_defaults(command=lambda options: function(options, context(options)))
        return one

    run = mode("run", "ship sealed segments and execute orders, and repeat", _run_sync)
    run.add_argument("--once", action="store_true", help="ship what is sealed now, execute waiting orders, and exit")
    status = mode("status", "show the progress of shipping", _status)
    status.add_argument("--json", action="store_true", help="print sync.json with the current lag")
    resend = mode("resend", "ship records once more, to a destination that does not have them", _resend)
    resend.add_argument(
        "--from", dest="first", metavar="EPOCH/SEQUENCE", required=True, help="the first record, such as 1/1"
    )
    resend.add_argument("--json", action="store_true", help="print sync.json with the current lag")


def _run_sync(options: argparse.Namespace, context: Context) -> int:
    settings = context.settings
    if not settings.destination:
        raise ConfigurationError("sync.destination is empty; name a folder or a URL in lamplighter.toml")
    check_owner(context.data, "`systemctl start lamplighter-sync` ships now")
    clock = PaceClock(trusted=context.trusted)
    works = [RepeatedWork(settings.interval_s, partial(_ship, context, clock, tell=options.once), vital=True)]
    if settings.orders.key_file:
        works.insert(0, RepeatedWork(settings.orders.interval_s, partial(_orders, context, clock)))
    with alone(context.data):
        while True:
            failed = [work for work in works if work.left_s <= 0 and not work.succeeds()]
            if options.once:
                return 2 if failed else 0
            pause_s = min(work.left_s for work in works)
            clock.sleep(pause_s)
            for work in works:
                work.left_s -= pause_s


@dataclass
class RepeatedWork:
    """What is repeated every interval_s seconds. vital: whether an error of the settings ends the process."""

    interval_s: int
    once: Callable[[], None]
    vital: bool = False
    left_s: int = 0
    told: str = ""

    def succeeds(self) -> bool:
        """Does it once. Prints an error, and returns False."""
        self.left_s = self.interval_s
        try:
            self.once()
        except GatewayError as error:
            if self.vital and isinstance(error, ConfigurationError):
                raise
            if self.vital or str(error) != self.told:
                print(f"lamplighter: {error}", file=sys.stderr, flush=True)
            self.told = str(error)
            return False
        self.told = ""
        return True


def _ship(context: Context, clock: PaceClock, *, tell: bool) -> None:
    with _open_destination(context) as to:
        status = Shipper(context.data, to, context.settings, clock).run()
    if tell:
        print(_summary(status))


def _orders(context: Context, clock: PaceClock) -> None:
    from lamplighter.cloud_sync.order_client import run_orders  # the shipper alone needs none of what it loads

    with _open_destination(context) as to:
        run_orders(context.data, to, gateway_identity(context.data), context.settings.orders, context.folder, clock)


@contextmanager
def _open_destination(context: Context) -> Iterator[Destination]:
    """The destination."""
    # Each round opens a new connection, because one may break between rounds.
    settings = context.settings
    with closing(destination(settings.destination, storage_options(settings.options_file, context.folder))) as to:
        yield to


def _summary(status: Status) -> str:
    lag = f"{count_text(status.lag_segments, 'segment')} with {count_text(status.lag_records, 'record')}"
    return f"sent up to {_place(status.sent)}, confirmed up to {_place(status.confirmed)}; {lag} unconfirmed"


def _place(place: tuple[int, int]) -> str:
    if place[1]:
        return "/".join(map(str, place))
    return "nothing" if place[0] <= 1 else f"the end of epoch {place[0] - 1}"


def _status(options: argparse.Namespace, context: Context) -> int:
    try:
        status = with_lag(read_status(context.data), context.data)
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}; set --data to the data folder") from error
    orders = _order_rows(context)
    if options.json:
        print(json.dumps(msgspec.to_builtins(status) | ({"orders": dict(orders)} if orders else {})))
        return 0
    now = time.time()
    snapshot = status.snapshot
    records, size = count_text(status.lag_records, "record"), count_text(status.lag_bytes, "byte")
    rows = [
        ("destination", status.destination or context.settings.destination or "none: sync.destination is empty"),
        ("sent", f"up to {_place(status.sent)}"),
        ("confirmed", f"up to {_place(status.confirmed)}"),
        ("lag", f"{records}, {size} in {count_text(status.lag_segments, 'segment')}"),
        ("oldest", "-" if status.oldest_at is None else f"sealed {age(now - status.oldest_at)} ago"),
        ("snapshot", "none" if snapshot is None else _snapshot(snapshot.place, snapshot.landed, now - snapshot.at)),
        ("last success", "never" if status.last_success is None else f"{age(now - status.last_success)} ago"),
    ]
    if status.last_error:
        rows.append(("last error", f"{age(now - (status.last_error_at or now))} ago: {status.last_error}"))
    if status.refused:
        rows.append(("refused", f"{count_text(status.refused, 'segment')} in the collector's quarantine"))
    if status.problem:
        rows.append(("problem", f"{age(now - (status.problem_at or now))} ago: {status.problem}"))
    for name, value in [*rows, *orders]:
        print(f"{name:<14}{value}")
    return 0


def _resend(options: argparse.Namespace, context: Context) -> int:
    found = _PLACE.fullmatch(options.first)
    if found is None:
        raise ConfigurationError(f"--from {options.first}: write the place of a record, such as 1/1")
    first = int(found[1]), int(found[2])
    check_owner(context.data, "run this as that user")
    with alone(context.data):
        try:
            segments = sealed_segments(context.data)
            if not segments or first > segments[-1].end:
                newest = _place(segments[-1].end) if segments else "nothing"
                raise ConfigurationError(f"--from {options.first}: the log has sealed records up to {newest}")
            status = rewind(context.data, first)
        except OSError as error:
            raise ConfigurationError(f"{error.filename}: {error.strerror}; check the disk") from error
    if options.json:
        print(json.dumps(msgspec.to_builtins(status)))
        return 0
    oldest = segments[0].name.epoch, segments[0].name.first
    lag = f"{count_text(status.lag_segments, 'segment')} with {count_text(status.lag_records, 'record')}"
    print(f"the next run ships {lag}")
    if first < oldest:
        print(f"the log begins with {_place(oldest)}; earlier records were removed, a snapshot is shipped for them")
    return 0


def _order_rows(context: Context) -> list[tuple[str, str]]:
    """What `orders.json` tells; [] if orders are not read."""
    if not context.settings.orders.key_file:
        return []
    from lamplighter.cloud_sync.order_intake import read_order_state

    state = read_order_state(context.data)
    number = f"up to {state.number}" if state.number else "none"
    rows = [
        ("orders", f"{number}; {state.done} done, {state.refused} refused, {state.missing} missing"),
        ("subscribed", f"{count_text(len(state.subscriptions), 'subscription')} of the fleet"),
    ]
    more = [("order waits", state.waits), ("last refusal", state.last_refusal), ("order error", state.error)]
    return rows + [(name, value) for name, value in more if value]


def _snapshot(place: tuple[int, int], landed: bool, age_s: float) -> str:
    return f"{_place(place)}, sent {age(age_s)} ago, {'confirmed' if landed else 'not confirmed yet'}"


# --- the light process ------------------------------------------------------------------------------------


def light_context(options: argparse.Namespace) -> Context:
    """The context from the keys of lamplighter.toml that shipping needs. The gateway checks the other keys.

    Raises ConfigurationError.
    """
    import tomllib

    config: Path | None = getattr(options, "config", None)
    if config is None and Path("lamplighter.toml").exists():
        config = Path("lamplighter.toml")
    try:
        read = {} if config is None else toml_document(read_text(config))
        document = msgspec.convert(read, _Document)
    except OSError as error:
        raise ConfigurationError(f"{config}: {error.strerror}; set --config to another file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{config}: not TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{config}: {str(error).replace('$.', '')}") from error
    folder = config.parent if config is not None else Path()
    document, faults = with_absolute_places(document, folder)
    if faults:
        refused = "\n".join(f"{config}: {'.'.join(names)}: {what}" for names, what in faults)
        raise ConfigurationError(without_credentials(refused, read))
    data = getattr(options, "data", None) or folder / document.gateway.data
    return Context(document.sync, data, folder, partial(clock_trusted, document.gateway.clock_trusted))


class _Document(msgspec.Struct, frozen=True):
    """What the shipper reads of the file; other tables and keys are the gateway's to check."""

    gateway: GatewayKeys = GatewayKeys()
    sync: SyncSettings = SyncSettings()
