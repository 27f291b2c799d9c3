"""`python -m millrace.server DATA_FOLDER`: a server without the command line around it.

Prints one line of JSON, {"address": ..., "console": ...}, once it serves; `millrace.testing` reads it.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

from millrace.model.extras import needs
from millrace.server.host.descriptors import occupy_standard_descriptors
from millrace.server.host.logs import configure, hold
from millrace.server.host.memory import keep_freed_memory

from .errors import ServerError

with needs("server"):
    import uvloop

    from .app import Server
    from .options import ServerOptions
    from .process import start_as_process
    from .settings import load_settings

logger = logging.getLogger(__name__)


async def _serve(options: ServerOptions) -> None:
    server = Server(options)
    if not await start_as_process(server):
        return
    try:
        line = json.dumps({"address": server.address, "console": server.console_address})
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        await server.wait_for_end()
    finally:
        await server.stop()


def main() -> int:
    """Serve until a signal arrives; return the exit code: 0, or 1 if the server could not start."""
    occupy_standard_descriptors()
    keep_freed_memory()
    parser = argparse.ArgumentParser(prog="python -m millrace.server", description="Serve a data folder.")
    parser.add_argument("data_folder", type=Path)
    parser.add_argument("--listen", default="127.0.0.1:0", help="HOST:PORT of the data port (default: any free port)")
    parser.add_argument("--console", default="", help="HOST:PORT of the console (default: none)")
    parser.add_argument("--store", help="object store of the history: s3://BUCKET/PREFIX (default: none)")
    parser.add_argument("--log", choices=["local", "object"], help="where the log is (default: local)")
    parser.add_argument("--standby", action="store_true", help="wait while another server owns the history")
    parser.add_argument("--insecure", action="store_true", help="allow access from other machines without a token")
    parser.add_argument("--log-level", default="WARNING")
    parser.add_argument("--log-format", help="of standard error: text or json (default: text)")
    arguments = parser.parse_args()
    given = {
        "data_dir": arguments.data_folder,
        "listen": arguments.listen,
        "console": arguments.console or "none",
        "store": arguments.store,
        "wal.place": arguments.log,
        "standby": arguments.standby or None,
        "insecure": arguments.insecure or None,
        "log.level": arguments.log_level.lower(),
        "log.format": arguments.log_format,
    }
    held, is_json = hold(), False
    try:
        options = load_settings(given).options
        is_json = options.log.format == "json"
        configure(level=options.log.level_name(is_terminal=False), as_json=is_json, held=held)
        uvloop.run(_serve(options))
    except ServerError as error:
        if is_json:
            logger.critical("server ended error=%s", error)
        else:
            sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
