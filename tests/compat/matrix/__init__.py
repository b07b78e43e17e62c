"""The compatibility table: real clients of several versions against one broker (`make compat`)."""
