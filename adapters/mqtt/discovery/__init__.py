"""Discovery: what devices announce at a broker -> records of devices. Pure: no network, no clock.

A module a format: homeassistant, zigbee2mqtt, tasmota, shelly, sparkplug, homie4, homie5, chirpstack, thethings,
rtl433, theengs, wled, opendtu, ahoydtu, evcc, victron. shelly_components: of later devices; homie_properties: of both
versions; learned: devices that are learnt from JSON messages, topic_trees: from topics; measured: what usual names of
values mean. Of Home Assistant's: homeassistant_keys: what keys are called and mean; homeassistant_templates: Jinja;
homeassistant_entities: what entities have in common; homeassistant_components, homeassistant_lights,
homeassistant_appliances: each kind of entity; light_templates: commands of lights. declared: which keys of an
announcement are read, and what is left out; announced: what a format's functions return; announcements: all
announcements of all brokers, joined to devices, each topic and identity with one owner.
"""
