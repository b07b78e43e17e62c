"""The cache of encoded row groups."""

from __future__ import annotations

from array import array

import pytest

from headgate.broker.engine.read.history_cache import IN_USE_S, EncodedGroup, HistoryCache


def group(size_bytes: int = 10) -> EncodedGroup:
    return EncodedGroup([memoryview(bytes(size_bytes))], array("q", (0,)), 1)


def kept(cache: HistoryCache, names: str) -> str:
    return "".join(name for name in names if name in cache)


@pytest.fixture
def cache() -> HistoryCache:
    """A full cache: a, b and c, of 10 bytes each, all being read."""
    made = HistoryCache(30)
    for name in "abc":
        made.put(name, group(), 0.0)
        assert made.get(name, 0.0) is not None
    return made


def test_what_was_read_to_its_end_goes_first_and_the_oldest_before_the_newest(cache: HistoryCache) -> None:
    for name in "cb":
        assert cache.get(name, 1.0) is not None
        cache.finish(name)
    cache.put("d", group(), 1.0)
    assert kept(cache, "abcd") == "abd"
    cache.put("e", group(), 1.0)
    assert kept(cache, "abcde") == "ade"
    assert cache.dropped_in_use == 0
    assert cache.size_bytes == 30


def test_who_is_behind_keeps_what_another_one_has_finished(cache: HistoryCache) -> None:
    for name in "ab":
        cache.finish(name)
    assert cache.get("a", 1.0) is not None
    cache.put("d", group(), 1.0)
    assert kept(cache, "abcd") == "acd"


def test_then_goes_what_nobody_came_back_to(cache: HistoryCache) -> None:
    assert cache.get("a", 1.0) is not None
    cache.put("d", group(), IN_USE_S)
    assert kept(cache, "abcd") == "acd"
    cache.put("e", group(), IN_USE_S)
    assert kept(cache, "acde") == "ade"
    assert cache.dropped_in_use == 0


def test_then_what_was_made_ahead_and_last_what_is_read(cache: HistoryCache) -> None:
    cache.finish("b")
    cache.put("d", group(), 1.0)
    cache.put("e", group(), 1.0)
    assert kept(cache, "abcde") == "ace"
    assert cache.dropped_in_use == 0
    assert cache.get("e", 2.0) is not None
    cache.put("f", group(20), 2.0)
    assert kept(cache, "acef") == "ef"
    assert cache.dropped_in_use == 2


def test_nothing_is_made_ahead_in_the_place_of_what_is_read(cache: HistoryCache) -> None:
    assert not cache.has_room(10, IN_USE_S - 1)
    assert cache.has_room(10, IN_USE_S), "nobody came back"
    assert not cache.has_room(31, IN_USE_S)
    cache.finish("b")
    assert cache.has_room(10, 1.0)
    cache.put("d", group(), 1.0, is_wanted=False)
    assert kept(cache, "abcd") == "acd" and cache.get("d", 1.0) is not None
    cache.put("e", group(), 1.0, is_wanted=False)
    assert kept(cache, "acde") == "acd", "readers have taken the room meanwhile"
    assert cache.dropped_in_use == 0
    cache.clear()
    assert kept(cache, "abc") == ""
    assert cache.has_room(30, 1.0)


def test_one_that_is_larger_than_all_of_it(cache: HistoryCache) -> None:
    cache.put("d", group(31), 0.0)
    assert cache.get("d", 0.0) is None
    assert kept(cache, "abcd") == "abc"
    assert cache.dropped_in_use == 1
