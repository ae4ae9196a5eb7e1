"""Devices for commands and the HTTP gate.

decisions: adoption, ignoring, naming, removal and desired states; listing: devices as JSON;
trial: what mapping rules make of a message.
"""
