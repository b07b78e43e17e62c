"""Messages about partitions in the topic whose declaration or source is another one by now. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.pipelines.floods.plan import SAID_MAX, PartitionSize

_LATE = (
    "the source has rows that came after their partition was loaded, and they are not in the topic. To add them, declare `late` "
    "with a condition that only they meet, and load their partition again."
)
_GONE = "the source has fewer rows than were loaded. The topic keeps them."


def declared_otherwise(differs: Mapping[str, Sequence[str]]) -> list[str]:
    """Messages about partitions that were loaded under another definition of the flood, by the names of its parts that differ."""
    return [
        "these partitions were loaded when the flood was declared differently, and stay as they are: take the change back, or "
        "declare a flood of another name into another topic. "
        f"partitions=`{', '.join(short_keys(keys))}` count=`{len(keys)}` differs=`{parts}`"
        for parts, keys in differs.items()
    ]


def short_keys(keys: Sequence[str]) -> list[str]:
    """Keys of partitions, few enough for one line."""
    return list(keys) if len(keys) < 3 else [f"{keys[0]} ... {keys[-1]}"]


def changed_since(rows: Mapping[str, int], counted: Mapping[str, PartitionSize]) -> list[str]:
    """Messages about partitions whose source now has more or fewer rows than were loaded.

    Args:
        rows: what was loaded, by key.
    """
    changed: dict[str, list[str]] = {}
    for key, size in sorted(counted.items()):
        if size.rows != rows.get(key, 0):
            what = _LATE if size.rows > rows.get(key, 0) else _GONE
            changed.setdefault(what, []).append(f"{key}: {abs(size.rows - rows.get(key, 0))}")
    return [f"{what} rows=`{', '.join(each[:SAID_MAX])}` partitions=`{len(each)}`" for what, each in changed.items()]
