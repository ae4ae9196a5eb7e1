"""figures: what status and health show; timings: how long things take; metrics: Prometheus."""
