"""`[[command]]` rules for resources -> what is sent to which resource. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lamplighter.adapters.devices.queried import QueriedRow
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.command_payloads import request_payload
from lamplighter.adapters.mapping.resource_commands import ResourceCommandRule
from lamplighter.adapters.mapping.tables import ResourceCommandTable
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import Term, is_iri, is_literal, lexical


@dataclass(frozen=True)
class BoundCommand:
    """A rule for one resource. resource: its URI in normal form; captures: values of the variables of the templates, by
    name, in the order of the names."""

    rule: ResourceCommandRule
    resource: str
    captures: tuple[tuple[str, str], ...] = ()

    def __hash__(self) -> int:
        return hash((self.rule.place, self.resource, self.captures))

    @property
    def place(self) -> str:
        return self.rule.place

    @property
    def actuator(self) -> str | None:
        return self.rule.actuator

    @property
    def table(self) -> ResourceCommandTable:
        return self.rule.table

    @property
    def condition(self) -> str:
        return self.rule.condition

    @cached_property
    def device(self) -> str:
        """Host, or host and port."""
        return uris.authority(self.resource)

    def body(self, state: Term) -> bytes:
        """Raises PayloadError, whose reason is for people."""
        return request_payload(self.rule, state, self.resource, dict(self.captures))

    def state_uri(self) -> str | None:
        """Where the state is read; None: nowhere. Raises PayloadError."""
        return self.rule.state_uri(dict(self.captures))

    def epoch_uri(self) -> str | None:
        """Raises PayloadError."""
        return self.rule.epoch_uri(dict(self.captures))


@dataclass(frozen=True)
class CommandQuery:
    """A rule with a query. others: it is a setting, for actuators without another rule."""

    rule: ResourceCommandRule
    others: bool = False

    @property
    def place(self) -> str:
        return self.rule.place

    @property
    def query(self) -> str:
        assert self.rule.select is not None
        return self.rule.select

    def check(self, variables: Sequence[str]) -> None:
        """Raises ConfigurationError if the result lacks a variable."""
        missing = [f"?{name}" for name in sorted(self.rule.variables - set(variables))]
        if missing:
            wanted = " and ".join(f"?{name}" for name in sorted(self.rule.variables))
            place = self.place.removeprefix("lamplighter.toml ") if self.others else f"{self.place}: query"
            raise ConfigurationError(
                f"{place}: the result has no variable {', '.join(missing)}; write a SELECT with {wanted}"
            )

    def row(self, row: Mapping[str, Term]) -> QueriedRow[BoundCommand]:
        """What a row (variable -> term, without unbound ones) wants. Raises PayloadError."""
        name = self.rule.state_variable
        for one in ("actuator", name):
            if one not in row:
                raise PayloadError(f"?{one} is unbound")
        actuator, state = row["actuator"], row[name]
        if not is_iri(actuator):
            raise PayloadError(f"?actuator is not an IRI: {actuator}")
        if not is_literal(state):
            raise PayloadError(f"?{name} is not a literal: {state}")
        try:
            lexical(state).encode()
        except UnicodeEncodeError as error:
            raise PayloadError(f"?{name} cannot be written in UTF-8: {error.reason}") from error
        captures = self.rule.captures(row)
        bound = BoundCommand(self.rule, self.rule.uri(captures), tuple(sorted(captures.items())))
        return QueriedRow(actuator, state, bound.captures, bound)


def bound_commands(rules: Sequence[ResourceCommandRule]) -> list[BoundCommand]:
    """The rules without a query."""
    return [BoundCommand(rule, rule.uri({})) for rule in rules if rule.select is None]


def command_queries(rules: Sequence[ResourceCommandRule]) -> list[CommandQuery]:
    return [CommandQuery(rule) for rule in rules if rule.select is not None]
