"""JSON-LD contexts that are known here, so that none is fetched: a document that names another one is refused.

They are those that notifications usually have. Activity Streams is written from the terms of its Recommendation
(Activity Vocabulary, W3C 2017), and schema.org from those of its version 30.0: the names are those of the vocabularies,
and some have a type.
"""

from __future__ import annotations

from typing import Any, Final

from lamplighter.engine.errors import LimitExceededError, UnsupportedRequestError

ACTIVITY_STREAMS: Final = "https://www.w3.org/ns/activitystreams"
LDP: Final = "http://www.w3.org/ns/ldp"
SCHEMA_ORG: Final = "https://schema.org"
# Known contexts that one document may name.
REFERENCES_MAX = 16

_AS = f"{ACTIVITY_STREAMS}#"
_LDP = f"{LDP}#"
_SCHEMA = "http://schema.org/"
_XSD = "http://www.w3.org/2001/XMLSchema#"
_LINKS = (
    *("actor", "attachment", "attributedTo", "audience", "bcc", "bto", "cc", "context", "current", "describes"),
    *("first", "followers", "following", "generator", "href", "icon", "image", "inReplyTo", "instrument", "items"),
    *("last", "liked", "likes", "location", "next", "object", "oneOf", "anyOf", "origin", "outbox", "partOf", "prev"),
    *("preview", "relationship", "replies", "result", "shares", "subject", "tag", "target", "to", "url", "units"),
)
_TIMES = ("deleted", "endTime", "published", "startTime", "updated")
_TYPED = {
    "accuracy": "float",
    "altitude": "float",
    "latitude": "float",
    "longitude": "float",
    "radius": "float",
    "duration": "duration",
    "height": "nonNegativeInteger",
    "startIndex": "nonNegativeInteger",
    "totalItems": "nonNegativeInteger",
    "width": "nonNegativeInteger",
}
_LANGUAGES = ("content", "name", "summary")

_SCHEMA_LINKS = """
    acquireLicensePage actionableFeedbackPolicy afterMedia archivedAt associatedDisease beforeMedia
    benefitsSummaryUrl codeRepository colleague colorSwatch constraintProperty contentUrl correctionsPolicy
    discussionUrl diseasePreventionInfo diseaseSpreadStatistics diversityPolicy diversityStaffingReport
    documentation downloadUrl duringMedia embedUrl ethicsPolicy gameLocation gettingTestedInfo hasGS1DigitalLink
    hasMap hasMolecularFunction healthPlanMarketingUrl image inCodeSet inDefinedTermSet installUrl isBasedOn
    isBasedOnUrl isInvolvedInBiologicalProcess isLocatedInSubcellularLocation isPartOf labelDetails layoutImage
    license logo mainEntityOfPage map maps masthead merchantReturnLink missionCoveragePrioritiesPolicy
    newsUpdatesAndGuidelines noBylinesPolicy originalMediaLink paymentUrl prescribingInfo productReturnLink
    publicTransportClosuresInfo publishingPrinciples quarantineGuidelines relatedLink replyToUrl sameAs
    schoolClosuresInfo screenshot sdLicense season serviceUrl shippingSettingsLink significantLink significantLinks
    speakable target targetUrl thumbnailUrl tourBookingPage trackingUrl travelBans unnamedSourcesPolicy url
    usageInfo verificationFactCheckingPolicy webFeed
"""
_SCHEMA_DATES = """
    applicationStartDate auditDate availabilityEnds availabilityStarts birthDate commentTime dateCreated dateDeleted
    dateIssued dateModified datePosted datePublished dateRead dateVehicleFirstRegistered deathDate dissolutionDate
    endDate exceptDate expectedArrivalFrom expectedArrivalUntil expires foundingDate guidelineDate lastReviewed
    legislationDate legislationDateOfApplicability legislationDateVersion merchantReturnDays modelDate
    observationDate orderDate paymentDueDate previousStartDate priceValidUntil productionDate purchaseDate
    releaseDate scheduledPaymentDate scheduledTime sdDatePublished startDate uploadDate validFrom validThrough
    validUntil vehicleModelDate
"""
_SCHEMA_PREFIXES = {
    "csvw": "http://www.w3.org/ns/csvw#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "dcat": "http://www.w3.org/ns/dcat#",
    "dcmitype": "http://purl.org/dc/dcmitype/",
    "dcterms": "http://purl.org/dc/terms/",
    "doap": "http://usefulinc.com/ns/doap#",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "odrl": "http://www.w3.org/ns/odrl/2/",
    "org": "http://www.w3.org/ns/org#",
    "owl": "http://www.w3.org/2002/07/owl#",
    "prof": "http://www.w3.org/ns/dx/prof/",
    "prov": "http://www.w3.org/ns/prov#",
    "qb": "http://purl.org/linked-data/cube#",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "schema": "http://schema.org/",
    "sh": "http://www.w3.org/ns/shacl#",
    "skos": "http://www.w3.org/2004/02/skos/core#",
    "sosa": "http://www.w3.org/ns/sosa/",
    "ssn": "http://www.w3.org/ns/ssn/",
    "time": "http://www.w3.org/2006/time#",
    "vann": "http://purl.org/vocab/vann/",
    "void": "http://rdfs.org/ns/void#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    "dct": "http://purl.org/dc/terms/",
    "dctype": "http://purl.org/dc/dcmitype/",
    "gs1": "https://ref.gs1.org/voc/",
    "vcard": "http://www.w3.org/2006/vcard/ns#",
    "bibo": "http://purl.org/ontology/bibo/",
    "eli": "http://data.europa.eu/eli/ontology#",
    "hydra": "http://www.w3.org/ns/hydra/core#",
}

_KNOWN: dict[str, dict[str, Any]] = {
    ACTIVITY_STREAMS: {
        "@vocab": _AS,
        "as": _AS,
        "ldp": _LDP,
        "xsd": _XSD,
        "id": "@id",
        "type": "@type",
        "inbox": {"@id": f"{_LDP}inbox", "@type": "@id"},
        **{name: {"@id": _AS + name, "@type": "@id"} for name in _LINKS},
        "orderedItems": {"@id": f"{_AS}items", "@type": "@id", "@container": "@list"},
        **{name: {"@id": _AS + name, "@type": f"{_XSD}dateTime"} for name in _TIMES},
        **{name: {"@id": _AS + name, "@type": _XSD + kind} for name, kind in _TYPED.items()},
        **{f"{name}Map": {"@id": _AS + name, "@container": "@language"} for name in _LANGUAGES},
    },
    LDP: {
        "@vocab": _LDP,
        "ldp": _LDP,
        "id": "@id",
        "type": "@type",
        "contains": {"@id": f"{_LDP}contains", "@type": "@id"},
        "inbox": {"@id": f"{_LDP}inbox", "@type": "@id"},
        "constrainedBy": {"@id": f"{_LDP}constrainedBy", "@type": "@id"},
    },
    SCHEMA_ORG: {
        "@vocab": _SCHEMA,
        **_SCHEMA_PREFIXES,
        "id": "@id",
        "type": "@type",
        **{name: {"@id": _SCHEMA + name, "@type": "@id"} for name in _SCHEMA_LINKS.split()},
        **{name: {"@id": _SCHEMA + name, "@type": f"{_SCHEMA}Date"} for name in _SCHEMA_DATES.split()},
    },
}
_BY_NAME = {name.partition("://")[2]: terms for name, terms in _KNOWN.items()}
# Names of http and https without their ends -> terms.
_BY_NAME["schema.org/docs/jsonldcontext"] = _KNOWN[SCHEMA_ORG]


def with_contexts(document: Any) -> Any:
    """A JSON-LD document in which known contexts stand instead of their names. The argument is not modified.

    Raises UnsupportedRequestError for another context that would have to be fetched, LimitExceededError for too many.
    """
    left = REFERENCES_MAX

    def replace_context(context: Any) -> Any:
        nonlocal left
        if isinstance(context, list):
            return [replace_context(one) for one in context]
        if not isinstance(context, str):
            _check_inline(context)
            return context
        scheme, _, name = context.removesuffix(".jsonld").rstrip("#/").partition("://")
        found = _BY_NAME.get(name) if scheme in ("http", "https") else None
        if found is None:
            raise UnsupportedRequestError(
                f"the context {context[:200]!r} is not known here, and contexts are not fetched; put it into the "
                f"document, or use {' or '.join(_KNOWN)}"
            )
        left -= 1
        if left < 0:
            raise LimitExceededError(f"a document may name {REFERENCES_MAX} contexts")
        return found

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(one) for one in value]
        if isinstance(value, dict):
            return {name: replace_context(one) if name == "@context" else walk(one) for name, one in value.items()}
        return value

    return walk(document)


def _check_inline(context: Any) -> None:
    """Raises UnsupportedRequestError for a context that imports, or contains, one that would be fetched."""
    if isinstance(context, list):
        for one in context:
            _check_inline(one)
    if not isinstance(context, dict):
        return
    for name, value in context.items():
        named = [value] if not isinstance(value, list) else value
        if name == "@import" or (name == "@context" and any(isinstance(one, str) for one in named)):
            raise UnsupportedRequestError(f"{name} in a context would be fetched; put its terms into the document")
        _check_inline(value)
