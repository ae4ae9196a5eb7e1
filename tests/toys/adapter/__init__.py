"""An adapter without a protocol: it writes a greeting.

settings: the table ``[toy]``; adapter: the adapter, and what it is made from.
"""
