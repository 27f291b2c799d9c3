"""Fraud: a pattern over the payments of each card, developed on a slice of history, run live by changing one option."""
