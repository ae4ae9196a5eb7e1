"""Vocabularies: gateway.ttl, devices.ttl, kinds.ttl and lighting.ttl; vocabulary has the IRIs that the code writes.

shapes.ttl: SHACL shapes of what the adapters write.
"""
