"""What the server tells over HTTP: metrics and health."""
