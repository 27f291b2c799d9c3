"""What `millrace bench` measures: one client and one server, beside the bare disk."""
