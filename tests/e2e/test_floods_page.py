"""A user at Dagster's page, played by a headless Chromium: opens the graph, picks three days, launches, watches them at the page of
the brokers, and sees them succeed.

Compared: the pages' text, and the number of brokers meanwhile. With HEADGATE_PICTURES=DIR the test saves the README's pictures
there. A mismatch means that a user of the page gets another result than the tests that use GraphQL.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.chromium import Page, chromium
from tests.support.flood_world import FLOOD, FloodWorld, flood_world

DAYS = "[2013-06-10...2013-06-12]"
FLOODS = tuple(f"{FLOOD}.2013-06-{day}" for day in (10, 11, 12))
"""As the brokers know them."""
PATIENCE_S = 900.0


@pytest.mark.slow
@pytest.mark.chromium
@pytest.mark.timeout(1800)
def test_three_days_are_launched_by_hand(tmp_path: Path) -> None:
    pictures = Path(os.environ.get("HEADGATE_PICTURES", tmp_path / "pictures"))
    with flood_world(tmp_path) as world:
        world.make_flights(brokers=3, grown=20)
        world.start_brokers(3)
        world.start_dagster()
        launch_and_look(world, tmp_path, pictures)
        world.until("the world is at rest", world.at_rest)


def watch(world: FloodWorld, page: Page, pictures: Path) -> int:
    """See each day come and end at the brokers' page, which is loaded once. Returns the largest number of brokers meanwhile."""
    page.open(f"http://127.0.0.1:{world.ports['http']}/")
    most, begun, over = 0, set[str](), set[str]()
    deadline = time.monotonic() + PATIENCE_S
    while over != set(FLOODS):
        found = page.run("[...document.querySelectorAll('article.flood')].map(one => one.id.slice(6))") or []
        if found and not begun:
            page.picture(pictures / "watch.png")
        begun |= set(found)
        text = page.run("document.querySelector('#floods-over')?.textContent || ''")
        over = {one for one in FLOODS if one in begun and one in text and one not in found}
        most = max(most, world.cluster.desired().live_brokers)
        assert time.monotonic() < deadline, f"the page does not show the end. begun=`{begun}` over=`{over}`\n{page.text()}"
        time.sleep(0.5)
    return most


def launch_and_look(world: FloodWorld, directory: Path, pictures: Path) -> None:
    """Use the page, and take screenshots of it."""
    graph = f"{world.dagster.url}/locations/headgate/asset-groups/{FLOOD}/lineage"
    with chromium(directory) as page:
        page.open(graph)
        page.until_text(f"{FLOOD}_source")
        page.click("Materialize (1)…")
        page.write("input[placeholder^='ex: 2013-06-01']", DAYS)
        page.until_text("3 partitions")
        page.click("Launch backfill")
        assert watch(world, page, pictures) == 3
        page.open(graph)
        page.until_text("10% filled", PATIENCE_S)
        page.until_text("7 / 7 Passed", PATIENCE_S)
        page.picture(pictures / "graph.png")
        page.open(f"{world.dagster.url}/assets/{FLOOD}?view=events")
        page.click("[Show Markdown]")
        page.until("the picture of the flood", "!!document.querySelector('img[src^=\"data:image/svg\"]')")
        time.sleep(1)
        page.picture(pictures / "flood.png")
