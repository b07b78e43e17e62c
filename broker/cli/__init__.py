"""The command line. This module is imported by every command, so it imports nothing."""

EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it: 128 and the number of SIGINT."""
