"""Vocabulary, SOSA profile, SHACL shapes and the lighting ontology. Imports nothing of ours."""
