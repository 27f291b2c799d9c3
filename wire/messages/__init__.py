"""Every message of the protocol and every record of the log, each declared once.

Each family is a module; this is their common namespace: `from millrace.wire import messages as m`.
"""

# ruff: noqa: F403  # names are listed where they are declared

from .declaration import *
from .records import *
from .segment import *
from .session import *
from .stream import *
from .transaction import *
from .writer import *
