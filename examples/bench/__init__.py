"""The measurements of `millrace bench`: one client and one server, beside the bare disk."""
