"""The way from one set of listeners to another: no broker ever meets one that it cannot talk to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import config_loading
from odradek.properties import load_properties, split_principals
from odradek.security.tokens import may_name
from odradek.values import parse_principal
from odradek_operator.cluster import listener_objects, listener_plan, objects
from odradek_operator.cluster.listener_objects import REFUSED_IN_TOKENS, ListenerSetup
from odradek_operator.cluster.listener_plan import ListenerPlan, LostPlanError
from odradek_operator.shared import cluster_access, cluster_secrets, cluster_spec
from odradek_operator.shared.listener_spec import (
    ANONYMOUS,
    AuthorizationSpec,
    IssuerRef,
    ListenerSpec,
    OauthSpec,
    parse_listeners,
)

PLAIN = ListenerSpec("plaintext", 9092)
SCRAM = ListenerSpec("internal", 9093, True, "scram-sha-512")
MUTUAL = ListenerSpec("external", 9094, True, "tls")
OTHER = ListenerSpec("other", 9095, True, "scram-sha-256", issuer=IssuerRef("ca", "Issuer"))
SIMPLE = AuthorizationSpec(("User:admin",))
LEGACY = ListenerPlan((PLAIN,), "plaintext", "plaintext", legacy=True)


def plan(
    *listeners: ListenerSpec, between: str = "", authorization: AuthorizationSpec | None = None
) -> ListenerPlan:
    name = between or listeners[0].name
    return ListenerPlan(listeners, name, name, authorization)


def way(applied: ListenerPlan, wanted: ListenerPlan) -> list[ListenerPlan]:
    """Return the plans from one to the other, each after all brokers run with the one before."""
    found: list[ListenerPlan] = []
    for _ in range(10):
        step = listener_plan.next_step(applied, wanted, settled=True)
        assert step.refused == step.waits == ""
        if step.plan.means(applied):
            return found
        found.append(step.plan)
        applied = step.plan
    raise AssertionError(f"no end: {found}")


def understand(one: ListenerPlan, other: ListenerPlan) -> bool:
    """Return whether a broker of one plan can send requests of brokers to one of the other."""
    used = one.find(one.between)
    assert used is not None
    if other.find(one.between) != used:
        return False
    if other.authorization is None:
        return other.between == one.between
    known = listener_plan.super_users(other, "main")
    if used.authentication == "none":
        return ANONYMOUS in known
    whom = "odradek-broker" if used.mechanism else listener_plan.broker_principal("main")
    return f"User:{whom}" in known


def test_from_plain_to_secured_in_three_rolls() -> None:
    wanted = plan(SCRAM, authorization=SIMPLE)
    steps = way(LEGACY, wanted)
    names = [({one.name for one in step.listeners}, step.between) for step in steps]
    assert names == [
        ({"internal", "plaintext"}, "plaintext"),
        ({"internal", "plaintext"}, "internal"),
        ({"internal"}, "internal"),
    ]
    bridge = AuthorizationSpec(("User:admin", ANONYMOUS))
    assert [step.authorization for step in steps] == [bridge, bridge, SIMPLE]


def test_listeners_of_clients_come_and_go_in_one_roll() -> None:
    secured = plan(SCRAM, authorization=SIMPLE)
    more = plan(SCRAM, MUTUAL, authorization=SIMPLE)
    assert len(way(secured, more)) == len(way(more, secured)) == 1
    moved = plan(SCRAM, replace(MUTUAL, port=9999), authorization=SIMPLE)
    assert len(way(more, moved)) == 1
    assert len(way(LEGACY, plan(PLAIN))) == 1


@pytest.mark.parametrize(
    ("applied", "wanted", "why"),
    [
        (LEGACY, plan(replace(SCRAM, port=9092)), "give internal another port"),
        (plan(SCRAM), plan(replace(SCRAM, port=9999)), "it cannot change"),
        (plan(SCRAM), plan(replace(SCRAM, secret_name="mine")), "it cannot change"),
        (LEGACY, plan(replace(PLAIN, tls=True)), "it cannot change"),
    ],
)
def test_unsafe_jumps_are_refused(applied: ListenerPlan, wanted: ListenerPlan, why: str) -> None:
    for settled in (False, True):
        step = listener_plan.next_step(applied, wanted, settled=settled)
        assert why in step.refused
        assert step.plan.means(applied)


def test_a_former_listener_between_brokers_is_one_of_clients_once_all_use_the_other() -> None:
    wanted = plan(OTHER, SCRAM, authorization=SIMPLE)
    *_, switched = way(plan(SCRAM, authorization=SIMPLE), wanted)
    assert switched.means(wanted)
    for settled, used in ((False, {"other", "internal"}), (True, {"other"})):
        step = listener_plan.next_step(switched, wanted, settled=settled)
        assert step.plan.in_use == used


def test_the_next_step_waits_for_the_roll_before_it() -> None:
    wanted = plan(SCRAM, authorization=SIMPLE)
    first, second, _ = way(LEGACY, wanted)
    assert listener_plan.next_step(first, wanted, settled=False).waits == (
        "brokers use listener internal between them"
    )
    assert (
        "lose listeners plaintext" in listener_plan.next_step(second, wanted, settled=False).waits
    )


def test_a_step_that_does_not_work_can_be_taken_back_at_once() -> None:
    wanted = plan(SCRAM, authorization=SIMPLE)
    first, second, _ = way(LEGACY, wanted)
    # The port was taken on the nodes.
    mended = plan(replace(SCRAM, port=9099), authorization=SIMPLE)
    step = listener_plan.next_step(first, mended, settled=False)
    assert [one.port for one in step.plan.listeners] == [9099, 9092]
    # Brokers cannot reach each other over the new one.
    back = plan(PLAIN, SCRAM, authorization=second.authorization)
    step = listener_plan.next_step(second, back, settled=False)
    assert (step.plan.between, step.plan.former) == ("plaintext", "internal")


@given(
    st.permutations([PLAIN, SCRAM, MUTUAL, OTHER]),
    st.permutations([PLAIN, SCRAM, MUTUAL, OTHER]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([None, SIMPLE, AuthorizationSpec((), True)]),
    st.sampled_from([None, SIMPLE]),
)
def test_brokers_understand_each_other_during_each_roll(
    before: list[ListenerSpec],
    after: list[ListenerSpec],
    had: int,
    has: int,
    old: AuthorizationSpec | None,
    new: AuthorizationSpec | None,
) -> None:
    # The CRD refuses authorization where brokers do not authenticate.
    applied = plan(*before[:had], authorization=old if before[0] != PLAIN else None)
    wanted = plan(*after[:has], authorization=new if after[0] != PLAIN else None)
    for step in way(applied, wanted):
        assert understand(applied, step)
        assert understand(step, applied)
        assert understand(step, step)
        assert listener_plan.decode(listener_plan.encode(step)) == step
        applied = step
    assert applied.means(wanted)


def test_what_is_left_open() -> None:
    def reason(*listeners: ListenerSpec, by: AuthorizationSpec | None = SIMPLE) -> str | None:
        found = listener_plan.why_not_secured(plan(*listeners, authorization=by))
        return found.reason if found else None

    assert reason(SCRAM, MUTUAL) is None
    assert reason(SCRAM, PLAIN) == "PlainText"
    assert reason(replace(SCRAM, tls=False)) == "PlainText"
    assert reason(SCRAM, replace(MUTUAL, authentication="none")) == "NoAuthentication"
    assert reason(SCRAM, by=None) == "NoAuthorization"
    assert reason(SCRAM, by=AuthorizationSpec((), True)) == "OpenAuthorization"


@pytest.mark.parametrize("text", [None, "", "{}", '{"listeners": 1}', '{"listeners": [{}]}'])
def test_annotation_that_somebody_lost_is_a_reason_and_no_plan(text: str | None) -> None:
    notes = {} if text is None else {listener_plan.ANNOTATION: text}
    ports = [{"name": "internal", "containerPort": 9093}]
    live = {
        "metadata": {"name": "main-broker", "annotations": notes},
        "spec": {"template": {"spec": {"containers": [{"ports": ports}]}}},
    }
    with pytest.raises(LostPlanError, match="StatefulSet main-broker has lost its annotation"):
        listener_plan.applied_plan(live)


def test_listener_for_tokens_is_one_that_brokers_start_with() -> None:
    raw = {
        "name": "tokens",
        "port": 9096,
        "tls": True,
        "authentication": {
            "type": "oauth",
            "jwksEndpointUri": "https://issuer.test:8443/keys",
            "validIssuerUri": "https://issuer.test",
            "audience": "brokers",
        },
    }
    (tokens,) = parse_listeners({"listeners": [raw]})
    oauth = OauthSpec("https://issuer.test:8443/keys", "https://issuer.test", "brokers")
    assert (tokens.oauth, tokens.mechanism, tokens.protocol) == (oauth, None, "SASL_SSL")
    found = plan(SCRAM, tokens, authorization=SIMPLE)
    assert listener_plan.decode(listener_plan.encode(found)) == found
    assert "oauth" not in listener_plan.encode(plan(SCRAM))
    assert listener_plan.why_not_secured(found) is None
    setup = ListenerSetup(found, "main", frozenset(), ())
    settings = {
        **listener_objects.settings(setup),
        "listener.name.internal.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="a" password="b";'
        ),
        "broker.id": "1",
        "zookeeper.connect": "zk:2181",
    }
    read, unknown = config_loading.from_values(settings)
    assert unknown == []
    sasl = read.security["TOKENS"].sasl
    assert sasl is not None
    assert sasl.oauth is not None
    assert (sasl.oauth.url, sasl.oauth.issuer) == (oauth.jwks_uri, oauth.issuer_uri)
    assert sasl.oauth.audiences == ("brokers",)


def test_tokens_name_no_super_user_that_the_operator_made_nor_whom_users_refuse() -> None:
    oauth = OauthSpec("https://issuer.test/keys", "https://issuer.test")
    tokens = ListenerSpec("tokens", 9096, True, "oauth", oauth=oauth)
    wanted = AuthorizationSpec(("User:admin", "User:ops"))
    found = plan(SCRAM, MUTUAL, tokens, authorization=wanted)
    setup = ListenerSetup(found, "main", frozenset(), ())
    refused = split_principals(listener_objects.settings(setup)[REFUSED_IN_TOKENS])
    supers = [parse_principal(one).name for one in listener_plan.super_users(found, "main")]
    assert [one for one in supers if may_name(one, refused)] == ["admin", "ops"]
    own = (cluster_secrets.EXPORTER_USER, cluster_secrets.CONSOLE_USER)
    for name in (*own, cluster_access.job_user("n", "j"), parse_principal(ANONYMOUS).name):
        assert not may_name(name, refused)
    # An issuer may vouch for a super user of the spec. Whoever does not want that adds the name.
    brokers = {"replicas": 1, "config": {REFUSED_IN_TOKENS: "User:admin;"}}
    body = {
        "kind": "KafkaCluster",
        "metadata": {"name": "main"},
        "spec": {"zookeeper": {"connect": "zk:2181"}, "brokers": brokers},
    }
    text = objects.server_properties(cluster_spec.parse_cluster(body), setup)
    refused = split_principals(load_properties(text)[REFUSED_IN_TOKENS])
    assert [one for one in supers if may_name(one, refused)] == ["ops"]
    # Clusters without tokens have no such line, and need no restart.
    plain = ListenerSetup(plan(SCRAM, MUTUAL, authorization=SIMPLE), "main", frozenset(), ())
    assert REFUSED_IN_TOKENS not in listener_objects.settings(plain)
