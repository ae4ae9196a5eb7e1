"""The gateway as a service.

process: puts the parts together; adapter_process: each adapter as a process; supervision, systemd: readiness,
watchdog, sockets and credentials; reload: settings while it runs; wanted: which processes the settings ask for;
system_update: the image's bundles.
"""
