"""The pure model of streams: names, key ranges, positions, cuts, lineage, policies, event blocks.

Everything here is pure: no file, socket, clock or random number, and no import of the other parts.
"""
