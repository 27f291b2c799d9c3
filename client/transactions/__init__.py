"""Transactions: events of one or several streams that become readable together, or never."""
