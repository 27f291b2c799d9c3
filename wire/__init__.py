"""The protocol: frames, their layout, names and connection state, without I/O.

Nothing here waits, or touches a socket, a file, a clock or chance: time comes in as `now_s`. Client and server share
all of it. Import from the modules; this one loads none of them.
"""
