"""IRIs as constants: the terms of SOSA, QUDT and our own two vocabularies that the code writes.

Only terms valid in both the 2017 and the 2023 edition of SOSA are used (design section 9).
"""

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDFS = "http://www.w3.org/2000/01/rdf-schema#"
XSD = "http://www.w3.org/2001/XMLSchema#"
SOSA = "http://www.w3.org/ns/sosa/"
QUDT = "http://qudt.org/schema/qudt/"
UNIT = "http://qudt.org/vocab/unit/"

# The lighting ontology of the benchmark (Roffia 2016, IV.A): `lighting.ttl` beside this file.
LIGHTING = "http://lamplighter.example/ns/lighting#"

# What the gateway needs to know of a device and no standard names: `gateway.ttl` beside this file.
GATEWAY = "http://lamplighter.example/ns/gateway#"

# Prefixes that mapping files and JSAP applications may use without declaring them.
PREFIXES = {
    "rdf": RDF,
    "rdfs": RDFS,
    "xsd": XSD,
    "sosa": SOSA,
    "qudt": QUDT,
    "unit": UNIT,
    "lighting": LIGHTING,
    "gateway": GATEWAY,
}

RDF_TYPE = RDF + "type"
RDFS_LABEL = RDFS + "label"

SENSOR = SOSA + "Sensor"
OBSERVATION = SOSA + "Observation"
ACTUATOR = SOSA + "Actuator"
ACTUATION = SOSA + "Actuation"
PLATFORM = SOSA + "Platform"
OBSERVABLE_PROPERTY = SOSA + "ObservableProperty"
ACTUATABLE_PROPERTY = SOSA + "ActuatableProperty"
FEATURE_OF_INTEREST = SOSA + "FeatureOfInterest"
MADE_BY_SENSOR = SOSA + "madeBySensor"
MADE_BY_ACTUATOR = SOSA + "madeByActuator"
OBSERVED_PROPERTY = SOSA + "observedProperty"
OBSERVES = SOSA + "observes"
HOSTS = SOSA + "hosts"
HAS_FEATURE_OF_INTEREST = SOSA + "hasFeatureOfInterest"
HAS_SIMPLE_RESULT = SOSA + "hasSimpleResult"
RESULT_TIME = SOSA + "resultTime"
HAS_RESULT = SOSA + "hasResult"
HAS_UNIT = QUDT + "hasUnit"
NUMERIC_VALUE = QUDT + "numericValue"
QUANTITY_VALUE = QUDT + "QuantityValue"
UNIT_CLASS = QUDT + "Unit"

PRESENCE = LIGHTING + "presence"
TEMPERATURE = LIGHTING + "temperature"
HAS_LAMP = LIGHTING + "hasLamp"
HAS_STATUS = LIGHTING + "hasStatus"

COAP_RESOURCE = GATEWAY + "coapResource"
COAP_ADDRESS = GATEWAY + "coapAddress"
DEVICE_ADDRESS = GATEWAY + "address"
UNREACHABLE = GATEWAY + "unreachable"
DESIRED_STATE = GATEWAY + "desiredState"
REPORTED_STATE = GATEWAY + "reportedState"
REPORTED_TIME = GATEWAY + "reportedTime"
REFUSED = GATEWAY + "refused"
BY_HAND = GATEWAY + "byHand"
SUBSCRIBED = GATEWAY + "subscribed"
SENT_TIME = GATEWAY + "sentTime"
CAUSE = GATEWAY + "cause"
ANSWER = GATEWAY + "answer"
BY_RULE = GATEWAY + "byRule"
TARGET = GATEWAY + "target"
FOLLOWED = GATEWAY + "followed"
MQTT_TOPIC = GATEWAY + "mqttTopic"
STREAM = GATEWAY + "Stream"
REPORTING_INTERVAL = GATEWAY + "reportingInterval"
LIVE_OBSERVATION = GATEWAY + "liveObservation"
TIME_PROBLEM = GATEWAY + "timeProblem"
NIL_REASON = GATEWAY + "nilReason"
RECEIVED_FROM = GATEWAY + "receivedFrom"
UNKNOWN_UNIT = GATEWAY + "unknownUnit"
BEGINS = GATEWAY + "begins"
ENDS = GATEWAY + "ends"
ON_WEEKDAY = GATEWAY + "onWeekday"
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ACTIVE = GATEWAY + "active"
CHANGES_AT = GATEWAY + "changesAt"
PERIOD_PROBLEM = GATEWAY + "periodProblem"
LOCAL_DATE = GATEWAY + "localDate"
LOCAL_WEEKDAY = GATEWAY + "localWeekday"
DAYLIGHT = GATEWAY + "daylight"
MAPPING = GATEWAY + "Mapping"
RULE = GATEWAY + "rule"
HAS_PROBLEM = GATEWAY + "problem"

DEVICE = GATEWAY + "Device"
AREA = GATEWAY + "Area"
IN_AREA = GATEWAY + "inArea"
MANUFACTURER = GATEWAY + "manufacturer"
MODEL = GATEWAY + "model"
SOURCE = GATEWAY + "source"
THING_ID = GATEWAY + "thingId"
BROKER = GATEWAY + "broker"
MESSAGE_BROKER = GATEWAY + "Broker"
CONNECTED = GATEWAY + "connected"
SINCE = GATEWAY + "since"
ADAPTER = GATEWAY + "Adapter"
COUNTERS = GATEWAY + "counters"
LISTENS_ON = GATEWAY + "listensOn"
HEALTH = GATEWAY + "health"
CONTROLS = GATEWAY + "controls"
MINIMUM = GATEWAY + "minimum"
MAXIMUM = GATEWAY + "maximum"
ADOPTION = GATEWAY + "adoption"
ANNOUNCEMENT = GATEWAY + "announcement"
REVISION = GATEWAY + "revision"
GIVEN_NAME = GATEWAY + "givenName"
GIVEN_AREA = GATEWAY + "givenArea"
ONLINE = GATEWAY + "online"
OF_DEVICE = GATEWAY + "ofDevice"
COMMAND = GATEWAY + "command"
REGISTRATION = GATEWAY + "Registration"
ENDPOINT_NAME = GATEWAY + "endpointName"
SECTOR = GATEWAY + "sector"
COAP_BASE = GATEWAY + "coapBase"
LINKS = GATEWAY + "links"
LIFETIME = GATEWAY + "lifetime"
EXPIRES = GATEWAY + "expires"
PARAMETERS = GATEWAY + "parameters"
REPORTED_PROBLEM = GATEWAY + "ReportedProblem"
REASON = GATEWAY + "reason"
COUNT = GATEWAY + "count"
LAST_SEEN = GATEWAY + "lastSeen"
UCUM_UNIT = GATEWAY + "ucumUnit"


def adapter_iri(base_iri: str, kind: str) -> str:
    """The IRI of an adapter. base_iri: ends with a slash; kind: such as "mqtt"."""
    return f"{base_iri}adapter/{kind}"


def adapters_graph(base_iri: str) -> str:
    """The graph with what adapters say about themselves."""
    return f"{base_iri}graph/adapters"


def broker_iri(base_iri: str, name: str) -> str:
    """The IRI of a broker. base_iri: ends with a slash; name: as in lamplighter.toml."""
    return f"{base_iri}broker/{name}"
