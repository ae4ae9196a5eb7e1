"""CoAP adapter: keeps each device in the state that the dataset gives for it.

mapping: subscription row -> command, and the update that records an acknowledgement (pure; add a payload format such
as LwM2M here); adapter: subscription, retries and requests with aiocoap; settings: the table ``[coap]``. Pure, for the
server and for discovery: links: the link format; directory: registrations of
endpoints and lookups.

For exchanges with devices: blocks: bodies that are longer than a datagram (pure); freshness: the order and the age of
notifications (pure).
"""
