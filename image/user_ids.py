"""Gives users and groups of a tree the numbers that layer/90-user-ids/ids says, the same in every image.

Packages take the next free number, so another set or order of packages would give others; what is on the data partition
belongs to numbers, and both slots have to mean the same by them.

Use: python3 user_ids.py TREE TABLE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

# Debian's policy: 0 to 99 are the same everywhere, 100 to 999 are taken as packages come.
_TAKEN = range(100, 1000)


class Ids(NamedTuple):
    """By name: the number of each user and of each group."""

    users: dict[str, int]
    groups: dict[str, int]


def table(text: str) -> Ids:
    """The numbers that are wanted. Lines: `user NAME NUMBER` or `group NAME NUMBER`."""
    found = Ids({}, {})
    for line in text.splitlines():
        if words := line.split("#")[0].split():
            kind, name, number = words
            {"user": found.users, "group": found.groups}[kind][name] = int(number)
    for numbers in found:
        assert len(set(numbers.values())) == len(numbers), "two names have one number"
    return found


def present(tree: Path) -> Ids:
    """The numbers that packages have taken."""
    found = Ids({}, {})
    for numbers, file in zip(found, ("etc/passwd", "etc/group"), strict=True):
        for line in (tree / file).read_text().splitlines():
            name, _, number, *_ = line.split(":")
            if int(number) in _TAKEN:
                numbers[name] = int(number)
    return found


def changes(found: Ids, wanted: Ids) -> tuple[dict[int, int], dict[int, int]]:
    """The number that each one becomes, for those that become another. Raises ValueError for names without a number."""
    unknown = sorted({*found.users} - {*wanted.users} | {*found.groups} - {*wanted.groups})
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: users or groups that layer/90-user-ids/ids does not have; add them")
    users, groups = (
        {number: want[name] for name, number in have.items() if want[name] != number}
        for have, want in zip(found, wanted, strict=True)
    )
    return users, groups


def renumber(tree: Path, wanted: Ids) -> None:
    """Changes passwd, group and every file's owner. All at once: what one name leaves, another may take."""
    users, groups = changes(present(tree), wanted)
    if not users and not groups:
        return
    for file in ("passwd", "passwd-", "group", "group-"):
        path = tree / "etc" / file
        if path.exists():
            lines = [line.split(":") for line in path.read_text().splitlines()]
            for fields in lines:
                if file.startswith("passwd"):
                    fields[2:4] = [_renumbered(fields[2], users), _renumbered(fields[3], groups)]
                else:
                    fields[2] = _renumbered(fields[2], groups)
            path.write_text("".join(f"{':'.join(fields)}\n" for fields in lines))
    for folder, folders, files in os.walk(tree):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            status = entry.lstat()
            user, group = users.get(status.st_uid, status.st_uid), groups.get(status.st_gid, status.st_gid)
            if (user, group) != (status.st_uid, status.st_gid):
                os.chown(entry, user, group, follow_symlinks=False)
                if not entry.is_symlink():
                    entry.chmod(status.st_mode & 0o7777)  # another owner takes set-user-id away


def _renumbered(number: str, to: dict[int, int]) -> str:
    return str(to.get(int(number), number))


if __name__ == "__main__":
    try:
        renumber(Path(sys.argv[1]), table(Path(sys.argv[2]).read_text()))
    except ValueError as error:
        sys.exit(f"image: {error}")
