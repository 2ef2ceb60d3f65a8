"""The principal that a certificate stands for: its subject, as Java writes it, through rules.

Java's `X500Principal.getName()` gives the form of RFC 2253: the most specific part first, special
characters escaped, and parts of other types by number with the DER of their value in hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from cryptography import x509
from cryptography.x509 import NameAttribute
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from odradek.listener_settings import PrincipalRule
from odradek.values import ANONYMOUS, Principal

_KEYWORDS: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_GROUP: Final = re.compile(r"\$(\d)|\\(.)")
_LONG_LENGTH: Final = 0x80


def of_certificate(der: bytes | None, rules: Sequence[PrincipalRule]) -> Principal:
    """Return whom a verified certificate names; ANONYMOUS without one.

    Raises ValueError if no rule matches its subject.
    """
    if der is None:
        return ANONYMOUS
    return Principal("User", mapped(distinguished_name(der), rules))


def distinguished_name(der: bytes) -> str:
    """Return the subject of a certificate as Java writes it."""
    return of_java(x509.load_der_x509_certificate(der).subject)


def of_java(name: x509.Name) -> str:
    """Return a name as Java writes it."""
    return ",".join("+".join(map(_part, rdn)) for rdn in reversed(name.rdns))


def mapped(name: str, rules: Sequence[PrincipalRule]) -> str:
    """Return what the first rule makes of a name that it matches (Kafka's SslPrincipalMapper).

    As in Java, classes of letters and digits, and matches without case, are about ASCII only: else
    a rule would take letters of other scripts for those that it names. Raises ValueError if no rule
    matches.
    """
    for rule in rules:
        if rule.pattern is None:
            return name
        found = re.fullmatch(rule.pattern, name, re.ASCII)
        if found is not None:
            short = _GROUP.sub(partial(_expanded, found), rule.replacement)
            return {"L": short.lower(), "U": short.upper()}.get(rule.case, short)
    raise ValueError(f"no rule of ssl.principal.mapping.rules is for {name}")


def _expanded(found: re.Match[str], reference: re.Match[str]) -> str:
    """Return the group `$1`, or the character after a backslash; other groups stay as they are."""
    if reference[1] is None:
        return reference[2]
    number = int(reference[1])
    return (found[number] or "") if number <= found.re.groups else reference[0]


def _part(attribute: NameAttribute[str | bytes]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None:
        return f"{attribute.oid.dotted_string}=#{_der(attribute).hex()}"
    value = attribute.value
    text = value if isinstance(value, str) else value.decode(errors="replace")
    return f"{keyword}={_escaped(text)}"


def _escaped(text: str) -> str:
    plain = _ESCAPED.sub(lambda found: "\\" + found[0], text).replace("\0", "\\00")
    inner = plain.strip(" \r")
    if not inner:
        return "".join("\\" + one for one in plain)
    start = plain.index(inner)
    before, after = plain[:start], plain[start + len(inner) :]
    return "".join("\\" + one for one in before) + inner + "".join("\\" + one for one in after)


def _der(attribute: NameAttribute[str | bytes]) -> bytes:
    kind, value = attribute._type, attribute.value
    encodings = {_ASN1Type.BMPString: "utf-16-be", _ASN1Type.UniversalString: "utf-32-be"}
    content = value if isinstance(value, bytes) else value.encode(encodings.get(kind, "utf-8"))
    length = len(content)
    if length < _LONG_LENGTH:
        size = bytes([length])
    else:
        digits = length.to_bytes((length.bit_length() + 7) // 8, "big")
        size = bytes([_LONG_LENGTH | len(digits)]) + digits
    return bytes([kind.value]) + size + content
