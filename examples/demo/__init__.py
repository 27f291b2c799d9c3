"""What `millrace demo` shows: the data, the queries, and the command."""
