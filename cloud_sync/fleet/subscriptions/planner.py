"""Where a fleet subscription is evaluated, on which gateways, and why. No Spark.

Spark evaluates every subscription over the whole log. One whose matches a gateway's engine has too may also be
evaluated on gateways, which tell them before their segments land.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, fleet_query, required_patterns
from lamplighter.cloud_sync.fleet.subscriptions.index import BranchEntry, entries
from lamplighter.cloud_sync.fleet.subscriptions.matching import FollowedSubscription
from lamplighter.cloud_sync.fleet.subscriptions.pushdown import GatewayQuery, gateway_query, obstacles
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.sparql.algebra import Constant, Part, Variable
from lamplighter.ontology import vocabulary as v

UNTOLD = "it has not been told of the subscription; run `lamplighter-fleet subscriptions push`"
# Of the query for gateways. An order has at most 256 KiB, in JSON.
GATEWAY_QUERY_BYTES_MAX = 128 * 1024
_DESCRIBED = frozenset(
    f"<{iri}>"
    for iri in (
        *(v.MADE_BY_SENSOR, v.OBSERVED_PROPERTY, v.HAS_FEATURE_OF_INTEREST, v.HAS_UNIT, v.HOSTS, v.MQTT_TOPIC),
        *(v.RDFS_LABEL, v.LIVE_OBSERVATION, v.LIGHTING + "hasLatitude", v.LIGHTING + "hasLongitude"),
    )
)


class GatewayPlan(NamedTuple):
    """Whether a gateway tells the matches of its events ahead. reason: why not, "" if it does."""

    gateway: str
    reason: str


@dataclass(frozen=True)
class SubscriptionPlan:
    """How a subscription is evaluated.

    pushed: what gateways evaluate; None if only Spark evaluates it, and then reasons are why. branches: the rows of the
    index.
    """

    record: SubscriptionRecord
    query: FleetQuery
    pushed: GatewayQuery | None
    reasons: tuple[str, ...]
    gateways: tuple[GatewayPlan, ...]
    branches: tuple[BranchEntry, ...]

    @property
    def patterns(self) -> list[list[str]]:
        """For each branch, the triple patterns of which every match uses a triple."""
        return [[_pattern_text(self.query, pattern) for pattern in branch] for branch in required_patterns(self.query)]


def plan(
    record: SubscriptionRecord,
    gateways: Collection[str],
    confirmed: Mapping[str, str],
    others: Sequence[SubscriptionRecord] = (),
) -> SubscriptionPlan:
    """The plan of a subscription. Raises RequestError for a query that is not supported.

    gateways: those that are known. confirmed: for a gateway that was told of this version of the subscription, what
    hinders it, "" if it has confirmed. others: further subscriptions in the index, which affect the choice of keys.
    """
    query = fleet_query(record.query)
    reasons = spark_reasons(record, query)
    pushed = None if reasons else gateway_query(query)
    wanted = [name for name in sorted(gateways) if covers_gateway(record, name)]
    found = [GatewayPlan(name, "; ".join(reasons) or confirmed.get(name, UNTOLD)) for name in wanted]
    followed = [FollowedSubscription(record, query), *_other_subscriptions(record, others)]
    branches = [row for row in entries(followed) if row.subscription == record.id]
    return SubscriptionPlan(record, query, pushed, tuple(reasons), tuple(found), tuple(branches))


def spark_reasons(record: SubscriptionRecord, query: FleetQuery) -> list[str]:
    """Why only Spark evaluates a subscription; empty if gateways may too."""
    found = obstacles(query)
    if record.state != "active":
        found.append(f"it is {record.state}")
    if record.begin == "all":
        found.append("begin = all: a gateway does not have its earlier events")
    described = sorted(
        {part for branch in required_patterns(query) for part in _predicates(query, branch)} & _DESCRIBED
    )
    if found and described:
        found.append(f"completion may be needed: a stream's description, not its events, has {' '.join(described)}")
    if not found and len(gateway_query(query).text.encode()) > GATEWAY_QUERY_BYTES_MAX:
        found.append(f"the query for gateways has more than {GATEWAY_QUERY_BYTES_MAX} bytes")
    return found


def covers_gateway(record: SubscriptionRecord, gateway: str) -> bool:
    """Whether a subscription sees the events of a gateway."""
    return not record.gateways or any(fnmatchcase(gateway, pattern) for pattern in record.gateways)


def _other_subscriptions(
    record: SubscriptionRecord, others: Sequence[SubscriptionRecord]
) -> list[FollowedSubscription]:
    """The other active subscriptions with a query that is supported."""
    found = []
    for other in others:
        if other.id != record.id and other.state == "active":
            try:
                found.append(FollowedSubscription(other, fleet_query(other.query)))
            except GatewayError:
                continue  # `subscriptions match` tells of it
    return found


def _predicates(query: FleetQuery, branch: Sequence[Sequence[Part | None]]) -> set[str]:
    return {_term(query, pattern[1]) for pattern in branch}


def _term(query: FleetQuery, part: Part | None) -> str:
    if isinstance(part, Variable):
        return part.name if part.name.startswith("_:") else f"?{part.name}"
    return query.constants[part.number] if isinstance(part, Constant) else part or ""


def _pattern_text(query: FleetQuery, pattern: Sequence[Part | None]) -> str:
    triple = " ".join(_term(query, part) for part in pattern[:3])
    return triple if pattern[3] is None else f"GRAPH {_term(query, pattern[3])} {{ {triple} }}"
