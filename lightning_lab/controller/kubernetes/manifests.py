"""What the API server is sent: a Job and a Secret for each attempt, one NetworkPolicy for the lab. Pure functions.

A template is taken as it is where it says something; what it leaves open gets the values of the ``restricted`` pod
security standard. Names and labels, one try, and no service account's token are not up to it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from lightning_lab.controller.kubernetes.settings import Cluster
from lightning_lab.harnesses import Harness, HarnessError
from lightning_lab.records import Rollout

HOME = "/home/agent"
WORK = "/work"
LAB_LABEL = "lightning-lab/lab"
JOB_LABEL = "lightning-lab/job"
ROLLOUT_ANNOTATION = "lightning-lab/rollout"
_TASK_FILE = "task.json"
_TTL_S = 600
"""How long the cluster keeps a finished Job that nobody removed, because the lab died."""
_SECRET_LIMIT = 900_000
"""Bytes; the API server takes 1 MiB for the whole Secret, base64 and all."""
_USER = 1000

Manifest = dict[str, Any]


def job_name(rollout_id: str, attempt: int) -> str:
    """The same for the same attempt, different for any other; a DNS label.

    >>> job_name("r-01ABC", 1)
    'll-r-01abc-1-498a36cd'
    """
    mark = hashlib.sha256(f"{rollout_id}\\0{attempt}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9]+", "-", rollout_id.lower())[:40].strip("-")
    return f"ll-{readable}-{attempt}-{mark}"


def labels(cluster: Cluster, name: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "lightning-lab", LAB_LABEL: cluster.lab_id.lower(), JOB_LABEL: name}


def job(harness: Harness, rollout: Rollout, cluster: Cluster) -> Manifest:
    """The Job of one attempt. Raises `HarnessError` if a template does not give exactly one."""
    made = _from_template(harness, rollout) if "template" in harness.job else _from_fields(harness, rollout)
    name = job_name(rollout.id, rollout.attempt)
    _own(made, name, rollout, cluster)
    spec = made["spec"]
    spec["backoffLimit"] = 0
    for pods in ("completions", "parallelism"):
        spec[pods] = 1
    spec.setdefault("activeDeadlineSeconds", math.ceil(harness.timeout_s + cluster.start_limit_s))
    spec.setdefault("ttlSecondsAfterFinished", _TTL_S)
    pod = spec["template"]
    pod["metadata"] = {**pod.get("metadata", {})}
    pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **labels(cluster, name)}
    _restrict(pod["spec"])
    _furnish(pod["spec"]["containers"][0], pod["spec"], name, harness)
    return made


def secret(harness: Harness, rollout: Rollout, cluster: Cluster, values: Mapping[str, str], uid: str) -> Manifest:
    """The agent's variables and its task, owned by the Job with this ``uid``: the cluster removes both together.

    ``values`` has all of `secret_names`; the key is among them and nowhere else.
    """
    name = job_name(rollout.id, rollout.attempt)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": labels(cluster, name),
            "ownerReferences": [owner],
        },
        "stringData": {**values, _TASK_FILE: task_file(rollout)},
    }


def secret_names(harness: Harness) -> list[str]:
    """The variables that the pod takes from the Secret."""
    way = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "LIGHTNING_LAB_ROLLOUT")
    return [*way, *(name for name in harness.env if name not in way)]


def task_file(rollout: Rollout) -> str:
    """All of the task but the answer. Raises `HarnessError` where it cannot travel in a Secret."""
    task = rollout.task
    if task.fields.get("files"):
        raise HarnessError(f"Task {task.id} has files; a pod finds its files in its image. Put them there.")
    content = {"id": task.id, "prompt": task.prompt, "source": task.source, "fields": dict(task.fields)}
    text = json.dumps(content, default=str, ensure_ascii=False)
    if len(text.encode("utf-8", "replace")) > _SECRET_LIMIT:
        raise HarnessError(
            f"Task {task.id} has more than {_SECRET_LIMIT} bytes; it travels in a Secret, which has not."
        )
    return text


def network_policy(cluster: Cluster) -> Manifest:
    """Pods of this lab may call the gateway and ask for names; nothing may call them."""
    bits = cluster.gateway_address.max_prefixlen
    gateway = {
        "to": [{"ipBlock": {"cidr": f"{cluster.gateway_address}/{bits}"}}],
        "ports": [{"protocol": "TCP", "port": cluster.gateway_port}],
    }
    names = {
        "to": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            }
        ],
        "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": policy_name(cluster),
            "namespace": cluster.namespace,
            "labels": {LAB_LABEL: cluster.lab_id.lower()},
        },
        "spec": {
            "podSelector": {"matchLabels": {LAB_LABEL: cluster.lab_id.lower()}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": [gateway, names],
        },
    }


def policy_name(cluster: Cluster) -> str:
    return f"lightning-lab-{cluster.lab_id.lower()}"


def _from_fields(harness: Harness, rollout: Rollout) -> Manifest:
    resources = dict(harness.job["resources"])
    container: Manifest = {
        "name": "agent",
        "image": harness.job["image"],
        "workingDir": WORK,
        "resources": {"requests": resources, "limits": resources},
    }
    if harness.argv:
        # `$(NAME)` would be replaced by the kubelet; a doubled sign is taken as one
        container["command"] = [part.replace("$", "$$") for part in harness.arguments(rollout.task)]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def _from_template(harness: Harness, rollout: Rollout) -> Manifest:
    import jinja2
    import yaml  # type: ignore[import-untyped]
    from jinja2.sandbox import SandboxedEnvironment

    task = rollout.task
    values = {**task.fields, "prompt": task.prompt, "id": task.id, "timeout_s": harness.timeout_s}
    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, default=str, ensure_ascii=True)
    try:
        text = environment.from_string(harness.job["template"]).render(values)
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except jinja2.TemplateError as error:
        raise HarnessError(
            f"The template of {harness.name} cannot be filled in: {error}. The task has {', '.join(sorted(values))}."
        ) from error
    except yaml.YAMLError as error:
        raise HarnessError(f"The template of {harness.name} is no YAML once filled in: {error}") from error
    if len(documents) != 1:
        raise HarnessError(
            f"The template of {harness.name} gives {len(documents)} documents; one Job is needed. Text of a task "
            "that holds '---' or quotes must be written as {{ prompt | tojson }}."
        )
    return _checked(documents[0], harness.name)


def _checked(document: Any, name: str) -> Manifest:
    kind = document.get("kind") if isinstance(document, dict) else type(document).__name__
    if kind != "Job" or document.get("apiVersion") != "batch/v1":
        raise HarnessError(f"The template of {name} gives a {kind}; a Job of batch/v1 is needed.")
    try:
        containers = document["spec"]["template"]["spec"]["containers"]
        complete = bool(containers) and all(each["image"] for each in containers)
    except (KeyError, TypeError):
        complete = False
    if not complete:
        raise HarnessError(f"The Job of {name} has no spec.template.spec.containers with an image: there is no agent.")
    return dict(document)


def _own(made: Manifest, name: str, rollout: Rollout, cluster: Cluster) -> None:
    metadata = dict(made.get("metadata") or {})
    metadata.pop("generateName", None)
    made["metadata"] = {
        **metadata,
        "name": name,
        "namespace": cluster.namespace,
        "labels": {**metadata.get("labels", {}), **labels(cluster, name)},
        "annotations": {**metadata.get("annotations", {}), ROLLOUT_ANNOTATION: f"{rollout.id}/{rollout.attempt}"},
    }


def _restrict(pod: Manifest) -> None:
    """The standard's ``restricted`` profile, and a root file system that cannot be written."""
    pod["restartPolicy"] = "Never"
    pod["automountServiceAccountToken"] = False
    pod.setdefault("enableServiceLinks", False)
    security = pod.setdefault("securityContext", {})
    for key, value in (("runAsNonRoot", True), ("runAsUser", _USER), ("runAsGroup", _USER), ("fsGroup", _USER)):
        security.setdefault(key, value)
    security.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.setdefault("securityContext", {})
        own.setdefault("allowPrivilegeEscalation", False)
        own.setdefault("readOnlyRootFilesystem", True)
        own.setdefault("capabilities", {"drop": ["ALL"]})
        for amounts in container.get("resources", {}).values():
            if isinstance(amounts, dict):  # YAML's `cpu: 1` is a number; in JSON a quantity is text
                amounts.update({key: str(amount) for key, amount in amounts.items()})


def _furnish(container: Manifest, pod: Manifest, name: str, harness: Harness) -> None:
    """What the agent needs: its variables, its task, and places to write."""
    container.setdefault("name", "agent")
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    given = secret_names(harness)
    kept = [each for each in container.get("env", []) if each.get("name") not in given and each.get("name") != "HOME"]
    container["env"] = [
        *kept,
        {"name": "HOME", "value": HOME},
        *({"name": each, "valueFrom": {"secretKeyRef": {"name": name, "key": each}}} for each in given),
    ]
    mounts, volumes = container.setdefault("volumeMounts", []), pod.setdefault("volumes", [])
    taken = {mount.get("mountPath") for mount in mounts}
    for volume, path in (("ll-tmp", "/tmp"), ("ll-home", HOME), ("ll-work", WORK)):
        if path not in taken:
            volumes.append({"name": volume, "emptyDir": {}})
            mounts.append({"name": volume, "mountPath": path})
    volumes.append(
        {"name": "ll-task", "secret": {"secretName": name, "items": [{"key": _TASK_FILE, "path": _TASK_FILE}]}}
    )
    mounts.append({"name": "ll-task", "mountPath": f"{WORK}/{_TASK_FILE}", "subPath": _TASK_FILE, "readOnly": True})
