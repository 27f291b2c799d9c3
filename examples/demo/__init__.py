"""`millrace demo`: the data, the queries, and the command."""
