"""moto's S3 server, with conditional writes that have one winner, as on S3. A script: python -P moto_server.py -H HOST -p PORT.

moto serves each request in a thread of its own, and looks for the object of `If-None-Match: *` before it stores the new one: of two
threads between these steps, both would be told that they created it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

WRITES = ("put_object", "_key_response_post")
"""The methods that check the condition and store the object: PutObject, and CompleteMultipartUpload (among other POSTs)."""


def one_at_a_time(method: Callable[..., Any], lock: threading.Lock) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return method(*args, **kwargs)

    return locked


if __name__ == "__main__":
    shared = threading.Lock()
    for name in WRITES:
        setattr(S3Response, name, one_at_a_time(getattr(S3Response, name), shared))
    main()
