"""`python -m scheduler` is the command `scheduler`."""

from scheduler.cli.main import console

console()
