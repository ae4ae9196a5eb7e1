"""MQTT sensors: topics and payloads become SOSA observations, acknowledged once they are durable."""
