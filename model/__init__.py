"""What streams are, without a server or a client: names, key ranges, positions, cuts, lineage, policies, event blocks.

Everything here is pure: no file, socket, clock or random number, and nothing of the other parts is imported.
"""
