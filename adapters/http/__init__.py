"""Devices with a web server of their own: their resources are polled by GET, and their states written by PUT and POST.

protocol: requests to devices; settings: the table ``[http_devices]``; credentials: the files that it names. The adapter
is `adapters.resources.polled_adapter`.
"""
