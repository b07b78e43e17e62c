"""The files of `deploy/` against the product: ports, paths, users, settings and versions.

Rendering needs helm, and so does the comparison of `deploy/kubernetes.yaml` with the chart; everything else is read as text. A
mismatch means that an image, a chart or a service starts something that this version does not have.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import headgate
from headgate.broker.runtime.config import Settings
from headgate.broker.server.main import EXIT_FENCED, EXIT_USAGE
from tests.support.broker_process import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "headgate"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_one_version() -> None:
    chart = document(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (headgate.__version__, headgate.__version__)
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == headgate.__version__


def test_the_image_is_not_run_by_root_and_answers_for_its_health() -> None:
    last = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    users = re.findall(r"^USER (.+)$", last, re.M)
    assert users == ["10001"], "the last word about the user is a number, not root"
    assert "10001" in (CHART / "templates" / "_helpers.tpl").read_text()
    settings = Settings.load([], {})
    ports = [str(port) for port in (settings.kafka_port, settings.grpc_port, settings.http_port)]
    assert re.findall(r"^EXPOSE (.+)$", last, re.M) == [" ".join(ports)]
    (check,) = re.findall(r"HEALTHCHECK.* CMD (\[.*\])$", last, re.M)
    assert json.loads(check) == ["headgate", "health"]


def test_the_images_command_is_a_broker_of_this_version() -> None:
    given = json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.M)[-1])
    environment = dict(re.findall(r"(HEADGATE_\w+)=(\S+)", re.findall(r"^ENV (.+)$", DOCKERFILE, re.M)[0]))
    settings = Settings.load(given[1:], environment)
    assert (given[0], settings.host, settings.store, settings.store_create) == ("broker", "0.0.0.0", "/data", True)


def test_compose_publishes_each_port_of_three_brokers() -> None:
    services = document(DEPLOY / "compose.yaml")["services"]
    published = {int(one.split(":")[2]) for one in services["brokers"]["ports"]}
    assert {port + 10 * broker for port in (9092, 9095) for broker in range(3)} <= published
    for name, service in services.items():
        assert all(other in services for other in service.get("depends_on", {})), name
    compile(services["bucket"]["command"][0], "bucket", "exec")


def unit_of_systemd() -> dict[str, list[str]]:
    """The values of each key of the unit, in their order."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (DEPLOY / "headgate.service").read_text(), re.M):
        found.setdefault(key, []).append(value)
    return found


def test_the_service_of_systemd_drains_and_comes_back_after_it_was_replaced() -> None:
    unit = unit_of_systemd()
    assert unit["KillSignal"] == ["SIGTERM"] and int(unit["TimeoutStopSec"][0]) >= 60 and unit["DynamicUser"] == ["yes"]
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == (["always"], ["0"])
    assert EXIT_FENCED not in map(int, unit["RestartPreventExitStatus"]) and EXIT_USAGE in map(
        int, unit["RestartPreventExitStatus"]
    )


def test_the_service_of_systemd_makes_its_store_once(tmp_path: Path) -> None:
    """The unit's command, with a stand-in for headgate that says what it was asked, and ends as it is told."""
    unit = unit_of_systemd()
    for name in unit["StateDirectory"][0].split():
        (tmp_path / name).mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "headgate").write_text('#!/bin/sh\necho "$@" >> asked\n[ "$1" = init ] && exit "$INIT"\nexit "$BROKER"\n')
    (tmp_path / "bin" / "headgate").chmod(0o755)
    command = shlex.split(unit["ExecStart"][0].replace("%S", str(tmp_path)))

    def start(init: int, broker: int) -> tuple[int, list[str]]:
        """One start by systemd. Returns the exit code and what headgate was asked."""
        (tmp_path / "asked").write_text("")
        environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "INIT": str(init), "BROKER": str(broker)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
        return done.returncode, (tmp_path / "asked").read_text().splitlines()

    assert start(init=1, broker=0) == (1, ["init"]), "the store did not answer: the next start tries again"
    assert start(init=EXIT_USAGE, broker=0) == (EXIT_USAGE, ["init"])
    assert start(init=0, broker=EXIT_FENCED) == (EXIT_FENCED, ["init", "broker"])
    assert start(init=0, broker=EXIT_USAGE) == (EXIT_USAGE, ["broker"]), "a store that was lost is not made anew"


def test_an_executor_starts_spark_as_spark_asks(tmp_path: Path) -> None:
    """With a stand-in for Java that prints its arguments."""
    (tmp_path / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").write_text(f'#!/bin/sh\ncase "$2" in *java_home*) echo {tmp_path}/java ;; *) echo /opt/pyspark ;; esac\n')
    for name in ("java", "python"):
        (tmp_path / name).chmod(0o755)
    given = {
        "SPARK_JAVA_OPT_0": "-Da=b c", "SPARK_JAVA_OPT_1": "-Dd=e", "SPARK_EXECUTOR_MEMORY": "4g", "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "1", "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod-1", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run([DEPLOY / "spark-executor.sh", "executor"], env=given, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[:4] == ["-Da=b c", "-Dd=e", "-Xms4g", "-Xmx4g"]
    assert said[6] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(said[7::2], said[8::2], strict=True)) == {
        "--driver-url": "spark://driver", "--executor-id": "1", "--cores": "2", "--app-id": "app", "--hostname": "10.0.0.7",
        "--resourceProfileId": "0", "--podName": "pod-1",
    }  # fmt: skip


def manifests(name: str) -> dict[tuple[str, str], Any]:
    """The objects of a rendered chart, by kind and name."""
    objects = [one for one in yaml.safe_load_all((DEPLOY / name).read_text()) if one]
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


def broker_settings(objects: dict[tuple[str, str], Any]) -> tuple[Any, Settings]:
    """The pod of a chart's brokers, and the settings with which a shell starts its broker."""
    pod = objects["StatefulSet", "headgate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = container["args"][0].replace("exec headgate broker", 'printf "%s\\n"')
    environment = {"HOSTNAME": "headgate-2", "PATH": os.environ["PATH"]}
    told = subprocess.run([*container["command"], command], env=environment, capture_output=True, text=True, check=True).stdout
    given = {one["name"]: one["value"] for one in container["env"]}
    return pod, Settings.load(told.splitlines(), given)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-secure.yaml"])
def test_brokers_of_the_chart_know_their_settings_and_every_port_is_reached(name: str) -> None:
    objects = manifests(name)
    pod, settings = broker_settings(objects)
    (container,) = pod["containers"]
    is_secure = "secure" in name
    assert (settings.broker_id, settings.advertised_host) == (3, "headgate-2.headgate-brokers.headgate.svc")
    assert settings.capacity_brokers_max == 8 and bool(settings.tls_certificate) == is_secure
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    opened = {"kafka": settings.kafka_port, "grpc": settings.grpc_port, "http": settings.http_port}
    assert ports == (opened | {"grpc-mtls": settings.grpc_mtls_port} if is_secure else opened)
    for service in ("headgate", "headgate-brokers"):
        served = {one["targetPort"] for one in objects["Service", service]["spec"]["ports"]}
        assert served >= set(ports) - {"http"}, "brokers reach each other at the names of pods, and KEDA at one name"
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked.get("scheme", "HTTP")) == (path, "HTTPS" if is_secure else "HTTP")


def test_the_secure_chart_keeps_files_where_settings_look_for_them() -> None:
    objects = manifests("kubernetes-secure.yaml")
    pod, settings = broker_settings(objects)
    places = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    for file in (settings.tls_certificate, settings.tls_key, settings.tls_ca, settings.admin_password_file, settings.oauth_jwks):
        volume = volumes[places[str(Path(file).parent)]]
        assert "configMap" in volume or volume["secret"]["defaultMode"] == 0o440, "the group of the pod reads it, others do not"
    assert (settings.kafka_protocol, settings.authorization, settings.wal_flush_bytes) == ("sasl_ssl", "acl", 16 << 20)
    names = objects["Certificate", "headgate"]["spec"]["dnsNames"]
    assert settings.advertised_host.split(".", 1)[1] == names[0].removeprefix("*."), "brokers are called by the names of pods"
    code = objects["Deployment", "headgate-dagster"]["spec"]["template"]["spec"]
    (cluster,) = [one["value"] for one in code["containers"][0]["env"] if one["name"] == "HEADGATE_CLUSTER"]
    (authority,) = [one["secret"] for one in code["volumes"] if one["name"] == "tls"]
    assert authority["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "the brokers' key is theirs"
    assert cluster.startswith(f"tls://{names[1]}:9095?ca=/etc/headgate-tls/ca.crt")


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-secure.yaml"])
def test_pods_of_dagsters_runs_get_what_the_code_location_has(name: str) -> None:
    """By the container context that Dagster's run launcher for Kubernetes reads from the code server."""
    code = manifests(name)["Deployment", "headgate-dagster"]["spec"]["template"]["spec"]
    (container,) = code["containers"]
    given = {one["name"]: one["value"] for one in container["env"]}
    context = json.loads(given.pop("DAGSTER_CONTAINER_CONTEXT"))["k8s"]
    del given["DAGSTER_CURRENT_IMAGE"]  # Dagster passes the image on by itself
    assert dict(one.split("=", 1) for one in context["env_vars"]) == given
    assert (context["volumes"], context["volume_mounts"]) == (code["volumes"], container["volumeMounts"])
    assert context["service_account_name"] == code["serviceAccountName"]
    assert context["run_k8s_config"]["pod_spec_config"]["securityContext"] == code["securityContext"]


def test_keda_asks_the_secure_brokers_by_certificate() -> None:
    objects = manifests("kubernetes-secure.yaml")
    (trigger,) = objects["ScaledObject", "headgate"]["spec"]["triggers"]
    shown = objects["TriggerAuthentication", trigger["authenticationRef"]["name"]]["spec"]["secretTargetRef"]
    made = {one["spec"]["secretName"] for (kind, _), one in objects.items() if kind == "Certificate"}
    assert {one["parameter"] for one in shown} == {"caCert", "tlsClientCert", "tlsClientKey"} and {
        one["name"] for one in shown
    } == made
    assert trigger["metadata"]["scalerAddress"] == "headgate.headgate.svc:9096", "the port that takes certificates"
    policy = objects["NetworkPolicy", "headgate"]["spec"]
    assert {"port": "grpc-mtls"} in next(one["ports"] for one in policy["ingress"] if "keda" in str(one["from"]))


def test_the_registry_of_the_chart_and_of_compose_uses_the_brokers() -> None:
    (chart,) = manifests("kubernetes-secure.yaml")["Deployment", "headgate-registry"]["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one.get("value") for one in chart["env"]}
    assert given["KARAPACE_BOOTSTRAP_URI"] == "headgate.headgate.svc:9092" and given["KARAPACE_SECURITY_PROTOCOL"] == "SASL_SSL"
    compose = document(DEPLOY / "compose.yaml")["services"]["registry"]
    assert compose["image"].split(":")[0] == chart["image"].split(":")[0] and compose["entrypoint"] == chart["command"]
    assert compose["environment"]["KARAPACE_BOOTSTRAP_URI"] == "127.0.0.1:9092" and compose["profiles"] == ["registry"]


def test_the_manifests_are_the_rendered_chart(tmp_path: Path) -> None:
    places = os.pathsep.join([os.environ.get("PATH", ""), os.environ.get("GOBIN", ""), str(Path.home() / "go" / "bin")])
    if shutil.which("helm", path=places) is None:
        pytest.skip("helm is not installed: go install helm.sh/helm/v3/cmd/helm@latest")
    subprocess.run([DEPLOY / "render", tmp_path], env={**os.environ, "PATH": places}, check=True, timeout=60)
    for name in ("kubernetes.yaml", "kubernetes-secure.yaml"):
        assert (tmp_path / name).read_text() == (DEPLOY / name).read_text(), "run deploy/render"
