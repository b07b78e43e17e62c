"""The HTTP server's pages: health for a load balancer, metrics for Prometheus, and a front page that names this server.

``/healthz``  200 while the process runs its event loop.
``/readyz``   200 when clients are served and their records become durable; otherwise 503 and the reason.
``/metrics``  the Prometheus text format.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from headgate.broker.runtime.metrics import Metrics

MakeApp: TypeAlias = Callable[[Metrics, Callable[[], str | None], Callable[[], str]], Starlette]
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Headgate broker</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 40rem; padding: 0 1rem }}</style></head>
<body><h1>Headgate broker</h1><p>{line}</p>
<ul><li><a href="/healthz">/healthz</a> is the process alive</li><li><a href="/readyz">/readyz</a> does it serve</li>
<li><a href="/metrics">/metrics</a> for Prometheus</li></ul></body></html>
"""


def create_app(metrics: Metrics, not_ready: Callable[[], str | None], line: Callable[[], str]) -> Starlette:
    """The application.

    Args:
        not_ready: returns the reason why the broker does not serve at the moment, or None.
        line: one line about the broker for the front page.
    """

    async def page(request: Request) -> Response:
        return HTMLResponse(_PAGE.format(line=html.escape(line())))

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(request: Request) -> Response:
        reason = not_ready()
        return PlainTextResponse("ready\n") if reason is None else PlainTextResponse(f"not ready: {reason}\n", 503)

    async def metrics_text(request: Request) -> Response:
        await metrics.prepare()
        return Response(metrics.render(), media_type=METRICS_CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics_text),
        ]
    )
