"""The error of a source that columns cannot do."""


class UnlikeError(Exception):
    """The source, or an expression, has no provably equal meaning in Arrow. The message says why, in a user's terms."""
