"""Connections to a server: sockets, reconnecting, retries."""
