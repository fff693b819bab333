"""`python -m qdebug`."""

from qdebug.cli.app import entry

entry()
