"""What makes an appliance of the machine: its own names and secrets, and the user's files on the firmware partition.

Runs on the system's Python with nothing but the standard library, so that it works when the gateway does not.
"""
