"""Add a coding agent: the documented import of `farro.agents.programs.port`, and the reader of plain text."""

from farro.agents.programs.generic import TextReader as TextReader
from farro.agents.programs.port import *  # noqa: F403
