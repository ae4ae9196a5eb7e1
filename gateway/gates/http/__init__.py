"""The HTTP gate: SPARQL 1.1 Protocol, Graph Store HTTP Protocol, and operations.

gate: serves the gate; connections: one connection with its limits; routes: paths, methods, required permissions and
cross-origin rules, the only way to a handler; calls: request -> query or update, bounds on bodies, turns; parameters:
of URLs; negotiation: media types; answers: responses, refusals by shapes too; waiting: requests that wait for a record;
kept: what is made of the dataset for many requests; files: caching and gzip of files;
sparql, graph_store, resources, operations, past, history, devices, names, applications, templates, messages, mapping,
oauth, clients, description, page, page_operations, page_login, documents: handlers.
"""
