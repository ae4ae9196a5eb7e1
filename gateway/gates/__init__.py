"""Where clients come in.

opening: which listeners there are; listeners, bounded_sockets: sockets and their limits; websocket: SEPA protocol;
outbox: what waits for a WebSocket client; http/: SPARQL Protocol, Graph Store Protocol, operations; local_call:
commands of this machine.
"""
