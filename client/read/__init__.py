"""Readers of events: subscriptions, block streams, cuts, ranges, Arrow."""
