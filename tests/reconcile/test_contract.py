"""Every field that the resources' users were promised is in the CRDs, by its name."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.settings import REPO
from tests.support import objects
from tests.support.apiserver import ApiServer

DOCUMENTS: list[dict[str, Any]] = list(
    yaml.safe_load_all(Path(__file__).with_name("contract.yaml").read_text())
)


def name_of(document: dict[str, Any]) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


@pytest.fixture(scope="module")
def client(api: ApiServer) -> objects.ObjectClient:
    for namespace in {one["metadata"]["namespace"] for one in DOCUMENTS}:
        api.create_namespace(f"contract-{namespace}")
    return objects.client(api.kubeconfig)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_api_server_takes_the_document(
    client: objects.ObjectClient, document: dict[str, Any]
) -> None:
    wanted = copy.deepcopy(document)
    wanted.pop("status", None)
    namespace = wanted["metadata"]["namespace"] = f"contract-{document['metadata']['namespace']}"
    # Fields that the schema lacks are refused.
    client.create(namespace, wanted)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_schema_has_each_field_of_spec_and_status(document: dict[str, Any]) -> None:
    file = REPO / "crds" / f"{document['kind'].lower()}s.yaml"
    (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    parts = {one: document[one] for one in ("spec", "status") if one in document}
    assert list(unknown(schema, parts)) == []


def unknown(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that a schema does not have."""
    if isinstance(value, list):
        for one in value:
            yield from unknown(schema["items"], one, f"{path}[]")
    if isinstance(value, dict):
        for name, one in value.items():
            found = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if found is None:
                yield f"{path}.{name}"
            else:
                yield from unknown(found, one, f"{path}.{name}")
