"""What is sent to a cluster: it fits the published schema, gives a pod no more than it needs, names what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from kubernetes import client

from lightning_lab.controller.kubernetes import manifests, schema
from lightning_lab.controller.kubernetes.settings import Cluster, ClusterError
from lightning_lab.harnesses import Harness, HarnessError
from lightning_lab.records import Rollout, RolloutState, Task

CLUSTER = Cluster(gateway_url="http://10.0.0.5:8090", namespace="agents", lab_id="01LAB")
DOCUMENT = Path(__file__).parents[3] / "docs" / "kubernetes.md"
TEMPLATE = """
apiVersion: batch/v1
kind: Job
metadata: {generateName: mine-, labels: {team: red}}
spec:
  backoffLimit: 6
  template:
    spec:
      automountServiceAccountToken: true
      securityContext: {runAsUser: 4000}
      containers:
        - image: repo:{{ level }}
          args: [{{ prompt | tojson }}]
          resources: {limits: {cpu: 1}}
          securityContext: {readOnlyRootFilesystem: false}
          env: [{name: OPENAI_API_KEY, value: mine}, {name: OTHER, value: kept}]
"""


def rollout(harness, **changes):
    task = Task(**{"id": "t", "prompt": "6 * 7 = $(HOME)?", "answer": "42", "fields": {"level": 3}, **changes})
    return Rollout(
        id="r-01ABC",
        run_id="run",
        group_id="g",
        task=task,
        harness=harness.info,
        mode="single",
        state=RolloutState.QUEUING,
    )


def job(harness, **changes):
    return manifests.job(harness, rollout(harness, **changes), CLUSTER)


def fits(manifest, model):
    """Whether the client's model of the published schema keeps all of it."""
    return client.ApiClient().sanitize_for_serialization(getattr(client, model).from_dict(manifest)) == manifest


def test_every_manifest_fits_the_published_schema():
    harness = Harness.kubernetes("agent:1", ["run", "{prompt}"], env={"TOKEN": "{key}"})
    values = dict.fromkeys(manifests.secret_names(harness), "x")
    assert fits(job(harness), "V1Job")
    assert fits(job(Harness.kubernetes(template=TEMPLATE)), "V1Job")
    assert fits(manifests.secret(harness, rollout(harness), CLUSTER, values, "uid"), "V1Secret")
    assert fits(manifests.network_policy(CLUSTER), "V1NetworkPolicy")


def test_the_role_in_the_documentation_fits_the_schema():
    blocks = DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[-1].split("```")[0]
    models = {"Namespace": "V1Namespace", "ServiceAccount": "V1ServiceAccount", "Role": "V1Role"}
    models["RoleBinding"] = "V1RoleBinding"
    documents = list(yaml.safe_load_all(blocks))
    assert [each["kind"] for each in documents] == [*models]
    assert all(fits(each, models[each["kind"]]) for each in documents)


def test_the_template_in_the_documentation_is_a_job():
    template = DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    made = job(Harness.kubernetes(template=template), prompt='say "no":\n---\n{{ x }}')
    schema.check_job(made, "documentation")
    assert made["spec"]["template"]["spec"]["containers"][0]["command"][-1] == 'say "no":\n---\n{{ x }}'


def test_a_pod_is_restricted():
    spec = job(Harness.kubernetes("agent:1", timeout_s=60))["spec"]
    pod, container = spec["template"]["spec"], spec["template"]["spec"]["containers"][0]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 360, 600)
    assert (pod["automountServiceAccountToken"], pod["restartPolicy"]) == (False, "Never")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/tmp", "/home/agent", "/work"}


def test_a_template_decides_what_is_its_own_to_decide():
    made = job(Harness.kubernetes(template=TEMPLATE))
    pod, container = made["spec"]["template"]["spec"], made["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["args"]) == ("repo:3", ["6 * 7 = $(HOME)?"])
    assert made["metadata"]["labels"]["team"] == "red"
    assert (pod["securityContext"]["runAsUser"], container["securityContext"]["readOnlyRootFilesystem"]) == (
        4000,
        False,
    )
    assert (made["spec"]["backoffLimit"], pod["automountServiceAccountToken"]) == (0, False)
    given = {each["name"]: each for each in container["env"]}
    assert given["OTHER"]["value"] == "kept"
    assert "valueFrom" in given["OPENAI_API_KEY"]


def test_a_name_is_of_one_attempt_alone():
    names = {manifests.job_name(id_, attempt) for id_ in ("r-A", "r-a", "R_A" * 40) for attempt in (1, 2)}
    assert len(names) == 6
    assert all(len(name) <= 63 for name in names)


def test_the_kubelet_replaces_nothing_in_a_prompt():
    command = job(Harness.kubernetes("agent:1", ["run", "{prompt}"]))["spec"]["template"]["spec"]["containers"][0][
        "command"
    ]
    assert command == ["run", "6 * 7 = $$(HOME)?"]


def test_pods_may_call_the_gateway_and_dns_alone():
    policy = manifests.network_policy(CLUSTER)["spec"]
    gateway, names = policy["egress"]
    assert gateway["to"] == [{"ipBlock": {"cidr": "10.0.0.5/32"}}]
    assert gateway["ports"] == [{"protocol": "TCP", "port": 8090}]
    assert {port["port"] for port in names["ports"]} == {53}
    assert (policy["ingress"], policy["policyTypes"]) == ([], ["Ingress", "Egress"])


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (TEMPLATE + "\n---\nkind: Secret\n", "2 documents"),
        ("", "one of both"),
        ("kind: Pod\napiVersion: v1\n", "gives a Pod"),
        ("just words", "gives a str"),
        ("kind: Job\napiVersion: batch/v1\nspec: {}\n", "no agent"),
        ("a: {{ nothing }}", "'nothing' is undefined"),
        ("a: {% if %}", "cannot be filled in"),
        ("a: [", "no YAML"),
        (TEMPLATE.replace("backoffLimit", "backofLimit"), "spec.backofLimit"),
        (TEMPLATE.replace("backoffLimit: 6", "activeDeadlineSeconds: soon"), "activeDeadlineSeconds"),
    ],
)
def test_a_template_that_is_no_job_is_refused(template, words):
    with pytest.raises(HarnessError, match=words):
        schema.check_job(job(Harness.kubernetes(template=template)), "mine")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"image": "a", "template": "b"}, "one of both"),
        ({"template": "b", "command": ["c"]}, "complete"),
        ({"image": "a", "command": "run it"}, "list of arguments"),
        ({"image": "a", "timeout_s": 0}, "above 0"),
    ],
)
def test_a_pod_put_together_wrongly_is_refused(arguments, words):
    with pytest.raises(HarnessError, match=words):
        Harness.kubernetes(**arguments)


@pytest.mark.parametrize(
    ("fields", "words"), [({"files": {"a": "b"}}, "in its image"), ({"text": "x" * 1_000_000}, "Secret")]
)
def test_a_task_that_cannot_travel_is_refused(fields, words):
    with pytest.raises(HarnessError, match=words):
        manifests.task_file(rollout(Harness.kubernetes("agent:1"), fields=fields))


@pytest.mark.parametrize("url", ["http://127.0.0.1:8090", "http://0.0.0.0:80", "http://lab.example:80", "lab"])
def test_an_address_of_no_use_to_a_pod_is_refused(url):
    with pytest.raises(ClusterError, match="gateway_url"):
        Cluster(gateway_url=url, namespace="agents", lab_id="01LAB")
