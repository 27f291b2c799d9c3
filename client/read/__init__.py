"""Readers of events: subscriptions, block streams, cuts, splits, Arrow."""
