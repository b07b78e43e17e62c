"""Brokers as a StatefulSet or Deployment in Kubernetes, scaled through its `scale` subresource with the official client.

Rejected: patching `spec.replicas` of the object itself, which needs more rights. KEDA or a HorizontalPodAutoscaler on the same
workload would overwrite the number in turn; use KEDA's external scaler, which asks the brokers, and `fleet: local`.
"""

from __future__ import annotations

from typing import Any, Literal

from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason, RetryError
from headgate.broker.runtime.extras import missing
from headgate.pipelines.fleets.interface import FleetState

TIMEOUT_S = 10
Kind = Literal["statefulset", "deployment"]


class KubernetesFleet:
    """One workload.

    Args:
        api: a `kubernetes.client.AppsV1Api`; None: made from the pod's service account, else from the user's kubeconfig.
        minimum, maximum: bounds of the requested number.

    Raises:
        FatalError: the client is not installed, or there is neither a service account nor a kubeconfig.
    """

    follows = False

    def __init__(
        self, *, namespace: str, workload: str, kind: Kind = "statefulset", minimum: int = 1, maximum: int = 64, api: Any = None
    ) -> None:
        self.name = f"{kind} {namespace}/{workload}"
        self._namespace = namespace
        self._workload = workload
        self._kind = kind
        self._minimum = minimum
        self._maximum = maximum
        self._api = _default_api() if api is None else api

    def state(self) -> FleetState:
        """Requested replicas, and ready pods."""
        read = self._method("read_namespaced", "")
        found = self._call(lambda: read(self._workload, self._namespace, _request_timeout=TIMEOUT_S))
        return FleetState(asked=found.spec.replicas or 0, running=(found.status and found.status.ready_replicas) or 0)

    def scale(self, brokers: int) -> FleetState:
        """Set the number of replicas. A surplus pod receives SIGTERM, and drains within its grace period."""
        wanted = max(self._minimum, min(self._maximum, brokers))
        before = self.state()
        if before.asked != wanted:
            patch = self._method("patch_namespaced", "_scale")
            body = {"spec": {"replicas": wanted}}
            self._call(lambda: patch(self._workload, self._namespace, body, _request_timeout=TIMEOUT_S))
        note = "" if wanted == brokers else f"brokers desired: {brokers}; the fleet's limits are {self._minimum} to {self._maximum}"
        return FleetState(asked=wanted, running=before.running, note=note)

    def _method(self, verb: str, suffix: str) -> Any:
        return getattr(self._api, f"{verb}_{'stateful_set' if self._kind == 'statefulset' else 'deployment'}{suffix}")

    def _call(self, work: Any) -> Any:
        from kubernetes.client.exceptions import ApiException  # type: ignore[import-untyped]
        from urllib3.exceptions import HTTPError

        try:
            return work()
        except ApiException as error:
            raise self._refused(error.status, error.reason) from error
        except HTTPError as error:
            raise RetryError(Reason.TIMED_OUT, f"the kubernetes api does not answer: {error}. workload=`{self.name}`") from error

    def _refused(self, status: int | None, reason: str | None) -> HeadgateError:
        if status in (401, 403):
            return FatalError(
                Reason.STORE_MISCONFIGURED,
                f"kubernetes refuses: a role that may scale is needed. status=`{status}` workload=`{self.name}`",
            )
        if status == 404:
            return FatalError(Reason.NOT_FOUND, f"kubernetes has no such workload. workload=`{self.name}`")
        return RetryError(Reason.NOT_READY, f"kubernetes answers with an error: {reason}. status=`{status}` workload=`{self.name}`")


def _default_api() -> Any:
    problem = missing("kubernetes")
    if problem is not None:
        raise FatalError(Reason.UNSUPPORTED, problem)
    from kubernetes import client, config  # type: ignore[import-untyped]

    try:
        config.load_incluster_config()
    except config.ConfigException:
        try:
            config.load_kube_config()
        except config.ConfigException as error:
            raise FatalError(
                Reason.STORE_MISCONFIGURED, f"kubernetes is not configured: neither a service account nor a kubeconfig. {error}"
            ) from error
    return client.AppsV1Api()
