"""MQTT adapter: publishes readings to the gateway as SOSA observations, and sends states to actuators.

overlaps: rules that read a value twice, or feed themselves; discovery: announcements of devices -> proposals (pure);
discovering: hands them to the registry of devices; sender: desired states -> messages; publishing: rows of queries ->
messages; entities: things of the dataset -> Home Assistant's entities (pure); announcer: publishes them, and takes
commands; outward: all that sends; parts: the adapter from its configuration; adapter: wires the parts, and acknowledges
messages after the commit is durable; counters: what it counts of readings; messages: the queue of messages; inbox: a
broker's messages as an iterator; link: a paho client on the loop; connection: the connection of a session, and whether
messages still arrive; retained: what a broker retains, read whole; broker_states: which brokers are connected, as
triples; silence: which devices stopped reporting; subscribed: which adopted devices are read; rebirths: requests to
Sparkplug nodes; state_asks: questions for the states of devices; keep_alives: messages to devices that fall silent
otherwise; sampling: topics that no rule reads; settings: the table ``[mqtt]``; credentials: the files that it names.
"""
