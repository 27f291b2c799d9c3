"""What the server tells over HTTP: metrics, health, and the events of streams."""
