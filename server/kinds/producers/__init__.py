"""Producers: the rows by which transactions are committed once."""
