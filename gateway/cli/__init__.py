"""The commands of `lamplighter`.

commands: log, status, timers and the like; client_commands: query, update, subscribe; security_commands: clients and
certificates; install: services of this machine; confirmation: what destroys asks first.
"""
