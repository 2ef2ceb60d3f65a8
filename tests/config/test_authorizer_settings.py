"""The settings of the authorizer, as Kafka reads them."""

from __future__ import annotations

import pytest

from odradek import config, config_loading
from odradek.properties import ConfigError, split_principals
from odradek.values import Principal

REQUIRED = {"broker.id": "0", "zookeeper.connect": "localhost:2181"}
CLASS = "authorizer.class.name"


@pytest.mark.parametrize("name", config.AUTHORIZERS)
def test_both_names_of_kafkas_authorizer_are_accepted(name: str) -> None:
    read, unknown = config_loading.from_values({**REQUIRED, CLASS: name, "super.users": "User:a"})
    assert (read.authorizer_class_name, read.allow_everyone_if_no_acl_found) == (name, False)
    assert unknown == []


@pytest.mark.parametrize("name", ["org.example.Authorizer", "AclAuthorizer", "true"])
def test_any_other_authorizer_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} for configuration authorizer.class.name"):
        config_loading.from_values({**REQUIRED, CLASS: name})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        (" ; ", []),
        ("User:a", ["a"]),
        ("User:a; User:CN=b,O=c:d ;", ["a", "CN=b,O=c:d"]),
    ],
)
def test_super_users_are_split_at_semicolons(text: str, names: list[str]) -> None:
    read, _ = config_loading.from_values({**REQUIRED, "super.users": text})
    assert split_principals(read.super_users) == {Principal("User", one) for one in names}


@pytest.mark.parametrize("text", ["admin", "User:", "User:a,b;c", "User:a;;User:b"])
def test_super_users_without_a_type_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"configuration super\.users: .* is no principal"):
        config_loading.from_values({**REQUIRED, "super.users": text})
