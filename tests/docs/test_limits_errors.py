"""docs/limits-errors.md has the codes of the errors that a gateway answers with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lamplighter.engine import errors
from lamplighter.gateway.settings import LimitSettings, QuotaSettings
from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "limits-errors.md").read_text()
INTERNAL = {"configuration", "gateway", "payload"}
"""Codes of errors that no request gets."""


def subclasses(error: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    for below in error.__subclasses__():
        yield below
        yield from subclasses(below)


def test_every_code_of_the_engine_is_listed_with_its_status() -> None:
    rows = re.findall(r"^\| (\d{3}.*?) \|", PAGE, re.M)
    for error in subclasses(errors.GatewayError):
        if error.__module__ == errors.__name__ and error.code not in INTERNAL:
            row = next((row for row in rows if f"`{error.code}`" in row), "")
            assert str(error.status) in row, f"{error.code} {error.status}"


def test_every_key_of_limits_and_quotas_is_listed() -> None:
    for table, keys in (("limits.", LimitSettings), ("", QuotaSettings)):
        for key in keys.__struct_fields__:
            assert f"`{table}{key}`" in PAGE, key
