"""Authentication and authorization.

gatekeeper: credentials -> caller, at both gates; callers: the caller; authorization: registers clients and issues
tokens; registry: registered clients; tokens: JSON Web Tokens; revocations: how long they live, and those
that a log-out has ended; permissions: graphs of a client; certificates: TLS; browsers: checks of Host and Origin;
peers: users of Unix sockets, networks of addresses; audit: audit log.
"""
