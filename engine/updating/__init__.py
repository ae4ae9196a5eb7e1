"""Update request -> quad delta.

updates: chooses the way; by_plan: a compiled WHERE; by_store: evaluation by the store; graph_store: the Graph Store
HTTP Protocol.
"""
