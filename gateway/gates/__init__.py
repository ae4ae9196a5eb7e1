"""Gates: where clients connect.

opening: which listeners are open; listeners: TCP, TLS and Unix sockets; websocket: the SEPA protocol, and
disconnection of slow clients; outbox: bounded queue of messages to one client; bounded_sockets: bounds on unread
input; http: SPARQL Protocol, Graph Store Protocol, operations; local_call: commands on the same machine.
"""
