"""Transactions: parts of several streams that become readable together."""
