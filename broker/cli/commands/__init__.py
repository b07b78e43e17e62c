"""The commands, a file for each or for a group of them: options and work. `broker/cli/app.py` imports a file when it is called."""
