"""packaging/kubernetes: valid by the schemas of Kubernetes, one with the settings of a server that starts with them,
whose probes answer; and the commands of docs/howto/kubernetes.md and kubernetes-run.md.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.test_setup_pages import commands, dockerfile
from tests.support.certificates import Authority
from tests.support.process import STANIEL, run_staniel, until
from tests.support.transcripts import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "kubernetes"
SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parent / "kubernetes-1.37.json").read_text("utf-8"))
SETTINGS = "staniel.toml"
CLUSTER = [*commands("kubernetes"), *commands("kubernetes-run")]
MONITOR = "monitor.yaml"  # of a kind that Kubernetes has no schema of
MANIFESTS = sorted({path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml", MONITOR})


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice, which YAML's own loader takes the last of."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key stands twice: {keys} {node.start_mark}"
        return dict(super().construct_mapping(node, deep=deep))


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(text, Strict) if each]


def check(document: dict[str, Any]) -> None:
    """Raise what is wrong with one object, by its kind's strict schema. Importing `jsonschema` takes two seconds, which
    each process that collects the tests would spend.
    """
    import jsonschema

    (name,) = [each for each in SCHEMAS["$defs"] if each.endswith(f".v1.{document['kind']}")]
    jsonschema.Draft202012Validator({**SCHEMAS, "$ref": f"#/$defs/{name}"}).validate(document)


def manifest(name: str) -> dict[str, Any]:
    (found,) = documents((FOLDER / name).read_text("utf-8"))
    return found


def pod() -> dict[str, Any]:
    template: dict[str, Any] = manifest("statefulset.yaml")["spec"]["template"]
    return template


def container() -> dict[str, Any]:
    (found,) = pod()["spec"]["containers"]
    return dict(found)


def settings() -> dict[str, Any]:
    return tomllib.loads((FOLDER / SETTINGS).read_text("utf-8"))


@pytest.mark.parametrize("name", MANIFESTS)
def test_each_manifest_is_what_its_kind_is_made_of(name: str) -> None:
    check(manifest(name))


def test_the_check_finds_what_is_wrong() -> None:
    from jsonschema import ValidationError

    wrong = manifest("statefulset.yaml")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["ports"] = 1
    with pytest.raises(ValidationError, match="ports"):
        check(wrong)
    with pytest.raises(AssertionError, match="twice"):
        documents("a: 1\na: 2\n")


def test_the_kustomization_names_what_is_there() -> None:
    (told,) = documents((FOLDER / "kustomization.yaml").read_text("utf-8"))
    assert sorted(told["resources"]) == MANIFESTS
    assert told["configMapGenerator"] == [{"name": "staniel", "files": [SETTINGS]}]
    assert [each["name"] for each in told["images"]] == [container()["image"]]
    assert {path.name for path in FOLDER.iterdir()} == {"kustomization.yaml", SETTINGS, MONITOR, *MANIFESTS}


@pytest.mark.programs("kubectl")
def test_kubectl_makes_valid_objects_of_the_kustomization() -> None:
    made = documents(subprocess.check_output(["kubectl", "kustomize", str(FOLDER)], text=True))
    for each in made:
        check(each)
    assert {each["kind"] for each in made} == {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    assert all(each["metadata"]["labels"] == pod()["metadata"]["labels"] for each in made)
    (config,) = [each for each in made if each["kind"] == "ConfigMap"]
    assert config["data"] == {SETTINGS: (FOLDER / SETTINGS).read_text("utf-8")}


def test_labels_ports_and_volumes_fit_each_other_and_the_settings() -> None:
    stateful, service, budget = (
        manifest(f"{name}.yaml")["spec"] for name in ("statefulset", "service", "disruption-budget")
    )
    labels = pod()["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == service["selector"] == budget["selector"]["matchLabels"] == labels
    assert stateful["serviceName"] == manifest("service.yaml")["metadata"]["name"] and stateful["replicas"] == 1
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert ports == {"memcache-tls": settings()["memcache"]["tls_port"], "admin-tls": settings()["admin"]["tls_port"]}
    assert {each["targetPort"]: each["port"] for each in service["ports"]} == ports
    assert all(len(name) <= 15 for name in ports)
    volumes = {each["name"] for each in pod()["spec"]["volumes"]}
    claims = {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    assert set(mounts) == volumes | claims and claims == {"spool"}
    assert mounts["spool"] == settings()["server"]["spool"] == dockerfile("VOLUME")
    assert f"{mounts['settings']}/{SETTINGS}" in dockerfile("CMD")
    users = settings()["users"]
    assert {each["token_file"] for each in users.values()} == {f"{mounts['tokens']}/{name}" for name in users}
    assert Path(settings()["tls"]["key"]).parent == Path(mounts["tls"])
    assert container()["env"] == [{"name": "STANIEL_SPOOL", "value": mounts["spool"]}]


def test_the_pod_is_closed_up_and_has_time_to_stop() -> None:
    spec, inner = pod()["spec"], container()["securityContext"]
    uid, gid = map(int, dockerfile("USER").split(":"))
    outer = spec["securityContext"]
    assert (outer["runAsUser"], outer["runAsGroup"], outer["fsGroup"], outer["runAsNonRoot"]) == (uid, gid, gid, True)
    assert inner["readOnlyRootFilesystem"] and not inner["allowPrivilegeEscalation"]
    assert inner["capabilities"] == {"drop": ["ALL"]} and spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] >= 30, "docs/howto/start-and-stop.md"
    resources = container()["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] and "cpu" not in resources["limits"]
    for volume in spec["volumes"]:
        assert volume.get("secret", {"defaultMode": 0o440})["defaultMode"] == 0o440  # `secrets_readable` otherwise


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """What stands for the pod's paths and ports."""
    made = {name: str(tmp_path / Path(name).name) for name in ("/var/lib/staniel", "/run/secrets/staniel/tokens")}
    made |= {"/run/secrets/staniel/tls": str(tmp_path / "tls"), "/etc/staniel": str(tmp_path / "etc")}
    made |= {"22134": str(free_port()), "22135": str(free_port())}
    for name in ("tokens", "tls", "etc"):
        (tmp_path / name).mkdir()
    authority = Authority(tmp_path)
    files = authority.issue("staniel")
    for file, kept in ((files.certificate, "tls.crt"), (files.key, "tls.key"), (authority.path, "ca.crt")):
        (tmp_path / "tls" / kept).write_bytes(file.read_bytes())
    for user in settings()["users"]:
        (tmp_path / "tokens" / user).write_text(f"{user}-0123456789abcdef\n")
    for secret in (*(tmp_path / "tokens").iterdir(), tmp_path / "tls" / "tls.key"):
        secret.chmod(0o440)
    return made


def there(text: str, place: dict[str, str]) -> str:
    for name, real in place.items():
        text = text.replace(name, real)
    return text


@pytest.fixture
def server(place: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The image's command with the settings of the ConfigMap."""
    config = Path(place["/etc/staniel"]) / SETTINGS
    config.write_text(there((FOLDER / SETTINGS).read_text("utf-8"), place))
    checked = run_staniel("config", "check", str(config))
    assert checked.returncode == 0, checked
    words = [there(word, place) for word in re.findall(r'"([^"]+)"', dockerfile("CMD"))]
    with subprocess.Popen([*STANIEL, *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        try:
            assert child.stdout is not None and "listens on" in child.stdout.readline()
            yield child
        finally:
            child.kill()


def probed(name: str, place: dict[str, str]) -> int:
    """The status that the kubelet gets, which does not verify certificates."""
    probe = container()[name]["httpGet"]
    (port,) = [each["containerPort"] for each in container()["ports"] if each["name"] == probe["port"]]
    url = f"{probe['scheme'].lower()}://127.0.0.1:{place[str(port)]}{probe['path']}"
    try:
        with urllib.request.urlopen(url, context=ssl._create_unverified_context(), timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_server_with_these_settings_answers_the_probes_and_stops_in_time(
    server: subprocess.Popen[str], place: dict[str, str]
) -> None:
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert [probed(name, place) for name in probes] == [200, 200, 200]
    spool = ("--spool", place["/var/lib/staniel"])
    assert run_staniel("status", "quiescent", *spool).returncode == 0
    assert until(lambda: probed("readinessProbe", place) == 503), "no consumer can drain it: out of the service"
    assert probed("livenessProbe", place) == 200
    server.send_signal(signal.SIGTERM)
    assert server.wait(pod()["spec"]["terminationGracePeriodSeconds"]) == 0


def test_what_the_monitor_scrapes_is_there(server: subprocess.Popen[str], place: dict[str, str]) -> None:
    monitor = manifest(MONITOR)
    assert monitor["spec"]["selector"]["matchLabels"] == manifest("service.yaml")["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    ports = {each["name"]: each["port"] for each in manifest("service.yaml")["spec"]["ports"]}
    credentials, ca = endpoint["authorization"]["credentials"], endpoint["tlsConfig"]["ca"]["secret"]
    assert (credentials["name"], ca["name"]) == ("staniel-tokens", "staniel-tls")
    token = (Path(place["/run/secrets/staniel/tokens"]) / credentials["key"]).read_text().strip()
    context = ssl.create_default_context(cafile=str(Path(place["/run/secrets/staniel/tls"]) / ca["key"]))
    url = f"{endpoint['scheme']}://127.0.0.1:{place[str(ports[endpoint['port']])]}{endpoint['path']}"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, context=context, timeout=60) as reply:
        assert b"staniel_up_seconds" in reply.read()


def test_the_commands_in_the_pod_work(server: subprocess.Popen[str], place: dict[str, str]) -> None:
    inside = [each.partition(" exec staniel-0 -- staniel ")[2] for each in CLUSTER]
    assert sum(map(bool, inside)) == 3
    for each in filter(None, inside):
        done = run_staniel(*shlex.split(there(each, place)), STANIEL_SPOOL=place["/var/lib/staniel"])
        assert done.returncode == 0, (each, done)


@pytest.mark.programs("kubectl", "openssl")
def test_the_commands_for_the_cluster_make_what_the_pod_mounts(place: dict[str, str], tmp_path: Path) -> None:
    """With --dry-run in the place of a cluster; `exec` is for the test above, docker for test_setup_pages.py."""
    for name, kept in (("server.pem", "tls.crt"), ("server.key", "tls.key"), ("ca.pem", "ca.crt")):
        (tmp_path / name).write_bytes((tmp_path / "tls" / kept).read_bytes())
    env = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    secrets: dict[str, set[str]] = {}
    seen = set()
    for each in CLUSTER:
        words = tuple(each.split()[:2])
        seen.add(words)
        if each.startswith("for user in"):
            subprocess.run(["bash", "-euc", each], cwd=tmp_path, check=True)
        elif words == ("kubectl", "create"):
            command = f"{each} --dry-run=client -o yaml"
            (made,) = documents(subprocess.check_output(command, shell=True, text=True, cwd=tmp_path, env=env))
            check(made)
            secrets[made["metadata"]["name"]] = set(made["data"])
        elif words == ("kubectl", "apply"):
            assert (ROOT / each.split()[-1] / "kustomization.yaml").exists()
        elif words in {("kubectl", "rollout"), ("kubectl", "delete")}:
            assert each.split()[-1] in {"statefulset/staniel", "staniel-0"}
    assert seen <= {("for", "user"), ("docker", "build"), ("docker", "push")} | {
        ("kubectl", verb) for verb in ("create", "apply", "rollout", "exec", "delete")
    }
    mounted = {each["secret"]["secretName"] for each in pod()["spec"]["volumes"] if "secret" in each}
    assert set(secrets) == mounted
    assert secrets == {"staniel-tokens": set(settings()["users"]), "staniel-tls": {"tls.crt", "tls.key", "ca.crt"}}
