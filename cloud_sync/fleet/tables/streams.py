"""Quads that describe streams -> versions of streams. Pure functions of DataFrames."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F, Window
from lamplighter.cloud_sync.fleet.tables.readings import term
from lamplighter.cloud_sync.fleet.tables.terms import any_number, plain
from lamplighter.ontology import vocabulary as v

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LATITUDE = v.LIGHTING + "hasLatitude"
LONGITUDE = v.LIGHTING + "hasLongitude"

_OF_STREAM = {
    v.MQTT_TOPIC: "topic",
    v.RDFS_LABEL: "label",
    v.HAS_UNIT: "unit",
    v.LIVE_OBSERVATION: "observation",
    v.MADE_BY_SENSOR: "sensor",
    v.OBSERVED_PROPERTY: "property",
    v.HAS_FEATURE_OF_INTEREST: "feature",
}
_OF_OBSERVATION = {predicate: _OF_STREAM[predicate] for predicate in (v.MADE_BY_SENSOR, v.OBSERVED_PROPERTY)}
_OF_OBSERVATION[v.HAS_FEATURE_OF_INTEREST] = "feature"
# predicate -> (attribute, the attribute whose value is the predicate's subject).
_OF_OTHERS = {LATITUDE: ("latitude", "feature"), LONGITUDE: ("longitude", "feature"), v.HOSTS: ("platform", "sensor")}
_OWN = ("sensor", "property", "feature", "unit", "observation", "topic", "label")
_ATTRIBUTES = (*_OWN, *(name for name, _ in _OF_OTHERS.values()))
_NUMBERS = ("latitude", "longitude")
DESCRIBING = (*_OF_STREAM, *_OF_OTHERS)
# An observation in the default graph is the live one of a stream.
CLASSES = (v.STREAM, v.OBSERVATION)
_KEY = ("gw", "stream")
_PLACE = ("epoch", "seq")


def facts(records: DataFrame, *, default_graph_only: bool = False) -> DataFrame:
    """BRONZE -> FACTS: quads that describe streams, as they were added and removed.

    A reading in a graph of its own (model `event`) does not describe a stream.
    """
    none = F.array().cast("ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, g: STRING>>")
    quads = {name: F.coalesce(F.col(name), none) for name in "dak"}
    wanted = [*map(term, DESCRIBING)]

    def describes(quad: Column) -> Column:
        classes = quad["o"].isin(*map(term, CLASSES))
        return quad["p"].isin(*wanted) | ((quad["p"] == term(v.RDF_TYPE)) & classes)

    def of_reading(name: str) -> Column:
        """The graph of the first reading among the quads; an empty text without one."""
        place = F.array_position(F.col(f"{name}.p"), term(v.HAS_SIMPLE_RESULT)) - 1
        return F.coalesce(F.get(F.col(f"{name}.g"), place.cast("int")), F.lit(""))

    named = records.select("gw", "epoch", "seq", "ts", *(column.alias(name) for name, column in quads.items()))
    # Skips most records without a scan of their quads: those that only replace a reading in a graph of its own.
    predicates, graphs = (F.concat(*(F.col(f"{name}.{part}") for name in quads)) for part in "pg")
    elsewhere = F.size(F.array_except(graphs, F.array(*map(of_reading, quads)))) > 0
    likely = named.where(F.arrays_overlap(predicates, F.array(*map(F.lit, [*wanted, term(v.RDF_TYPE)]))) & elsewhere)
    everything = F.concat(*quads)
    own = F.filter(everything, lambda quad: (quad["p"] == term(v.HAS_SIMPLE_RESULT)) & quad["g"].isNotNull())["g"]
    found = likely.select(
        "gw", "epoch", "seq", "ts", own.alias("own"), *(F.filter(name, describes).alias(name) for name in quads)
    )
    where = "g IS NULL" if default_graph_only else "g IS NULL OR NOT array_contains(own, g)"

    def tag_quads(name: str) -> Column:
        added = F.lit(name != "d").alias("added")
        return F.transform(name, lambda quad: F.struct(added, *(quad[part].alias(part) for part in "spog")))

    return (
        found.select("gw", "epoch", "seq", "ts", "own", F.inline(F.concat(*map(tag_quads, quads))))
        .where(where)
        .drop("own")
    )


def versions(facts: DataFrame) -> DataFrame:
    """FACTS, all of them -> STREAMS."""
    own = _own(facts)
    others = _others(facts, own)
    changes = (
        own.select(*_KEY, *_PLACE, "ts", "added", "name", "o")
        .unionByName(others.select(*_KEY, *_PLACE, "ts", "added", F.lit(None).cast("string").alias("name"), "o"))
        .groupBy(*_KEY, *_PLACE)
        .agg(F.max("ts").alias("since"), *(_change(name) for name in (*_OWN, "alive")))
    )
    order = Window.partitionBy(*_KEY).orderBy(*_PLACE)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known = changes.select(
        *_KEY,
        *_PLACE,
        "since",
        *(F.last(name, ignorenulls=True).over(so_far)["value"].alias(name) for name in (*_OWN, "alive")),
    )
    said_of_others = others.groupBy(*_KEY).agg(
        F.sort_array(F.collect_list(F.struct(*_PLACE, "added", "name", "whose", "o"))).alias("others")
    )
    whole = known.join(said_of_others, list(_KEY), "left").select(
        *known.columns, *(_of_other(name, whose).alias(name) for name, whose in _OF_OTHERS.values())
    )
    said = F.struct(*_ATTRIBUTES, "alive")
    changed = whole.withColumn("before", F.lag(said).over(order)).where(~F.col("before").eqNullSafe(said))
    ended = changed.select(
        "*",
        F.lead("epoch").over(order).alias("until_epoch"),
        F.lead("seq").over(order).alias("until_seq"),
        F.lead("since").over(order).alias("until"),
    ).where(F.col("alive").isNotNull())
    values = {name: plain(F.col(name)) for name in _ATTRIBUTES}
    return ended.select(
        "gw",
        plain(F.col("stream")).alias("stream"),
        *(values[name].alias(name) for name in ("sensor", "property", "feature", "platform", "unit")),
        *(values[name].alias(name) for name in ("observation", "topic", "label")),
        *(any_number(values[name]).alias(name) for name in _NUMBERS),
        *_PLACE,
        "since",
        "until_epoch",
        "until_seq",
        "until",
    )


def _own(facts: DataFrame) -> DataFrame:
    """Changes of the attributes of streams: gw, stream, epoch, seq, ts, added, name, o."""
    is_type = (F.col("p") == term(v.RDF_TYPE)) & (F.col("o") == term(v.STREAM))
    told = facts.withColumn("is_stream", F.bool_or(is_type).over(Window.partitionBy("gw", "s")))
    columns = (*_KEY, *_PLACE, "ts", "added", "name", "o")
    direct = (
        told.where("is_stream")
        .select(
            "gw", F.col("s").alias("stream"), *columns[2:6], _name(_OF_STREAM).when(is_type, "alive").alias("name"), "o"
        )
        .where(F.col("name").isNotNull())
    )
    linked = (
        told.where(F.col("p") == term(v.LIVE_OBSERVATION))
        .groupBy("gw", F.col("o").alias("s"))
        .agg(F.max_by(F.struct("s", "is_stream"), F.struct(*_PLACE)).alias("last"))
        .where("last.is_stream")
        .select("gw", "s", F.col("last.s").alias("stream"))
    )
    said = facts.where(F.col("p").isin(*map(term, _OF_OBSERVATION)))
    by_observation = said.select("gw", "s", *_PLACE, "ts", "added", _name(_OF_OBSERVATION).alias("name"), "o").join(
        linked, ["gw", "s"]
    )
    return direct.select(*columns).unionByName(by_observation.select(*columns))


def _others(facts: DataFrame, own: DataFrame) -> DataFrame:
    """Changes of the attributes of features and sensors of streams. whose: which of the two."""
    hosts = F.col("p") == term(v.HOSTS)
    said = facts.where(F.col("p").isin(*map(term, _OF_OTHERS))).select(
        "gw",
        _name({predicate: attribute for predicate, (_, attribute) in _OF_OTHERS.items()}).alias("attribute"),
        F.when(hosts, F.col("o")).otherwise(F.col("s")).alias("whose"),
        *_PLACE,
        "ts",
        "added",
        _name({predicate: name for predicate, (name, _) in _OF_OTHERS.items()}).alias("name"),
        F.when(hosts, F.col("s")).otherwise(F.col("o")).alias("o"),
    )
    attributes = {attribute for _, attribute in _OF_OTHERS.values()}
    pairs = own.where(F.col("name").isin(*sorted(attributes)) & F.col("added")).select(
        "gw", F.col("name").alias("attribute"), F.col("o").alias("whose"), "stream"
    )
    return said.join(pairs.distinct(), ["gw", "attribute", "whose"])


def _name(names: dict[str, str]) -> Column:
    """The attribute of a predicate; null for other predicates."""
    return reduce(lambda chain, one: chain.when(F.col("p") == term(one[0]), one[1]), names.items(), F)


def _of_other(name: str, attribute: str) -> Column:
    """The last known value, up to the row's record, of an attribute of what the row names."""
    place = F.struct(*_PLACE)

    def says(one: Column) -> Column:
        before = F.struct(one["epoch"].alias("epoch"), one["seq"].alias("seq")) <= place
        return (one["name"] == name) & (one["whose"] == F.col(attribute)) & before

    last = F.try_element_at(F.filter("others", says), F.lit(-1))
    return F.when(last["added"], last["o"])


def _change(name: str) -> Column:
    """A record's change of an attribute: a struct with the new value, or with null if removed; null if unchanged."""
    of_it = F.col("name") == name
    put = F.max(F.when(of_it & F.col("added"), F.col("o")))
    gone = F.count_if(of_it & ~F.col("added")) > 0
    return F.when(put.isNotNull() | gone, F.struct(put.alias("value"))).alias(name)
