"""Other durable stores on the same machine, each driven the fastest way known for it."""
