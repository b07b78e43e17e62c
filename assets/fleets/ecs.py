"""Brokers as an AWS ECS service, scaled by its desired count with boto3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.assets.fleets.interface import FleetState
from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason, RetryError

_DENIED = ("AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException")
_MISSING = ("ServiceNotFoundException", "ClusterNotFoundException", "ServiceNotActiveException")


class EcsFleet:
    """One service.

    Args:
        client: a boto3 ECS client; None: made from the environment, as AWS tools do.
        minimum, maximum: bounds of the requested number.
    """

    follows = False

    def __init__(
        self, *, cluster: str, service: str, region: str | None = None, minimum: int = 1, maximum: int = 64, client: Any = None
    ) -> None:
        self.name = f"ecs {cluster}/{service}"
        self._cluster = cluster
        self._service = service
        self._minimum = minimum
        self._maximum = maximum
        self._client = _default_client(region) if client is None else client

    def state(self) -> FleetState:
        """Requested tasks, and running tasks."""
        found = self._call(lambda: self._client.describe_services(cluster=self._cluster, services=[self._service]))
        services = [one for one in found["services"] if one.get("status") != "INACTIVE"]
        if not services:
            raise FatalError(Reason.NOT_FOUND, f"ecs has no such service. service=`{self.name}`")
        return FleetState(asked=services[0]["desiredCount"], running=services[0]["runningCount"])

    def scale(self, brokers: int) -> FleetState:
        """Set the desired count. A surplus task receives SIGTERM, and drains within `stopTimeout`."""
        wanted = max(self._minimum, min(self._maximum, brokers))
        before = self.state()
        if before.asked != wanted:
            self._call(lambda: self._client.update_service(cluster=self._cluster, service=self._service, desiredCount=wanted))
        note = (
            "" if wanted == brokers else f"{brokers} brokers are desired; the fleet's limits are {self._minimum} to {self._maximum}"
        )
        return FleetState(asked=wanted, running=before.running, note=note)

    def _call(self, work: Callable[[], Any]) -> Any:
        from botocore.exceptions import (  # type: ignore[import-untyped]
            BotoCoreError,
            ClientError,
            NoCredentialsError,
        )

        try:
            return work()
        except NoCredentialsError as error:
            raise FatalError(Reason.STORE_MISCONFIGURED, f"aws has no credentials. service=`{self.name}`") from error
        except ClientError as error:
            raise self._refused(error.response.get("Error", {})) from error
        except BotoCoreError as error:
            raise RetryError(Reason.TIMED_OUT, f"ecs does not answer: {error}. service=`{self.name}`") from error

    def _refused(self, error: dict[str, Any]) -> HeadgateError:
        code, text = str(error.get("Code", "")), str(error.get("Message", ""))
        if code in _DENIED:
            return FatalError(Reason.STORE_MISCONFIGURED, f"aws refuses: {text} code=`{code}` service=`{self.name}`")
        if code in _MISSING:
            return FatalError(Reason.NOT_FOUND, f"ecs has no such service: {text} service=`{self.name}`")
        return RetryError(Reason.NOT_READY, f"ecs answers with an error: {text} code=`{code}` service=`{self.name}`")


def _default_client(region: str | None) -> Any:
    import boto3  # type: ignore[import-untyped]
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.client("ecs", region_name=region or None)
    except BotoCoreError as error:
        raise FatalError(Reason.STORE_MISCONFIGURED, f"aws is not configured: {error}") from error
