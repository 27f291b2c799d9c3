"""The life of the containers of a server."""
