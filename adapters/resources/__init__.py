"""Devices whose values are resources with URIs: what the adapters for CoAP, HTTP and Modbus share.

exchange: what these parts need of a protocol; commands: rules and rows of queries -> what is sent to which resource
(pure); bodies: bodies with their content formats (pure); sender: requests with states; states: those that devices
report; sensors: resources -> readings; reachability: which devices answer; health: their summary; counters: for the
metrics; running: an adapter and its parts, wired once; basis: what it keeps from run to run.

For protocols in which the gateway asks: polled: what such a protocol does, and its requests and polls; polled_settings:
what their tables have; polled_adapter: the whole adapter.
"""
