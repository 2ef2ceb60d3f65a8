"""What a listener plan becomes in the pods of brokers: settings, files and start. Pure.

Settings are in the ConfigMap, as for any cluster. Keys, certificates and the password with which
brokers authenticate to each other are files of one Secret, which all pods mount. Brokers take new
certificates from there while they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from odradek.oauth_settings import ALLOWED_URLS, OAUTHBEARER
from odradek_operator.cluster import listener_plan
from odradek_operator.cluster.listener_plan import ListenerPlan
from odradek_operator.shared import cluster_secrets
from odradek_operator.shared.listener_spec import TLS, ListenerSpec, OauthSpec
from odradek_operator.shared.objects import Object, digest

SECRET_PATH: Final = "/etc/odradek-secrets"  # noqa: S105 (a folder)
# Keys of the Secret.
PASSWORD_SETTINGS: Final = "secret.properties"  # noqa: S105 (the name of a file)
HOSTS: Final = "hosts"
OWN_PEM: Final = "broker.pem"
EXPOSED_HOSTS: Final = "exposed-hosts"
# Key of the ConfigMap: what brokers advertise on exposed listeners (`exposed_addresses`).
EXPOSED: Final = "exposed"
# Annotation of pods: what brokers were started with.
HASH: Final = "odradek.io/listeners-hash"
AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
REFUSED_IN_TOKENS: Final = "odradek.oauthbearer.refused.principals"

# A certificate must prove the address that a broker advertises, which is known once its pod has a
# node. `advertised` has @ where that address goes.
_START: Final = """\
until grep -qxF "$ADVERTISED_HOST" {secrets}/hosts; do
  [ -n "$waits" ] || echo "waiting for certificates that prove $ADVERTISED_HOST" >&2
  waits=yes
  sleep 1
done
case "$ADVERTISED_HOST" in *:*) ADVERTISED_HOST="[$ADVERTISED_HOST]" ;; esac
rack=$(sed -n "s|^$NODE_NAME=||p" {config}/racks | head -n 1)
{wait}umask 077
cat {config}/server.properties {secrets}/secret.properties >/tmp/server.properties || exit 1
set -- --override "broker.id=${{POD_NAME##*-}}" \\
  --override "advertised.listeners=$(sed "s|@|$ADVERTISED_HOST|g" {config}/advertised){more}"
[ -z "$rack" ] || set -- "$@" --override "broker.rack=$rack"
exec odradek broker /tmp/server.properties "$@"
"""
# An address outside is known once the Service has it, or the pod a node; certificates prove it.
_WAIT_OUTSIDE: Final = """\
outside=
waits=
until [ -n "$outside" ]; do
  while read -r id node listeners hosts; do
    case "$id $node" in
      "${{POD_NAME##*-}} *" | "${{POD_NAME##*-}} $NODE_NAME") outside=$listeners ;;
      *) continue ;;
    esac
    for host in $hosts; do
      grep -qxF "$host" {secrets}/exposed-hosts || outside=
    done
  done <{config}/exposed
  [ -n "$outside" ] && break
  [ -n "$waits" ] || echo "waiting for the addresses of the Services of $POD_NAME" >&2
  waits=yes
  sleep 1
done
"""


@dataclass(frozen=True, slots=True)
class ListenerSetup:
    """A plan, and what is known of the Secret that goes with it.

    `trusting` are the listeners that have a trust store there. Pods are restarted when `restart`
    changes: it stands for what brokers do not read again. On the listeners `exposed`, they
    advertise what their line says.
    """

    plan: ListenerPlan
    cluster: str
    trusting: frozenset[str]
    restart: tuple[str, ...]
    exposed: frozenset[str] = frozenset()
    exposed_lines: str = ""

    @property
    def secret(self) -> str:
        """Name of the Secret that the pods mount."""
        return cluster_secrets.brokers(self.cluster)

    def annotations(self) -> dict[str, str]:
        """Annotations of the pod template."""
        fields = [listener_plan.encode(self.plan.settled()), *self.restart, *sorted(self.trusting)]
        # Clusters without any keep what they have, and need no restart.
        fields += [f"exposed: {one}" for one in sorted(self.exposed)]
        return {HASH: digest(fields)}


def settings(setup: ListenerSetup) -> dict[str, str]:
    """Return what server.properties says of listeners and authorization; no secrets."""
    plan = setup.plan
    between = plan.find(plan.between)
    assert between is not None
    found = {
        "listeners": ",".join(f"{one.kafka_name}://:{one.port}" for one in plan.listeners),
        "listener.security.protocol.map": ",".join(
            f"{one.kafka_name}:{one.protocol}" for one in plan.listeners
        ),
        "inter.broker.listener.name": between.kafka_name,
    }
    if between.mechanism:
        found["sasl.mechanism.inter.broker.protocol"] = between.mechanism
    for one in plan.listeners:
        prefix = f"listener.name.{one.name}."
        own = _tls(one, one.name in setup.trusting) if one.tls else {}
        if one.mechanism:
            own["sasl.enabled.mechanisms"] = one.mechanism
        if one.oauth is not None:
            own |= _oauth(one.oauth)
        found |= {prefix + name: text for name, text in own.items()}
    if urls := sorted({one.oauth.jwks_uri for one in plan.listeners if one.oauth is not None}):
        found[ALLOWED_URLS] = ",".join(urls)
        found[REFUSED_IN_TOKENS] = ";".join(listener_plan.no_token_users(setup.cluster))
    if plan.authorization is not None:
        found |= {
            "authorizer.class.name": AUTHORIZER,
            "super.users": ";".join(listener_plan.super_users(plan, setup.cluster)),
            "allow.everyone.if.no.acl.found": str(plan.authorization.allow_everyone).lower(),
        }
    return found


def _oauth(oauth: OauthSpec) -> dict[str, str]:
    prefix = "sasl.oauthbearer"
    found = {
        "sasl.enabled.mechanisms": OAUTHBEARER,
        f"{prefix}.jwks.endpoint.url": oauth.jwks_uri,
        f"{prefix}.expected.issuer": oauth.issuer_uri,
        f"{prefix}.sub.claim.name": oauth.user_claim,
    }
    if oauth.audience:
        found[f"{prefix}.expected.audience"] = oauth.audience
    return found


def _tls(listener: ListenerSpec, trusting: bool) -> dict[str, str]:
    found = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{SECRET_PATH}/{key_file(listener)}",
        "ssl.client.auth": "required" if listener.authentication == TLS else "none",
    }
    if trusting:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.location"] = f"{SECRET_PATH}/{trust_file(listener)}"
    return found


def key_file(listener: ListenerSpec) -> str:
    """Return the key of the Secret with key and certificates of a listener."""
    return OWN_PEM if listener.of_own_ca else f"{listener.name}.pem"


def trust_file(listener: ListenerSpec) -> str:
    """Return the key of the Secret with whom a listener trusts."""
    return f"{listener.name}-trust.pem"


def password_settings(plan: ListenerPlan, password: str) -> str:
    """Return the settings with which brokers authenticate to each other."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return "".join(
        f"listener.name.{one.name}.{one.mechanism.lower()}.sasl.jaas.config={module} required "
        f'username="{cluster_secrets.BROKER_USER}" password="{password}";\n'
        for one in plan.listeners
        if one.mechanism
    )


def start(setup: ListenerSetup, config: str) -> str:
    """Return the command of a broker's container; `config` is where its ConfigMap is."""
    places = {"config": config, "secrets": SECRET_PATH}
    wait = _WAIT_OUTSIDE.format(**places) if setup.exposed else ""
    return _START.format(wait=wait, more=",$outside" if setup.exposed else "", **places)


def files(setup: ListenerSetup) -> dict[str, str]:
    """Return what the ConfigMap has besides settings.

    `advertised` is advertised.listeners with @ for the broker's address, without exposed ones.
    """
    own = [one for one in setup.plan.listeners if one.name not in setup.exposed]
    found = {"advertised": ",".join(f"{one.kafka_name}://@:{one.port}" for one in own)}
    return found | ({EXPOSED: setup.exposed_lines} if setup.exposed else {})


def ports(plan: ListenerPlan) -> list[tuple[str, int]]:
    """Return the ports of containers and Services, by name."""
    return [(one.name, one.port) for one in plan.listeners]


def volume(setup: ListenerSetup) -> Object:
    """Return the volume with the Secret."""
    return {"name": "secrets", "secret": {"secretName": setup.secret, "defaultMode": 0o440}}


def mount() -> dict[str, Any]:
    """Return its mount."""
    return {"name": "secrets", "mountPath": SECRET_PATH, "readOnly": True}
