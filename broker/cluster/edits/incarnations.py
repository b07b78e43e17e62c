"""Edits of incarnations: the runs of brokers, their followers and their chunks. No I/O."""

from __future__ import annotations

import msgspec

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Follower, Incarnation
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason


class OpenIncarnation(Edit, frozen=True, tag="open_incarnation"):
    incarnation: Incarnation

    def check(self, state: Manifest) -> None:
        if self.incarnation.id in state.incarnations:
            raise FencedError(Reason.FENCED, f"incarnation was opened before. incarnation=`{self.incarnation.id}`")

    def apply(self, state: Manifest) -> None:
        state.incarnations[self.incarnation.id] = self.incarnation
        state.chunks[self.incarnation.id] = {}
        state.saw_epoch(self.incarnation.leader_epoch)


class AddChunks(Edit, frozen=True, tag="add_chunks"):
    """Chunks completed since the last edit, and the producer checkpoint that covers all chunks up to the last of them."""

    incarnation_id: str
    chunks: list[Chunk]
    producers_key: str | None = None

    def check(self, state: Manifest) -> None:
        _check_open(state, self.incarnation_id)

    def touches(self) -> frozenset[object]:
        return frozenset({self.incarnation_id})

    def apply(self, state: Manifest) -> None:
        incarnation = state.incarnations.get(self.incarnation_id)
        if incarnation is None:
            return
        fresh = [chunk for chunk in self.chunks if chunk.number >= incarnation.next_chunk]
        if fresh:
            state.chunks[self.incarnation_id].update((chunk.number, chunk) for chunk in fresh)
            next_chunk = max(chunk.last_number for chunk in fresh) + 1
            state.incarnations[self.incarnation_id] = msgspec.structs.replace(incarnation, next_chunk=next_chunk)
        if self.producers_key is not None:
            state.producers_keys[self.incarnation_id] = self.producers_key


class SetFollower(Edit, frozen=True, tag="set_follower"):
    """From now on, records that this follower has count as acked. A broker that recovers the incarnation must ask the follower."""

    incarnation_id: str
    follower: Follower

    def check(self, state: Manifest) -> None:
        _check_open(state, self.incarnation_id)

    def touches(self) -> frozenset[object]:
        return frozenset({self.incarnation_id})

    def apply(self, state: Manifest) -> None:
        if self.incarnation_id in state.incarnations:
            state.followers[self.incarnation_id] = self.follower


class SealIncarnation(Edit, frozen=True, tag="seal_incarnation"):
    incarnation_id: str

    def check(self, state: Manifest) -> None:
        _check_open(state, self.incarnation_id)

    def apply(self, state: Manifest) -> None:
        incarnation = state.incarnations.get(self.incarnation_id)
        if incarnation is not None:
            state.incarnations[self.incarnation_id] = msgspec.structs.replace(incarnation, sealed=True)
            state.followers.pop(self.incarnation_id, None)


class RemoveChunks(Edit, frozen=True, tag="remove_chunks"):
    """No extent in these chunks is needed any more. Their objects may be deleted once this edit is durable."""

    incarnation_id: str
    numbers: list[int]

    def check(self, state: Manifest) -> None:
        listed = _check_listed(state, self.incarnation_id, self.numbers)
        # Another broker may have folded these chunks meanwhile. Then the chunk with this number is not the one that the author saw.
        if any(state.needs(listed[number]) for number in self.numbers):
            raise InvalidError(
                Reason.INVALID_REQUEST, f"a chunk is needed. incarnation=`{self.incarnation_id}` numbers=`{self.numbers}`"
            )

    def touches(self) -> frozenset[object]:
        return frozenset({self.incarnation_id})

    def apply(self, state: Manifest) -> None:
        for number in self.numbers:
            state.chunks.get(self.incarnation_id, {}).pop(number, None)


class FoldChunks(Edit, frozen=True, tag="fold_chunks"):
    """These chunks were folded into one (engine/upkeep/chunk_fold.py). Their objects may be deleted once this edit is durable."""

    incarnation_id: str
    numbers: list[int]
    chunk: Chunk

    def check(self, state: Manifest) -> None:
        _check_listed(state, self.incarnation_id, self.numbers)
        for extent in self.chunk.extents:
            if state.files.overlap(extent.topic_id, extent.partition, extent.base_offset, extent.end_offset):
                raise InvalidError(
                    Reason.CHANGED_MEANWHILE,
                    f"records are in files by now. incarnation=`{self.incarnation_id}` partition=`{extent.partition}` "
                    f"base=`{extent.base_offset}`",
                )

    def touches(self) -> frozenset[object]:
        return frozenset({self.incarnation_id, *((extent.topic_id, extent.partition) for extent in self.chunk.extents)})

    def apply(self, state: Manifest) -> None:
        chunks = state.chunks.get(self.incarnation_id)
        if chunks is not None:
            for number in self.numbers:
                chunks.pop(number, None)
            chunks[self.chunk.number] = self.chunk


class CloseIncarnation(Edit, frozen=True, tag="close_incarnation"):
    """Forget a sealed incarnation without chunks. Its objects may be swept."""

    incarnation_id: str

    def apply(self, state: Manifest) -> None:
        state.incarnations.pop(self.incarnation_id, None)
        state.chunks.pop(self.incarnation_id, None)
        state.producers_keys.pop(self.incarnation_id, None)
        state.commits.pop(self.incarnation_id, None)


def _check_open(state: Manifest, incarnation_id: str) -> None:
    incarnation = state.incarnations.get(incarnation_id)
    if incarnation is None or incarnation.sealed:
        raise FencedError(Reason.FENCED, f"incarnation is sealed. incarnation=`{incarnation_id}`")


def _check_listed(state: Manifest, incarnation_id: str, numbers: list[int]) -> dict[int, Chunk]:
    """The chunks of an incarnation, if these are among them."""
    listed = state.chunks.get(incarnation_id, {})
    if not listed.keys() >= set(numbers):
        raise InvalidError(
            Reason.INVALID_REQUEST, f"chunks are gone. incarnation=`{incarnation_id}` numbers=`{numbers[0]}..{numbers[-1]}`"
        )
    return listed
