"""A house with one post and two streams for tests of the SensorThings API: one live observation, and two events."""

PREFIXES = """
PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX gateway: <http://lamplighter.example/ns/gateway#>
PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>
PREFIX qudt: <http://qudt.org/schema/qudt/> PREFIX unit: <http://qudt.org/vocab/unit/>
PREFIX lighting: <http://lamplighter.example/ns/lighting#> PREFIX geo: <http://www.opengis.net/ont/geosparql#>
BASE <http://lamplighter.local/>
"""

SMALL_HOUSE = f"""{PREFIXES}
INSERT DATA {{
  <platform/1> a sosa:Platform ; rdfs:label "Post one" ; sosa:hosts <sensor/1>, <sensor/2> .
  <sensor/1> a sosa:Sensor ; sosa:observes <property/temperature> .
  <sensor/2> a sosa:Sensor ; sosa:observes <property/presence> .
  <property/temperature> a sosa:ObservableProperty ; rdfs:label "temperature"@en, "Temperatur"@de .
  <property/presence> a sosa:ObservableProperty .
  <post/1> a sosa:FeatureOfInterest ; lighting:hasLatitude 44.5 ; lighting:hasLongitude 11.25 .
  <stream/1> a gateway:Stream ; gateway:mqttTopic "a/b" ; gateway:liveObservation <observation/1> ;
    qudt:hasUnit unit:DEG_C .
  <observation/1> a sosa:Observation ; sosa:madeBySensor <sensor/1> ; sosa:observedProperty <property/temperature> ;
    sosa:hasFeatureOfInterest <post/1> ; sosa:hasSimpleResult 20.50 ;
    sosa:resultTime "2026-11-26T10:00:00Z"^^xsd:dateTime .
  <stream/2> a gateway:Stream ; gateway:mqttTopic "a/c" ; sosa:madeBySensor <sensor/2> ;
    sosa:observedProperty <property/presence> ; sosa:hasFeatureOfInterest <post/1> .
  GRAPH <stream/2/2026-11-26T10:00:00.000000Z/0> {{
    <observation/2/first> a sosa:Observation ; sosa:madeBySensor <sensor/2> ;
      sosa:observedProperty <property/presence> ; sosa:hasFeatureOfInterest <post/1> ;
      sosa:hasSimpleResult true ; sosa:resultTime "2026-11-26T10:00:00Z"^^xsd:dateTime .
    <stream/2> gateway:liveObservation <observation/2/first> }}
  GRAPH <stream/2/2026-11-26T11:00:00.000000Z/0> {{
    <observation/2/second> a sosa:Observation ; sosa:madeBySensor <sensor/2> ;
      sosa:observedProperty <property/presence> ; sosa:hasFeatureOfInterest <post/1> ;
      sosa:hasSimpleResult false ; sosa:resultTime "2026-11-26T11:00:00Z"^^xsd:dateTime .
    <stream/2> gateway:liveObservation <observation/2/second> }}
}}"""
