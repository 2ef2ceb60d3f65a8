"""Principals of certificates: names as Java writes them, and rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Name, NameAttribute, ObjectIdentifier, RelativeDistinguishedName
from cryptography.x509.oid import NameOID

from odradek.listener_settings import principal_rules
from odradek.security import principals
from odradek.values import ANONYMOUS, Principal
from tests.support import certificates


def attribute(kind: ObjectIdentifier, text: str) -> NameAttribute[str]:
    return NameAttribute(kind, text)


CN, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
# What X500Principal.getName() of Java 17 printed for certificates with these subjects.
OF_JAVA = {
    r"CN=alice,O=Acme\, Inc.,C=DE": Name(
        [
            attribute(NameOID.COUNTRY_NAME, "DE"),
            attribute(NameOID.ORGANIZATION_NAME, "Acme, Inc."),
            attribute(CN, "alice"),
        ]
    ),
    r"CN=\ lead and trail\ ": Name([attribute(CN, " lead and trail ")]),
    r"CN=\#hash\+plus\=eq\<a\>\;\"q\\b": Name([attribute(CN, '#hash+plus=eq<a>;"q\\b')]),
    "CN=mail,1.2.840.113549.1.9.1=#16056140622e63": Name(
        [attribute(NameOID.EMAIL_ADDRESS, "a@b.c"), attribute(CN, "mail")]
    ),
    "OU=Z,L=Y,ST=X,STREET=Road 1,UID=u1,DC=example,DC=com": Name(
        [
            attribute(NameOID.DOMAIN_COMPONENT, "com"),
            attribute(NameOID.DOMAIN_COMPONENT, "example"),
            attribute(NameOID.USER_ID, "u1"),
            attribute(NameOID.STREET_ADDRESS, "Road 1"),
            attribute(NameOID.STATE_OR_PROVINCE_NAME, "X"),
            attribute(NameOID.LOCALITY_NAME, "Y"),
            attribute(OU, "Z"),
        ]
    ),
    "OU=unit+CN=multi": Name(
        [RelativeDistinguishedName([attribute(CN, "multi"), attribute(OU, "unit")])]
    ),
    "CN=Jürgen Größe 東京": Name([attribute(CN, "Jürgen Größe 東京")]),
    "CN=x,2.5.4.12=#0c024472,2.5.4.5=#1303313233": Name(
        [
            attribute(NameOID.SERIAL_NUMBER, "123"),
            attribute(NameOID.TITLE, "Dr"),
            attribute(CN, "x"),
        ]
    ),
    "CN=" + r"\ " * 3: Name([attribute(CN, "   ")]),
    r"CN=nul\00l": Name([attribute(CN, "nul\0l")]),
}


@pytest.mark.parametrize("expected", OF_JAVA)
def test_name_is_what_java_makes_of_it(expected: str, tmp_path: Path) -> None:
    issued = certificates.Authority(tmp_path).issue("one", subject=OF_JAVA[expected])
    der = issued.certificate.public_bytes(Encoding.DER)
    assert principals.distinguished_name(der) == expected
    whom = principals.of_certificate(der, principal_rules("DEFAULT"))
    assert whom == Principal("User", expected)


def test_peer_without_a_certificate_is_anonymous() -> None:
    assert principals.of_certificate(None, principal_rules("RULE:x/y/")) == ANONYMOUS


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L", "duke@serviceusers"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "DUKE"),
        ("RULE:^never$/x/,DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org,L=Un,ST=Un,C=Un"),
        ("RULE:^CN=(.*?),.*$/a\\$1$7/", "a$1$7"),
    ],
)
def test_first_rule_that_matches_counts(rules: str, expected: str) -> None:
    name = "CN=Duke,OU=ServiceUsers,O=Org,L=Un,ST=Un,C=Un"
    assert principals.mapped(name, principal_rules(rules)) == expected


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("RULE:^CN=y$/z/", "CN=x"),
        # For Java these are no letters, digits or spaces, and no other case.
        (r"RULE:^CN=(\w+)$/$1/", "CN=gr\u00fcn"),
        (r"RULE:^CN=(\d+)$/$1/", "CN=\u0661"),
        (r"RULE:^CN=a\sb$/ab/", "CN=a\u2003b"),
        ("RULE:(?i)^CN=kafka$/kafka/", "CN=\u212aafka"),
    ],
)
def test_name_that_no_rule_matches_is_nobody(rule: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"no rule .* is for {name}"):
        principals.mapped(name, principal_rules(rule))
