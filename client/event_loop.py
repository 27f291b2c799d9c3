"""The event loop of what makes one of its own: uvloop's where there is one, else that of asyncio."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, to be closed by the caller."""
    try:
        import uvloop
    except ModuleNotFoundError:  # it is built for CPython on Linux and macOS
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
