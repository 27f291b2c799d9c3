"""Whole programs from a checkout: each is one command, starts its own server, and checks its own results."""
