"""Connections to a server: one socket, reconnecting, retries."""
