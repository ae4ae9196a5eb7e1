"""The dataset.

quad_store: quads in memory or on disk (Oxigraph); renewal: a fresh native store in place of an old one; audit: compares
index and store.
"""
