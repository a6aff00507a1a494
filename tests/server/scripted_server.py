"""A program: serve a scripted generator on a free port; arguments are JSON of its values."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from server.scripted_generator import Scripted

from insitu.server.app import create_app
from insitu.server.options import ServerOptions
from insitu.server.run import serve


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    script, values = (json.loads(argument) for argument in sys.argv[1:3])
    if "batch_dir" in values:
        values["batch_dir"] = Path(values["batch_dir"])
    options = ServerOptions(port=0, **values)
    return serve(create_app(Scripted(**script), options), options)


if __name__ == "__main__":
    sys.exit(main())
