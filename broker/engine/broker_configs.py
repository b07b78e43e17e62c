"""Settings that change while this broker runs: changed through the catalog, and in force as the manifest has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from headgate.broker.cluster.edits.brokers import SetBrokerConfig
from headgate.broker.engine.base import live_settings
from headgate.broker.engine.base.catalog import change
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.leads import Leads


class BrokerConfigs:
    """`started_with` has the settings with which the broker was started; `lifecycle.settings` those in force."""

    def __init__(self, lifecycle: Lifecycle, leads: Leads) -> None:
        self.started_with = replace(lifecycle.settings)
        self._lifecycle = lifecycle
        self._leads = leads
        self._lock = asyncio.Lock()

    def follow(self) -> None:
        """Put the settings in the manifest in force. No other code changes settings."""
        for field, value in live_settings.in_force(self._lifecycle.manifest, self.started_with).items():
            object.__setattr__(self._lifecycle.settings, field, value)  # frozen for everyone else
        self._leads.configure_all()

    async def alter(
        self, broker: str, made: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Change the settings of a broker, or of all brokers ("").

        Args:
            made: returns the new settings, from the present ones.

        Raises InvalidError, RetryError, and the errors of `Catalog.commit`.
        """

        async def attempt() -> None:
            was = self._lifecycle.manifest.broker_configs.get(broker, {})
            config = dict(made(was))
            live_settings.check(config)
            if not validate_only and config != was:
                await self._lifecycle.catalog.commit(SetBrokerConfig(broker, config, was))

        async with self._lock:
            await change(self._lifecycle.catalog, attempt, "the settings of brokers")
