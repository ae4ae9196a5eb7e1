"""Histories of one gateway: which one a segment or a snapshot continues.

A card or a machine that is put back to an older state, or copied, writes other records under sequences that exist
already. Then one gateway has two histories. Each has a name of its own in the lake: the first has the gateway's, the
others are `<gateway>~2`, `<gateway>~3`. A later history shares the records up to its fork with its parent, and only the
records behind the fork land under its name. So no table mixes two histories.

Each epoch has a random id, which the first record of a segment names: two lives that begin an epoch of the same number
are two, also if nothing else is left to compare. Epochs of earlier versions have none, which proves nothing.

A segment lands only in a history that it provably continues: it has records that have landed there, or its seal names
the hash of the segment before it there, or the seal behind it names its own. Any other one waits in quarantine, unless
the gateway has one history, or one with this epoch by its id, nothing in quarantine may begin another, and what is
before the segment may never come: the gateway has said so, or what came is damaged, and the seals of the damaged
segments prove the same. Until an undamaged one has come, other segments with its records wait.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import msgspec

from lamplighter.cloud_sync.fleet.collection.ledger import LogHistory
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.collection.segment_check import (
    CHAIN,
    CONFLICT,
    DAMAGED,
    SEQUENCE_MAX,
    Bad,
    Bounds,
    CheckedSegment,
    CheckedSnapshot,
    lines,
    lines_in,
    sealed_range,
    without,
)
from lamplighter.cloud_sync.fleet.lake.landed_segments import LandedSegments
from lamplighter.engine.change_log import Seal, check, decode, encode

# Histories of one gateway. More are not forks of a gateway, but somebody who writes there.
HISTORIES_MAX = 16
_HEAD_BYTES = 4096


class Continued(NamedTuple):
    """The history that a segment continues. fork: epoch and sequence of the last record that it shares with that
    history, if it begins a new one; None if it does not."""

    history: LogHistory
    fork: tuple[int, int] | None = None


class _Comparison(NamedTuple):
    """A segment beside the landed records of a history. differing: epoch and sequence of the first record in which they
    differ; agreed: whether they have an equal record before it; told: how they differ."""

    differing: tuple[int, int] | None
    agreed: bool
    told: str = ""


class Histories:
    """Assigns segments and snapshots to histories."""

    def __init__(self, manifest: Manifest, segments: LandedSegments, bounds: Bounds) -> None:
        self._manifest = manifest
        self._segments = segments
        self._bounds = bounds

    def continued_by(self, segment: CheckedSegment, file: Path) -> Continued:
        """The history of a segment. Raises Bad if it cannot be told, or not yet."""
        seal = segment.seal
        known = self._manifest.histories(seal.gw)
        compared = [(one, self._comparison(one, segment, file)) for one in known]
        fitting = [(one, found) for one, found in compared if found.differing is None]
        proven = [one for one, found in compared if found.agreed or self._manifest.is_linked(one, seal)]
        only = None if proven else self._only_possible(segment, known)
        if only is not None and (self._is_behind_break(segment, only) or not self._may_begin(segment, only)):
            only = None
        for one in proven if only is None else [only]:
            if place := self._hole_of_damage(one, seal):
                raise Bad(f"it has records of {place}, which is damaged and behind which {one.name} continues", CHAIN)
        for one, _ in fitting:
            if one in proven or one == only:
                return Continued(one)
        differing = [(one, found) for one, found in compared if found.differing is not None]
        if not differing:
            raise Bad(f"{self._proof_text(segment)} has not landed", CHAIN)
        anchored = [pair for pair in differing if pair[0] in proven]
        if not anchored and not fitting and (seal.epoch, seal.first) == (1, 1):
            anchored = differing  # another one from the beginning
        # Those that part from it where it parts from an ancestor differ there too.
        parent, found = max(anchored or differing, key=lambda pair: pair[1].differing or (0, 0))
        assert found.differing is not None
        epoch, seq = found.differing
        told = f"record {epoch}/{seq} {found.told}"
        if not anchored:
            raise Bad(f"{told}; {self._proof_text(segment)} has not landed", CHAIN)
        if len(known) >= HISTORIES_MAX:
            raise Bad(f"{told}, and {seal.gw} has {len(known)} histories already; check who writes there", CONFLICT)
        return Continued(parent, (epoch, seq - 1))

    def _only_possible(self, segment: CheckedSegment, known: list[LogHistory]) -> LogHistory | None:
        """The only history that a segment may continue without a proof: the one with the same epoch by its id, or the
        only one of its gateway, unless that has another epoch of this number. None if there is none or several."""
        ids = {one.name: self._manifest.epoch_id(one, segment.seal.epoch) for one in known}
        same = [one for one in known if segment.epoch_id and ids[one.name] == segment.epoch_id]
        possible = same or [one for one in known if not (segment.epoch_id and ids[one.name])]
        return possible[0] if len(possible) == 1 and (same or len(known) == 1) else None

    def _is_other_epoch(self, history: LogHistory, epoch: int, epoch_id: str) -> bool:
        """Whether a history has another epoch of this number."""
        return bool(epoch_id) and self._manifest.epoch_id(history, epoch) not in ("", epoch_id)

    def _proof_text(self, segment: CheckedSegment) -> str:
        seal = segment.seal
        return f"nothing proves yet which history of {seal.gw} it continues: the segment before it, {seal.previous},"

    def of_snapshot(self, snapshot: CheckedSnapshot) -> LogHistory:
        """The history of a snapshot: the one with its record. Raises Bad if it cannot be told yet."""
        seal = snapshot.seal
        known = self._manifest.histories(seal.gw)
        known = [one for one in known if not self._is_other_epoch(one, seal.epoch, seal.epoch_id)]
        if not known:
            raise Bad(f"epoch {seal.epoch} of it has landed in no history of {seal.gw}, only another epoch", CHAIN)
        hashes = {one.name: self._record_hash(one, seal.epoch, seal.seq) for one in known}
        if seal.record:
            for one in known:
                if hashes[one.name] == seal.record:
                    return one
            if not any(hashes.values()) and self._is_lost(known[-1], seal.epoch, seal.seq) and len(known) == 1:
                return known[0]
            raise Bad(f"record {seal.epoch}/{seal.seq}, of which it is, has not landed", CHAIN)
        # An earlier version of the gateway has sent it, which names no record.
        having = [one for one in known if hashes[one.name] is not None]
        if len(known) == 1 or len(set(hashes.values()) - {None}) == 1:
            return (having or known)[0]
        raise Bad(f"{seal.gw} has {len(known)} histories, and nothing proves of which one it is", CHAIN)

    def _comparison(self, history: LogHistory, segment: CheckedSegment, file: Path) -> _Comparison:
        seal, agreed = segment.seal, False
        for epoch, seq, gap in segment.gaps[:1]:
            # A segment that begins an epoch says where the last one ended.
            later = seq == 1 and gap.last is None
            if later and self._manifest.landed_in(history, gap.epoch, gap.first, SEQUENCE_MAX):
                return _Comparison(
                    (gap.epoch, gap.first), False, f"has landed, and {epoch}/1 says that it is not there"
                )
        if self._is_other_epoch(history, seal.epoch, segment.epoch_id):
            return _Comparison((seal.epoch, 1), False, f"is of another epoch {seal.epoch} than the one that has landed")
        for landed, (_, last) in self._manifest.landed_in(history, seal.epoch, seal.first, seal.last):
            theirs = self._segments.open(landed.segment)
            if theirs is None:
                agreed = True  # retention has removed it, and its records must not come back
                continue
            with theirs:
                mine = zip(itertools.count(seal.first), lines(file, self._bounds), strict=False)
                kept = itertools.islice(lines_in(theirs, self._bounds), last - landed.first + 1)
                own = (rename_line(line, landed.gw, seal.gw) for line in kept)
                differing, equal = _differing(mine, zip(itertools.count(landed.first), own, strict=False))
            agreed = agreed or equal
            if differing is not None:
                told = f"differs from the one that has landed from {landed.source}"
                return _Comparison((seal.epoch, differing), agreed, told)
        end = self._manifest.end_of_epoch(history, seal.epoch)
        if end is not None and seal.last >= end:
            return _Comparison((seal.epoch, max(end, seal.first)), agreed, "is behind the end of its epoch")
        return _Comparison(None, agreed)

    def _may_begin(self, segment: CheckedSegment, main: LogHistory) -> bool:
        """Whether a segment may land in the only possible history, although what is before it has not landed."""
        seal = segment.seal
        newest = self._manifest.newest_place(main.name)
        if newest is None:
            kept = (one for one in self._manifest.quarantined_objects(seal.gw) if one.kind != DAMAGED)
            ranges = (sealed_range(one.seal, seal.gw) for one in kept)
            return not any(one and (one.epoch, one.first) < (seal.epoch, seal.first) for one in ranges)
        if seal.previous is None:
            return True
        if self._manifest.landed_in(main, seal.epoch, seal.first - 1, seal.first - 1):
            return True  # `Manifest.broken_chain` compares the hashes, if both are known
        # Lost records that have landed are those of another card.
        lost = [gap for _, _, gap in segment.gaps] + self._manifest.claims(seal.gw)
        if any(
            gap.epoch == seal.epoch
            and gap.last is not None
            and gap.first <= max(newest[1] + 1 if newest[0] == seal.epoch else 1, 1)
            and gap.last >= seal.first - 1
            and not self._manifest.landed_in(main, gap.epoch, gap.first, gap.last)
            for gap in lost
        ):
            return True
        return self._is_behind_damage(main, seal)

    def _is_behind_damage(self, history: LogHistory, seal: Seal) -> bool:
        """Whether only damaged segments are between a segment and what has landed of a history: their seals name what
        is before them, and what they have is not there in another form."""
        # They may be damaged on the gateway: then they are all that it has, and the rest must not wait for ever.
        damaged = self._seals_of_damage(seal.gw)
        while (before := damaged.pop(seal.previous or "", None)) is not None:
            if (before.epoch, before.last) != (seal.epoch, seal.first - 1) and seal.first != 1:
                return False
            if self._manifest.landed_in(history, before.epoch, before.first, before.last):
                return False
            if self._manifest.has_next(history, before.sha256):
                return False  # another one follows it
            if before.first == 1 and before.epoch > 1:
                return False  # it says where the epoch before it has ended
            if before.previous is None or self._manifest.is_linked(history, before):
                return True
            seal = before
        return False

    def _hole_of_damage(self, history: LogHistory, seal: Seal) -> str:
        """The place of a damaged segment behind which a history has landed, and whose records have not, if another one
        has records of it or follows the same one; "" if there is none."""
        damaged = self._seals_of_damage(seal.gw)
        damaged.pop(seal.sha256, None)
        following = {one.previous: one.sha256 for one in damaged.values()}
        for one in damaged.values():
            first, last = max(one.first, seal.first), min(one.last, seal.last)
            if one.previous is not None and one.previous == seal.previous:
                first, last = one.first, one.last  # only one of both follows that one, also if they are of two epochs
            elif one.epoch != seal.epoch or first > last:
                continue
            landed = self._manifest.landed_in(history, one.epoch, first, last)
            if not without((first, last), [part for _, part in landed]):
                continue
            behind = one.sha256
            for _ in damaged:
                if self._manifest.has_next(history, behind):
                    return f"{one.epoch}/{one.first}-{one.last}"
                behind = following.get(behind, "")
        return ""

    def _seals_of_damage(self, gw: str) -> dict[str, Seal]:
        """The seals of damaged segments, by the hash of what was sealed."""
        kept = self._manifest.quarantined_objects(gw, DAMAGED)
        sealed = (sealed_range(one.seal, gw) for one in kept)
        return {one.sha256: one for one in sealed if one is not None}

    def _is_behind_break(self, segment: CheckedSegment, main: LogHistory) -> bool:
        """Whether something in quarantine may begin another history before a segment, which would continue main."""
        seal = segment.seal
        for one in self._manifest.quarantined_objects(seal.gw):
            other = sealed_range(one.seal, seal.gw)
            if other is None or one.sha256 == seal.sha256:
                continue
            before = (other.epoch, other.first) <= (seal.epoch, seal.first)
            waits = one.kind in (CHAIN, CONFLICT) or other.sha256 == seal.previous
            # One that has records that have landed: are they the same?
            if before and waits and self._manifest.landed_in(main, other.epoch, other.first, other.last):
                return True
        return False

    def _is_lost(self, history: LogHistory, epoch: int, seq: int) -> bool:
        return any(
            gap.said and gap.epoch == epoch and gap.first <= seq and (gap.last is None or seq <= gap.last)
            for gap in self._manifest.gaps(history.name)
        )

    def _record_hash(self, history: LogHistory, epoch: int, seq: int) -> str | None:
        """The hash of a landed record as its gateway wrote it; None if it has not landed, or is removed."""
        for landed, _ in self._manifest.landed_in(history, epoch, seq, seq):
            file = self._segments.open(landed.segment)
            if file is not None:
                with file:
                    line = next(itertools.islice(lines_in(file, self._bounds), seq - landed.first, None))
                return hashlib.sha256(rename_line(line, landed.gw, history.gateway)).hexdigest()
        return None


def rename_line(line: bytes, old: str, new: str) -> bytes:
    """A line with the name of another history of its gateway, and its checksum."""
    if old == new:
        return line
    body, member = check(line), b',"gw":"%s",'
    found = body.find(member % old.encode(), 0, _HEAD_BYTES)
    type_ = body.find(b'"type":"')
    if 0 <= type_ < found and body.find(b'"', type_ + 8) == found - 1:
        end = found + len(member % old.encode())
        body = body[:found] + member % new.encode() + body[end:]
        return b'%s,"crc":"%08x"}' % (body, google_crc32c.value(body))
    # Another program has written the members in another order.
    return encode(msgspec.structs.replace(decode(line), gw=new)).removesuffix(b"\n")


def rename_lines(content: Iterable[bytes], old: str, new: str) -> Iterator[bytes]:
    return (rename_line(line, old, new) for line in content)


def _differing(mine: Iterator[tuple[int, bytes]], theirs: Iterator[tuple[int, bytes]]) -> tuple[int | None, bool]:
    """The first sequence under which both have a line but the lines differ, and whether they have an equal one before.

    Both ascend by one.
    """
    here, there, equal = next(mine, None), next(theirs, None), False
    while here is not None and there is not None:
        if here[0] < there[0]:
            here = next(mine, None)
        elif here[0] > there[0]:
            there = next(theirs, None)
        elif here[1] != there[1]:
            return here[0], equal
        else:
            here, there, equal = next(mine, None), next(theirs, None), True
    return None, equal
