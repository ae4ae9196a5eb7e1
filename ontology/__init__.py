"""Vocabularies: gateway.ttl and lighting.ttl; vocabulary has the IRIs that the code writes, as constants."""
