"""The command line."""

from jlibo.cli.main import main as main
