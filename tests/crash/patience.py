"""Options for clients of a server that is killed. Without the server's own modules: a client process starts quickly."""

import math
from typing import Final

from millrace.client.options import Backoff, ClientOptions

PATIENT: Final = ClientOptions(request_timeout_s=math.inf, backoff=Backoff(limit_s=0.3))
"""On a busy machine the next start of a server may take longer than a request. They come back soon after it."""
