"""The daemon: owns engine, change log and timers; HTTP and WebSocket gates; applications; the command."""
