"""The write path: the WAL, the copies for followers, and the listing of complete chunks in the manifest."""
