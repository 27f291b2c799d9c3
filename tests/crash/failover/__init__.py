"""Two servers over one bucket, of which one serves and the other stands by, while everything between them fails."""
