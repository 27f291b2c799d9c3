"""The network in front of the server: connections, their requests, and their reads at the tail."""
