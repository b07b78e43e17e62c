"""What a store has once, written by the first broker: the id of its cluster and its format, and a secret that all brokers share."""

from __future__ import annotations

import hmac
import json

from headgate.broker.engine.base import keys
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason
from headgate.broker.store.interface import Store

FORMAT_VERSION = 1
DECOYS = "decoys"
"""Purpose of the key for the salts of unknown users (`cluster/scram.py`)."""
BROKERS = "brokers"
"""Purpose of the key with which brokers prove to each other that they share the store (`control/broker_proof.py`)."""
SECRET_BYTES = 32


async def identify(store: Store, *, name: str, expected_id: str, create: bool, fresh_id: str, now_ms: int) -> str:
    """The id of the cluster that owns a store.

    Args:
        name: name that the cluster must have, and that a new cluster gets. Empty: any.
        expected_id: id that the cluster must have. If it is given, no new cluster is made. Empty: any.
        create: makes a new cluster in an empty store.
        fresh_id: id of a new cluster without a name.
        now_ms: the wall clock in ms.

    Raises:
        FatalError: the store belongs to another cluster, has a newer format, is empty although it must not be, or is not a
        Headgate store. RetryError.
    """
    if create and not expected_id:
        mine = {"format": FORMAT_VERSION, "cluster_id": name or fresh_id, "created_ms": now_ms}
        await store.put_if_absent(keys.CLUSTER_ID, json.dumps(mine).encode())
    try:
        found = json.loads(await store.get(keys.CLUSTER_ID))
        cluster_id, version = str(found["cluster_id"]), int(found["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(f"this is not a Headgate store: {keys.CLUSTER_ID} cannot be read. store=`{store.url}`") from error
    except InvalidError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        raise FatalError(
            Reason.STORE_MISSING, f"the store is empty, and is not made anew. store=`{store.url}` expected=`{expected_id or 'any'}`"
        ) from error
    if version > FORMAT_VERSION:
        raise _wrong(f"the store was written by a newer Headgate: upgrade this broker. format=`{version}` known=`{FORMAT_VERSION}`")
    for expected in (name, expected_id):
        if expected and cluster_id != expected:
            raise _wrong(f"the store belongs to another cluster. store=`{store.url}` found=`{cluster_id}` expected=`{expected}`")
    return cluster_id


async def shared_key(store: Store, purpose: str, fresh: bytes) -> bytes:
    """A key that all brokers of the cluster have, also after a restart: derived from the secret in the store.

    Args:
        purpose: the key of one purpose tells nothing about that of another.
        fresh: the secret of a cluster without one; unguessable.

    Raises RetryError.
    """
    await store.put_if_absent(keys.SECRET, fresh)
    return hmac.digest(await store.get(keys.SECRET), purpose.encode(), "sha256")


def _wrong(message: str) -> FatalError:
    return FatalError(Reason.STORE_MISCONFIGURED, message)
