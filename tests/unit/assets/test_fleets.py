"""Fleets against the closest emulator: the official Kubernetes client against kmock.

Compared: the API's state afterwards, and the errors for missing or forbidden objects. The emulator starts no pods; the
tests do not cover a cluster's reaction to the number. A mismatch means that a fleet gets a wrong number of brokers, or an
unclear error.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kmock
import pytest
import yaml
from kubernetes import client as kubernetes  # type: ignore[import-untyped]

from headgate.assets.resources import FleetResource
from headgate.broker.client.control import DesiredBrokers
from headgate.broker.runtime.errors import FatalError, RetryError
from headgate.pipelines.fleets.interface import Fleet
from headgate.pipelines.fleets.kubernetes import KubernetesFleet
from headgate.pipelines.fleets.local import LocalFleet
from tests.support.ports import free_port
from tests.support.stand_in import StandInCluster, book

DEPLOY = Path(__file__).parents[3] / "deploy"


# -- local


def test_the_local_fleet_looks_on() -> None:
    fleet: Fleet = LocalFleet(lambda: DesiredBrokers(brokers=3, reasons=("a reservation",), live_brokers=2))
    assert fleet.follows and (fleet.scale(9).asked, fleet.state().running) == (3, 2)


def test_the_resource_makes_the_fleet_that_it_is_told() -> None:
    name, _ = book()
    assert FleetResource().fleet(StandInCluster(name=name)).name == "headgate up"


# -- kubernetes

LABELS = {"app": "headgate"}


@pytest.fixture
async def emulator() -> AsyncIterator[Any]:
    async with kmock.KubernetesEmulator() as handler, kmock.Server(handler):
        yield handler


@pytest.fixture
def api(emulator: Any) -> Iterator[Any]:
    configuration = kubernetes.Configuration(host=str(emulator.url).rstrip("/"))
    configuration.retries = False
    with kubernetes.ApiClient(configuration) as connection:
        yield kubernetes.AppsV1Api(connection)


def workload(kind: str) -> dict[str, Any]:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "broker", "image": "headgate"}]}}
    spec = {"replicas": 1, "serviceName": "brokers", "selector": {"matchLabels": LABELS}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "brokers"}, "spec": spec}


@pytest.mark.parametrize("kind", ["statefulset", "deployment"])
async def test_kubernetes_is_scaled_within_the_limits(api: Any, kind: Any) -> None:
    def work() -> None:
        make = api.create_namespaced_stateful_set if kind == "statefulset" else api.create_namespaced_deployment
        make("default", workload("StatefulSet" if kind == "statefulset" else "Deployment"))
        fleet: Fleet = KubernetesFleet(namespace="default", workload="brokers", kind=kind, minimum=1, maximum=5, api=api)
        assert not fleet.follows and fleet.name == f"{kind} default/brokers"
        assert fleet.state().asked == 1
        assert fleet.scale(3).asked == 3 and fleet.state().asked == 3
        most = fleet.scale(9)
        assert most.asked == 5 and most.note == "brokers desired: 9; the fleet's limits are 1 to 5"
        assert fleet.state().asked == 5
        assert fleet.scale(0).asked == 1 and fleet.state().asked == 1

    await asyncio.to_thread(work)


async def test_the_same_number_again_asks_for_nothing(api: Any, emulator: Any) -> None:
    def work() -> None:
        api.create_namespaced_stateful_set("default", workload("StatefulSet"))
        fleet = KubernetesFleet(namespace="default", workload="brokers", api=api)
        fleet.scale(2)
        fleet.scale(2)

    await asyncio.to_thread(work)
    assert len(emulator[kmock.method.PATCH]) == 1


async def test_kubernetes_has_no_such_workload(api: Any) -> None:
    with pytest.raises(FatalError, match="kubernetes has no such workload"):
        await asyncio.to_thread(KubernetesFleet(namespace="default", workload="gone", api=api).state)


@pytest.mark.parametrize(("status", "error"), [(401, FatalError), (403, FatalError), (500, RetryError), (429, RetryError)])
async def test_kubernetes_refuses(api: Any, emulator: Any, status: int, error: type[Exception]) -> None:
    emulator["get /apis/apps/v1/namespaces/default/statefulsets/brokers"] << status
    with pytest.raises(error, match=f"status=`{status}`"):
        await asyncio.to_thread(KubernetesFleet(namespace="default", workload="brokers", api=api).state)


def test_kubernetes_does_not_answer() -> None:
    configuration = kubernetes.Configuration(host=f"http://127.0.0.1:{free_port()}")
    configuration.retries = False
    with kubernetes.ApiClient(configuration) as connection, pytest.raises(RetryError, match="does not answer"):
        KubernetesFleet(namespace="default", workload="brokers", api=kubernetes.AppsV1Api(connection)).state()


def test_kubernetes_is_not_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    name, _ = book()
    with pytest.raises(FatalError, match="neither a service account nor a kubeconfig"):
        FleetResource(kind="kubernetes", workload="brokers").fleet(StandInCluster(name=name))


def test_the_manifests_are_what_the_fleet_scales() -> None:
    """The workload of the manifests is a StatefulSet; the role may change its scale, and nothing else."""
    documents = [one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if one]
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    stateful = kinds["StatefulSet", "headgate"]
    assert stateful["spec"]["selector"]["matchLabels"].items() <= stateful["spec"]["template"]["metadata"]["labels"].items()
    assert stateful["spec"]["serviceName"] in {one["metadata"]["name"] for one in documents if one["kind"] == "Service"}
    role = kinds["Role", "headgate-fleet"]["rules"]
    rules = {(resource, verb) for rule in role for resource in rule["resources"] for verb in rule["verbs"]}
    assert rules == {("statefulsets", "get"), ("statefulsets/scale", "patch")}


def test_the_manifests_are_what_the_api_takes() -> None:
    """Every field is a field of the API, as the official client defines them, and no required field is missing."""
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        model = f"V1{document['kind']}"
        assert unknown_fields(document, model, document["kind"]) == []
        with kubernetes.ApiClient() as connection:
            connection.deserialize(SimpleNamespace(data=json.dumps(document)), model)


def unknown_fields(value: Any, model: str, path: str) -> list[str]:
    """The fields of a manifest that its model does not have."""
    if isinstance(value, list):
        inner = model.removeprefix("list[").removesuffix("]")
        return [one for item in value for one in unknown_fields(item, inner, path)]
    found = getattr(kubernetes, model, None)
    if found is None or not isinstance(value, dict):
        return []
    names = {shown: name for name, shown in found.attribute_map.items()}
    wrong = [f"{path}.{name}" for name in value if name not in names]
    return wrong + [
        one
        for name, item in value.items()
        if name in names
        for one in unknown_fields(item, found.openapi_types[names[name]], f"{path}.{name}")
    ]


def test_the_api_takes_not_everything() -> None:
    """The check itself can fail."""
    document = {"spec": {"replica": 1, "template": {"spec": {"containers": [{"nam": "broker"}]}}}}
    assert unknown_fields(document, "V1StatefulSet", "") == [".spec.replica", ".spec.template.spec.containers.nam"]


def started_with(command: str, tmp_path: Path, **environment: str) -> list[str]:
    """The arguments that a container's shell passes to `headgate`."""
    for name, text in {"headgate": 'printf "%s\\n" "$@"', "hostname": "echo 10.0.3.17 172.17.0.2"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(["sh", "-c", command], env={"PATH": path, **environment}, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_each_pod_is_a_broker_of_its_own(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (container,) = next(one for one in documents if one["kind"] == "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    assert started_with(container["args"][0], tmp_path, HOSTNAME="headgate-2") == [
        "broker", "--broker-id", "3", "--host", "0.0.0.0", "--advertised-host", "headgate-2.headgate-brokers.headgate.svc",
        "--capacity-brokers-min", "1", "--capacity-brokers-max", "8",
    ]  # fmt: skip
