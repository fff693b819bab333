"""`python -m qdebug`."""

import sys

from qdebug.cli.app import main

sys.exit(main(sys.argv[1:]))
