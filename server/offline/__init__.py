"""Offline tools: verify, inspect, repair and restore the data of a server that is not running."""
