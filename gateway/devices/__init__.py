"""Devices for commands and the HTTP gate.

decisions: adoption, ignoring, naming, removal and desired states; listing: devices as JSON; directory: what names of
people mean; ruled: what mapping rules name;
trial: what mapping rules make of a message.
"""
