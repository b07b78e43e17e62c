"""The settings of a fleet, from the environment: for Dagster's code location and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field, ValidationError

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.fleets.local import LocalFleet

if TYPE_CHECKING:
    from headgate.pipelines.cluster import ClusterCalls
    from headgate.pipelines.fleets.interface import Fleet

_NAMES = {
    "kind": "HEADGATE_FLEET",
    "workload": "HEADGATE_FLEET_WORKLOAD",
    "namespace": "HEADGATE_FLEET_NAMESPACE",
    "maximum": "HEADGATE_FLEET_MAX",
}


class FleetSettings(BaseModel):
    """The fields of Dagster's `FleetResource`, where they are described."""

    kind: Literal["local", "kubernetes"] = "local"
    workload: str = ""
    namespace: str = "default"
    workload_kind: Literal["statefulset", "deployment"] = "statefulset"
    minimum: int = Field(default=1, ge=0)
    maximum: int = Field(default=64, ge=1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> FleetSettings:
        """The settings of ``HEADGATE_FLEET`` and the like. Raises InvalidError for a wrong or a missing value."""
        given = {field: value for field, name in _NAMES.items() if (value := environment.get(name))}
        try:
            found = cls(**given)  # type: ignore[arg-type]  # pydantic checks them
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0])
            raise InvalidError(
                Reason.INVALID_CONFIG, f"the fleet is not one: {first['msg'].lower()}. {_NAMES[field]}=`{given[field]}`"
            ) from None
        if found.kind != "local" and not found.workload:
            raise InvalidError(
                Reason.INVALID_CONFIG,
                f"HEADGATE_FLEET_WORKLOAD is missing: the StatefulSet or Deployment. HEADGATE_FLEET=`{found.kind}`",
            )
        return found

    def fleet(self, cluster: ClusterCalls) -> Fleet:
        """The fleet. Raises FatalError when it is not configured."""
        if self.kind == "kubernetes":
            from headgate.pipelines.fleets.kubernetes import KubernetesFleet

            return KubernetesFleet(
                namespace=self.namespace, workload=self.workload, kind=self.workload_kind, minimum=self.minimum,
                maximum=self.maximum,
            )  # fmt: skip
        return LocalFleet(cluster.desired)
