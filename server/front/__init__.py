"""The network side of the server: connections, their requests, and their reads."""
