"""CoAP actuators: a consumer that keeps each device in the state that the knowledge base says."""
