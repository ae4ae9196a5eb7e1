"""`python -m lamplighter.cloud_sync run|status`: the shipper as a process of its own."""

from __future__ import annotations

import argparse
import logging
import sys

from lamplighter.cloud_sync.commands import add_modes, light_context
from lamplighter.engine.errors import GatewayError


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 success, 2 failure."""
    parser = argparse.ArgumentParser(prog="python -m lamplighter.cloud_sync", description="Ships the change log.")
    add_modes(parser, light_context)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for chatty in ("paramiko", "botocore", "aiobotocore", "s3fs", "fsspec"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    try:
        return int(options.command(options))
    except GatewayError as error:
        print(f"lamplighter: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
