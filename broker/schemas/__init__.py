"""A schema registry of the users, and messages of its schemas."""
