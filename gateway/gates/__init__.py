"""Gates: where clients connect.

opening: which listeners are open; protection_check: their protection and paths; listeners: TCP, TLS and Unix
sockets; websocket: the SEPA protocol, and disconnection of slow clients; outbox: bounded queue of messages to one
client; bounded_sockets: bounds on unread input; sinks: subscriptions whose clients read SE messages; http: SPARQL
Protocol, Graph Store Protocol, operations; local_call: commands on the same machine; event_streams: subscriptions as
Server-Sent Events.
apis: further standards, each a room: sse: Server-Sent Events; mcp: Model Context Protocol; webhooks: notifications that
are POSTed; ldn: Linked Data Notifications; deliveries: what these two share; changes: the change feed; sensorthings:
OGC SensorThings API; wot: Web of Things; ngsild: NGSI-LD; standards: what these share.
"""
