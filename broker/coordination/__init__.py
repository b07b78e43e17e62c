"""What every coordinator of an internal topic needs: groups and transactions stand on it."""
