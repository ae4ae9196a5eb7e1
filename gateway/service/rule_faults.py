"""What is wrong with the queries of mapping rules. The adapters leave out a rule with such a fault."""

from __future__ import annotations

from collections.abc import Sequence

from lamplighter.adapters.mapping import PublishRule, ResourceCommandRule
from lamplighter.engine.errors import RequestError
from lamplighter.engine.sparql.requests import subscribable
from lamplighter.gateway.state.applications import near


def query_faults(rules: Sequence[PublishRule]) -> list[str]:
    """What is wrong with the queries of `[[publish]]` rules, with their places."""
    faults = []
    for rule in rules:
        try:
            columns = subscribable(rule.select).columns
        except RequestError as error:
            faults.append(f"{rule.place}: query: {near(error, rule.select, rule.declarations)}")
            continue
        faults += [
            f"{rule.place}: topic = {rule.table.topic!r}: the query does not select ?{name}"
            for name in sorted(rule.variables - set(columns))
        ]
    return faults


def command_faults(rules: Sequence[ResourceCommandRule]) -> list[str]:
    """What is wrong with the queries of `[[command]]` rules, with their places."""
    faults = []
    for rule in rules:
        if rule.select is None:
            continue
        assert rule.table.query is not None
        try:
            columns = subscribable(rule.select).columns
        except RequestError as error:
            faults.append(
                f"{rule.place}: query: {near(error, rule.select, rule.select.removesuffix(rule.table.query))}"
            )
            continue
        missing = sorted(rule.variables - set(columns))
        faults += [f"{rule.place}: query: it does not select ?{name}" for name in missing]
    return faults
