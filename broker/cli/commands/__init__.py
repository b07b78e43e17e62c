"""The command line's commands with their options, by group. A command imports its work, a file of broker/cli/, when it runs."""
