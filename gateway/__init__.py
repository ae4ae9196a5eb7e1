"""The gateway process: owns engine, change log and timers, and serves clients over HTTP and WebSocket.

clock: the machine's clocks; sharing: what one client may have of what all use; disk: all changes of files in the data
folder; systemd: notifications, sockets and credentials; addresses: where a running gateway is reached; texts: of
others, for people, and nearest names. Packages: loop, state, log, history, devices, workers, gates, local_time,
security, monitoring, page, service, settings, templates, cli.
"""
