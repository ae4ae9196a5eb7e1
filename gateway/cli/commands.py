"""Commands on the data folder: `verify`, `log` and `new-epoch`.

They read the data folder, with or without a running gateway, and change nothing in it, except that ``verify --accept``
accepts damage, and `new-epoch` leaves a request for the next start.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lamplighter.cloud_sync.files import check_owner
from lamplighter.cloud_sync.lineage import newest_epoch, request_new_epoch
from lamplighter.engine.change_log import Record, encode
from lamplighter.engine.change_log.rdf_patch import patches
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import confirm, print_json, print_result
from lamplighter.gateway.cli.options import add_confirmation, add_json, add_mode, settings_and_data
from lamplighter.gateway.clock import MachineClock, iso
from lamplighter.gateway.disk import TEMPORARY, Disk
from lamplighter.gateway.history.findings import DataProblem, Report
from lamplighter.gateway.history.names import Names
from lamplighter.gateway.history.records import History
from lamplighter.gateway.history.verification import acceptable, verify
from lamplighter.gateway.log.damage import Acceptance, AcceptedProblem, DamageReport, accept_damage, read_damage
from lamplighter.gateway.log.snapshots import Place, label
from lamplighter.gateway.security.audit import audit
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.texts import printable

TYPES = ("commit", "timer", "cancel", "subscribe", "unsubscribe", "gap")  # the types of records in the log
_SYNTAXES = {".nq": "application/n-quads", ".trig": "application/trig"}


def add_commands(command: Adder) -> None:
    checking = command("verify", _verify)
    checking.add_argument(
        "--accept",
        action="store_true",
        help="accept damage that earlier starts have found, and lasting problems, after the check",
    )
    checking.add_argument("--json", action="store_true", help="print the report as JSON")
    add_confirmation(checking)
    new_epoch = command("new-epoch", _new_epoch)
    new_epoch.add_argument("--reason", default="the data folder was restored", help="for the gap record")
    log = command("log", _show)
    modes = log.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True, dest="mode")

    show = add_mode(modes, "show", "print records in readable form", _show)
    _range(show)
    show.add_argument("--type", help=f"only these types, separated by commas: {', '.join(TYPES)}")
    show.add_argument("--last", type=int, metavar="N", help="only the last N records")
    show.add_argument("--json", action="store_true", help="print the lines of the log unchanged")

    export = add_mode(modes, "export", "export records for other programs", _export)
    export.add_argument("--format", choices=("rdfpatch", "ndjson"), required=True)
    _range(export)
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of standard output")

    restore_at = add_mode(modes, "restore", "write the dataset as of a record to a file", _restore_at)
    restore_at.add_argument(
        "--at", required=True, help="a sequence, epoch/sequence, or a time such as 2026-11-21T10:00:00Z"
    )
    restore_at.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="FILE.nq or FILE.trig")
    add_json(restore_at, "the file, the record and the number of quads")


def _new_epoch(options: argparse.Namespace) -> int:
    _, data = settings_and_data(options)
    check_owner(data, "run it as the user of the gateway")
    try:
        epoch = newest_epoch(data)
        request_new_epoch(data, epoch, options.reason)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or data}: {error.strerror}; name the data folder with --data"
        ) from error
    print(f"the next start ends epoch {epoch}, and begins a new one with a gap record")
    return 0


def _range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="begin", metavar="SEQ", help="the first record, such as 17 or 1/17")
    parser.add_argument("--to", dest="end", metavar="SEQ", help="the last record")


def opened_history(options: argparse.Namespace) -> tuple[History, Settings]:
    """The past of the data folder, and the settings. Raises ConfigurationError."""
    settings, data = settings_and_data(options)
    return History(data, MachineClock(settings.gateway.clock_trusted)), settings


def _say(text: str) -> None:
    print(f"lamplighter: {text}", file=sys.stderr)


# --- verify ---------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    settings, data = settings_and_data(options)
    terminal = sys.stderr.isatty()

    def progress(name: str, done: int, total: int) -> None:
        percent = f"{min(100, 100 * done // max(total, 1)):3} %  " if terminal else ""
        print(f"{percent}{name}", file=sys.stderr)

    report = verify(data, MachineClock(settings.gateway.clock_trusted), progress)
    damage = read_damage(data)
    lasting = [one for one in report.problems if one.is_lasting]
    count = len(report.problems) - (len(lasting) if options.accept else 0)
    if options.json:
        told = report.members()
        told["damage"] = [{"found": one.found, "reason": one.reason} for one in damage]
        if options.accept:
            for problem in lasting:  # shown before the question
                print(f"PROBLEM    {printable(str(problem))}", file=sys.stderr)
            for one in damage:
                print(f"DAMAGE     {printable(one.reason)}", file=sys.stderr)
            if (damage or lasting) and not _accept(options, settings, data, damage, report):
                return 1
            told["accepted"] = len(damage)
            told["accepted_now"] = list(map(str, lasting))
        print_json(told)
        return 1 if count else 0
    span = "" if report.first is None or report.last is None else f", {label(report.first)} to {label(report.last)}"
    print(f"gateway    {printable(report.gateway)}")
    records, segments = count_text(report.records, "record"), count_text(report.segments, "segment")
    print(f"log        {records} in {segments}, {report.sealed} of them sealed{span}")
    print(f"snapshots  {', '.join(map(label, report.snapshots)) or 'none'}")
    print(f"replay     {count_text(report.quads, 'quad')} from {count_text(report.replayed, 'record')}")
    for note in report.notes:
        print(f"note       {printable(note)}")
    for problem in report.problems:
        print(f"PROBLEM    {printable(str(problem))}")
    for one in damage:
        print(f"DAMAGE     {printable(f'{one.found[:19]}Z: ' if one.found else '')}{printable(one.reason)}")
    for known in report.accepted_problems:
        print(f"accepted   {printable(str(known))}; by {printable(known.user)} on {printable(known.accepted[:10])}")
    print(f"verdict    {count_text(len(report.problems), 'problem') if report.problems else 'good'}")
    if options.accept:
        if not damage and not lasting:
            print("there is no damage to accept")
        elif not _accept(options, settings, data, damage, report):
            return 1
        else:
            notices = "; a running gateway notices it at its next health check" if damage else ""
            print(f"accepted {_acceptable_text(damage, lasting)}{notices}")
    elif damage:
        print("accept the damage with `lamplighter verify --accept`; until then the gateway reports it")
    elif lasting:
        print("restore what was lost; or accept that it stays lost with `lamplighter verify --accept`")
    return 1 if count else 0


def _acceptable_text(damage: Sequence[DamageReport], lasting: Sequence[DataProblem]) -> str:
    """``1 report of damage and 2 lasting problems``."""
    reports, problems = count_text(len(damage), "report"), count_text(len(lasting), "lasting problem")
    return " and ".join([f"{reports} of damage"] * bool(damage) + [problems] * bool(lasting))


def _accept(
    options: argparse.Namespace, settings: Settings, data: Path, damage: list[DamageReport], report: Report
) -> bool:
    """Accepts the reports of damage and the lasting problems that were shown. False if the user does not want to.
    Raises ConfigurationError."""
    lasting = [one for one in report.problems if one.is_lasting]
    check_owner(data, f"run it as that user: sudo -u '#{data.stat().st_uid}' lamplighter verify --accept")
    if not confirm(f"Accept {_acceptable_text(damage, lasting)}? What was lost stays lost.", yes=options.yes):
        return False
    user, now = _user(), iso(MachineClock(settings.gateway.clock_trusted).wall())
    # Those that are not found any more were mended.
    problems = report.accepted_problems + [AcceptedProblem(*acceptable(one, data), now, user) for one in lasting]
    try:
        accept_damage(data, Disk(), Acceptance(now, user, damage, problems))
    except OSError as error:
        raise ConfigurationError(f"{data}: {error.strerror}; the damage is not accepted") from error
    audit("damage accepted", reports=len(damage), user=user, data=data, problems=len(lasting))
    return True


def _user() -> str:
    """The name of the user who runs the command, of the one before sudo if it is run with it."""
    try:
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# --- log show -------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    history, settings = opened_history(options)
    types = set(TYPES if options.type is None else options.type.split(","))
    if not types <= set(TYPES):
        raise ConfigurationError(f"--type {options.type}: the types are {', '.join(TYPES)}")
    if options.last is not None and options.last < 1:
        raise ConfigurationError(f"--last {options.last}: it must be 1 or more")
    after, to = _bounds(history, options)

    def selects(record: Record) -> bool:
        return record.type in types

    found: Iterable[Record]
    if options.last is not None:
        found = history.newest(options.last, selects, after, to)
    else:
        found = filter(selects, history.records(after, to))
    names = Names(settings.gateway.base_iri)
    with _output(None) as out:
        for record in found:
            out.write(encode(record) if options.json else names.record(record).encode())
    return 0


def _bounds(history: History, options: argparse.Namespace) -> tuple[Place | None, Place | None]:
    """The range of --from and --to, for `History.records`."""
    after = None
    if options.begin is not None:
        epoch, sequence = history.place(options.begin)
        after = epoch, sequence - 1
    return after, None if options.end is None else history.place(options.end)


# --- log export, log restore ------------------------------------------------------------------------------


def _export(options: argparse.Namespace) -> int:
    history, _ = opened_history(options)
    records = history.records(*_bounds(history, options))
    if options.format == "rdfpatch":
        parts: Iterable[bytes] = (text.encode() for text in patches(records))
    else:
        parts = map(encode, records)
    with _output(options.output, history) as out:
        for part in parts:
            out.write(part)
    return 0


def _restore_at(options: argparse.Namespace) -> int:
    history, _ = opened_history(options)
    media_type = _SYNTAXES.get(options.output.suffix)
    if media_type is None:
        raise ConfigurationError(
            f"{options.output}: its name must end in {' or '.join(_SYNTAXES)}, for N-Quads or TriG"
        )
    found = history.record_of(options.at)
    place = found.place
    if found.doubt:
        _say(f"record {label(place)} is dated {found.ts}, but {found.doubt}")
    replay = history.replay(place, lambda error: _say(str(error)))
    empty = set(replay.engine.store.graphs()) - {quad.g for batch in replay.engine.snapshot() for quad in batch}
    with _output(options.output, history) as out:
        out.write(replay.engine.dump(media_type))
    if empty:
        _say(f"the file leaves out {count_text(len(empty), 'empty named graph')}: the format cannot express any")
    count = replay.engine.quad_count
    value = {"wrote": str(options.output), "record": label(place), "quads": count}
    line = f"wrote {count_text(count, 'quad')} as of record {label(place)} to {options.output}"
    print_result(options, value, line)
    return 0


@contextmanager
def _output(path: Path | None, history: History | None = None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears when it is complete. Raises ConfigurationError."""
    if path is None:
        yield sys.stdout.buffer
        return
    if history is not None and history.data.resolve() in path.resolve().parents:
        raise ConfigurationError(f"{path}: it is in the data folder, where only the gateway writes; name another file")
    disk = Disk()
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as out:
            yield out
            out.flush()
            disk.sync(out.fileno())
        disk.rename(temporary, path)
        disk.sync_folder(path.parent)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name a file that can be written") from error
    finally:
        temporary.unlink(missing_ok=True)
