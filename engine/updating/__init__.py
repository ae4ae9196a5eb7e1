"""Update request -> quad delta.

updates: chooses between plan and store; by_plan: compiled updates; by_store: evaluation by the store; graph_store: the
Graph Store HTTP Protocol; documents: RDF files and bytes.
"""
