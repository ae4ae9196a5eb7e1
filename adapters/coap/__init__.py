"""CoAP adapter: keeps each device in the state that the dataset gives for it, and reads sensors.

What it shares with other adapters of resources is in `adapters.resources`. adapter: rules, and the parts below;
settings: the table ``[coap]``; parts: the adapter from its configuration; names: which resource of the dataset a device
is.

For exchanges with devices: endpoint: a UDP socket with the layers of aiocoap, bounded; udp_socket: the socket, also
without IPv6; exchanges: one request to one
device and its whole answer; observations: the state of a resource, by Observe or by polling; blocks: bodies that are
longer than a datagram (pure); freshness: the order and the age of notifications (pure).

Server: server: its socket and its parts; site: each request is checked here; serving: what resources are; callers: who
sends a request; readings: POST and PUT of devices; queries: results of JSAP queries, observed; results: their formats;
observers: who observes, within bounds (pure); answers: blocks, ETag and bounds of what is sent; admission: limits for
sources that have not shown that they receive our answers; server_settings: the table ``[coap.server]``.

For discovery: links: the link format (pure); discovery: links of a device -> the device that is proposed (pure);
discovering: devices that are found, by multicast, by address and by registrations. Resource directory: directory:
registrations of endpoints and lookups (pure); registrations: their triples and their end; directory_site: their paths.

Security (OSCORE): context_files: keys, sender numbers and replay windows on disk; contexts: those of all devices;
secured: protected messages of both directions, loaded with the first key; protection: which messages are protected.
"""
