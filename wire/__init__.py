"""The protocol between client and server: messages, frames, and the state of a connection; without sockets.

Nothing here waits, or uses a socket, a file, a clock or randomness: time is passed in as `now_s`. Client and server
share all of it. Import from the modules; this one loads none of them.
"""
