"""Update request -> quad delta.

request: an update request, read once; updates: cache of plans, and what requests share; by_plan: compiled updates;
by_store: evaluation by the store; graph_store: the Graph Store HTTP Protocol; documents: RDF files and bytes;
plain_lines: those of canonical N-Triples and N-Quads.
"""
