import re
from pathlib import Path

import pytest
from pyoxigraph import Literal, NamedNode, RdfFormat, Store, parse

from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.ontology import vocabulary
from lamplighter.ontology.vocabulary import GATEWAY, LIGHTING, RDFS, SOSA
from tests.support.places import ROOT
from tests.support.tables import each_row

FILES = {
    LIGHTING: [ROOT / "ontology" / "lighting.ttl"],
    GATEWAY: [ROOT / "ontology" / f"{name}.ttl" for name in ("gateway", "devices", "kinds")],
}
ALL = [file for files in FILES.values() for file in files]
SHAPES = ROOT / "ontology" / "shapes.ttl"

# The terms of SOSA by edition of the SSN ontology; of those that only the 2023 edition has, the most frequent.
# sosa:actuationMadeBy is an erratum of the 2017 text, and no term.
_BOTH = """
    Actuation Actuator ActuatableProperty FeatureOfInterest ObservableProperty Observation Platform Procedure Sample
    Sampler Sampling Sensor
    actsOnProperty hasFeatureOfInterest hasResult hasSample hasSimpleResult hosts isActedOnBy isFeatureOfInterestOf
    isHostedBy isObservedBy isResultOf isSampleOf madeActuation madeByActuator madeBySampler madeBySensor
    madeObservation madeSampling observedProperty observes phenomenonTime resultTime usedProcedure
"""
_ONLY_2017 = "Result"
_ONLY_2023 = """
    ActuationCollection Deployment Execution ObservationCollection Property SamplingCollection Stimulus System
    hasMember hasUltimateFeatureOfInterest
"""
EDITION_2017 = {*_BOTH.split(), *_ONLY_2017.split()}
EDITION_2023 = {*_BOTH.split(), *_ONLY_2023.split()}
SOSA_TERMS_OF_BOTH_EDITIONS = EDITION_2017 & EDITION_2023

OUR_TERMS = sorted(
    value
    for value in vars(vocabulary).values()
    if isinstance(value, str) and value.startswith((LIGHTING, GATEWAY)) and value not in FILES
)


def load(*files: Path) -> Store:
    store = Store()
    for file in files:
        store.load(path=str(file), format=RdfFormat.TURTLE)
    return store


def english(store: Store, subject: str, predicate: str) -> list[str]:
    return [
        quad.object.value
        for quad in store.quads_for_pattern(NamedNode(subject), NamedNode(RDFS + predicate), None)
        if isinstance(quad.object, Literal) and quad.object.language == "en"
    ]


@each_row("term", OUR_TERMS)
def test_term_that_the_code_writes_is_defined(term: str) -> None:
    store = load(*ALL)
    assert len(english(store, term, "label")) == 1
    assert len(english(store, term, "comment")) == 1


def test_some_terms_are_checked() -> None:
    assert {LIGHTING + "presence", LIGHTING + "hasStatus", GATEWAY + "mqttTopic"} <= set(OUR_TERMS)


@pytest.mark.parametrize("namespace", FILES)
def test_each_defined_term_has_one_label_and_one_comment(namespace: str) -> None:
    store = load(*FILES[namespace])
    subjects = {quad.subject.value for quad in store if isinstance(quad.subject, NamedNode)}
    assert len(subjects) > 4
    for subject in subjects:
        assert subject == namespace.rstrip("#") or subject.startswith(namespace)
        assert len(english(store, subject, "label")) == 1, subject
        assert len(english(store, subject, "comment")) == 1, subject


@pytest.mark.parametrize("namespace", FILES)
def test_no_term_of_ours_is_used_undefined(namespace: str) -> None:
    store = load(*ALL, SHAPES)
    used = {
        node.value
        for quad in store
        for node in (quad.subject, quad.predicate, quad.object)
        if isinstance(node, NamedNode) and node.value.startswith(namespace)
    }
    assert used <= {quad.subject.value for quad in store if isinstance(quad.subject, NamedNode)}


def test_ontologies_use_sosa_terms_of_both_editions_only() -> None:
    used = {
        node.value.removeprefix(SOSA)
        for file in [*ALL, SHAPES]
        for triple in parse(path=str(file), format=RdfFormat.TURTLE)
        for node in (triple.subject, triple.predicate, triple.object)
        if isinstance(node, NamedNode) and node.value.startswith(SOSA)
    }
    assert {"Actuator", "Platform", "FeatureOfInterest"} <= used
    assert used - {""} <= SOSA_TERMS_OF_BOTH_EDITIONS


def test_code_uses_sosa_terms_of_both_editions_only() -> None:
    constants = {
        value.removeprefix(SOSA)
        for value in vars(vocabulary).values()
        if isinstance(value, str) and value.startswith(SOSA) and value != SOSA
    }
    spelled = {
        term
        for folder in ("adapters", "apps", "cloud_sync", "demo", "docs", "engine", "gateway", "mapping", "ontology")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".jsap", ".ttl", ".toml", ".md")
        for term in re.findall(r"\bsosa:(\w+)|SOSA \+ \"(\w+)\"", file.read_text(encoding="utf-8"))
        for term in term
        if term
    }
    assert constants and spelled
    assert constants | spelled <= SOSA_TERMS_OF_BOTH_EDITIONS


def test_a_post_hosts_its_lamp_and_is_what_is_observed() -> None:
    store = load(*FILES[LIGHTING])
    assert store.query(
        f"""
        PREFIX rdfs: <{RDFS}> PREFIX sosa: <{SOSA}> PREFIX lighting: <{LIGHTING}>
        ASK {{
          lighting:Post rdfs:subClassOf sosa:Platform, sosa:FeatureOfInterest .
          lighting:Lamp rdfs:subClassOf sosa:Actuator .
          lighting:hasLamp rdfs:subPropertyOf sosa:hosts .
          lighting:presence a sosa:ObservableProperty .
          lighting:temperature a sosa:ObservableProperty .
        }}"""
    )


def test_kinds_are_those_of_the_code() -> None:
    store = load(ROOT / "ontology" / "kinds.ttl")
    types = {
        term: {NamedNode(SOSA + name) for name in names}
        for term, names in ((False, ["ObservableProperty"]), (True, ["ObservableProperty", "ActuatableProperty"]))
    }
    terms = {quad.subject.value.removeprefix(GATEWAY) for quad in store if isinstance(quad.subject, NamedNode)}
    assert terms == set(KINDS)
    for name, kind in KINDS.items():
        node = NamedNode(GATEWAY + name)
        assert english(store, node.value, "label") == [kind.label]
        units = [quad.object for quad in store.quads_for_pattern(node, NamedNode(vocabulary.UCUM_UNIT), None)]
        assert units == ([] if kind.unit is None else [Literal(kind.unit)])
        found = {quad.object for quad in store.quads_for_pattern(node, NamedNode(vocabulary.RDF_TYPE), None)}
        expected = types[kind.acts] - ({NamedNode(SOSA + "ObservableProperty")} if name == "button" else set())
        assert found - {NamedNode("http://www.w3.org/2002/07/owl#NamedIndividual")} == expected, name
