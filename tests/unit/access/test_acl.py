"""Kafka's rules of authorization as a table, and the changes of users and rules that are refused.

Runs the pure rules on made-up ACLs. Expected answers follow Kafka's StandardAuthorizer. A mismatch means that a client may do
what an operator forbade, or may not do what was allowed.
"""

from __future__ import annotations

import pytest

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import User
from headgate.broker.cluster.acl import Acl, AclFilter, Acls, Pattern, Permission, Resource, fault
from headgate.broker.cluster.acl import Operation as Op
from headgate.broker.cluster.edits.access import AddAcls, DeleteUser, PutUser
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_edits, encode_snapshot
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises

R = Resource
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def acl(
    text: str,
    operation: Op,
    permission: Permission = ALLOW,
    resource: Resource = R.TOPIC,
    who: str = "User:alice",
    host: str = "*",
) -> Acl:
    """A rule; a name that ends with ``~`` is a prefix."""
    pattern = Pattern.PREFIXED if text.endswith("~") else Pattern.LITERAL
    return Acl(
        resource=resource,
        name=text.removesuffix("~"),
        pattern=pattern,
        principal=who,
        host=host,
        operation=operation,
        permission=permission,
    )


@pytest.mark.parametrize(
    ("acls", "operation", "name", "allowed"),
    [
        ([], Op.READ, "a", False),
        ([acl("a", Op.READ)], Op.READ, "a", True),
        ([acl("a", Op.READ)], Op.READ, "b", False),
        ([acl("a", Op.READ)], Op.WRITE, "a", False),
        ([acl("a", Op.READ)], Op.DESCRIBE, "a", True),
        ([acl("a", Op.WRITE)], Op.DESCRIBE, "a", True),
        ([acl("a", Op.DELETE)], Op.DESCRIBE, "a", True),
        ([acl("a", Op.ALTER)], Op.DESCRIBE, "a", True),
        ([acl("a", Op.CREATE)], Op.DESCRIBE, "a", False),
        ([acl("a", Op.DESCRIBE)], Op.READ, "a", False),
        ([acl("a", Op.ALTER_CONFIGS)], Op.DESCRIBE_CONFIGS, "a", True),
        ([acl("a", Op.DESCRIBE_CONFIGS)], Op.ALTER_CONFIGS, "a", False),
        ([acl("a", Op.ALL)], Op.ALTER_CONFIGS, "a", True),
        ([acl("*", Op.READ)], Op.READ, "anything", True),
        ([acl("a~", Op.READ)], Op.READ, "abc", True),
        ([acl("a~", Op.READ)], Op.READ, "a", True),
        ([acl("a~", Op.READ)], Op.READ, "ba", False),
        ([acl("a~", Op.READ), acl("ab", Op.READ, DENY)], Op.READ, "ab", False),
        ([acl("a~", Op.READ), acl("ab", Op.READ, DENY)], Op.READ, "abc", True),
        ([acl("a", Op.READ), acl("*", Op.READ, DENY)], Op.READ, "a", False),
        ([acl("a", Op.READ), acl("a", Op.ALL, DENY)], Op.READ, "a", False),
        ([acl("a", Op.ALL), acl("a", Op.READ, DENY)], Op.DESCRIBE, "a", True),
        ([acl("a", Op.ALL), acl("a", Op.DESCRIBE, DENY)], Op.READ, "a", True),
        ([acl("a", Op.READ, who="User:bob")], Op.READ, "a", False),
        ([acl("a", Op.READ, who="User:*")], Op.READ, "a", True),
        ([acl("a", Op.READ), acl("a", Op.READ, DENY, who="User:*")], Op.READ, "a", False),
        ([acl("a", Op.READ, resource=R.GROUP)], Op.READ, "a", False),
        ([acl("a", Op.READ, host="10.0.0.1")], Op.READ, "a", True),
        ([acl("a", Op.READ, host="10.0.0.2")], Op.READ, "a", False),
        ([acl("a", Op.READ, host="10.0.0.0/8")], Op.READ, "a", True),
        ([acl("a", Op.READ, host="11.0.0.0/8")], Op.READ, "a", False),
        ([acl("a", Op.READ, host="2001:db8::/32")], Op.READ, "a", False),
        ([acl("a", Op.READ), acl("a", Op.READ, DENY, host="10.0.0.0/24")], Op.READ, "a", False),
    ],
)
def test_the_rules_of_kafka(acls: list[Acl], operation: Op, name: str, allowed: bool) -> None:
    assert Acls(acls).allows(("User:alice",), "10.0.0.1", operation, R.TOPIC, name) is allowed
    left = Acls([*acls, acl("other", Op.ALL)])
    left.remove(acl("other", Op.ALL))
    assert left.allows(("User:alice",), "10.0.0.1", operation, R.TOPIC, name) is allowed


@pytest.mark.parametrize(
    ("rule", "host", "is_about"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.0/8", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.0/104", "10.0.0.1", True),
        ("::ffff:10.0.0.0/104", "11.0.0.1", False),
        ("2001:DB8:0::1", "2001:db8::1", True),
        ("fe80::/16", "fe80::1%eth0", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("::/0", "10.0.0.1", False),
        ("10.0.0.1", "", False),
    ],
)
def test_a_host_is_the_same_however_a_socket_writes_it(rule: str, host: str, is_about: bool) -> None:
    """A DENY of an IPv4 address would miss its clients at a socket for both protocols."""
    rules = Acls([acl("a", Op.READ), acl("a", Op.READ, DENY, host=rule)])
    assert rules.allows(("User:alice",), host, Op.READ, R.TOPIC, "a") is not is_about


@pytest.mark.parametrize("denied", ["s3://lake/secret~", "s3://lake/%73ecret~", "s3://lake/secret/x"])
@pytest.mark.parametrize("path", ["s3://lake/secret/x", "s3://lake/%73ecret/x", "s3://lake/%73%65cret%2Fx"])
def test_a_file_is_denied_however_its_url_is_written(denied: str, path: str) -> None:
    rule = acl(denied, Op.READ, DENY, resource=R.FILE)
    rules = Acls([acl("s3://lake/~", Op.READ, resource=R.FILE), rule])
    assert not rules.allows(("User:alice",), "10.0.0.1", Op.READ, R.FILE, path)
    assert rules.allows(("User:alice",), "10.0.0.1", Op.READ, R.FILE, "s3://lake/%2573ecret/x"), "another file"
    rules.remove(rule)
    assert rules.allows(("User:alice",), "10.0.0.1", Op.READ, R.FILE, path)


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl("a", Op.WRITE)], True),
        ([acl("a~", Op.WRITE)], True),
        ([acl("a", Op.READ)], False),
        ([acl("a", Op.WRITE), acl("*", Op.WRITE, DENY)], False),
        ([acl("a", Op.WRITE), acl("a", Op.WRITE, DENY)], False),
        ([acl("ab", Op.WRITE), acl("a~", Op.WRITE, DENY)], False),
        ([acl("a~", Op.WRITE), acl("a", Op.WRITE, DENY)], True),
        ([acl("a", Op.ALL, who="User:*")], True),
    ],
)
def test_permission_on_some_resource(acls: list[Acl], allowed: bool) -> None:
    assert Acls(acls).allows_some(("User:alice",), "10.0.0.1", Op.WRITE, R.TOPIC) is allowed


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (AclFilter(), 4),
        (AclFilter(resource=R.GROUP), 1),
        (AclFilter(name="a"), 2),
        (AclFilter(resource=R.TOPIC, name="abc", pattern=Pattern.MATCH), 2),
        (AclFilter(pattern=Pattern.PREFIXED), 1),
        (AclFilter(operation=Op.WRITE), 1),
        (AclFilter(permission=DENY), 1),
        (AclFilter(principal="User:bob"), 1),
    ],
)
def test_filters_select_as_in_kafka(chosen: AclFilter, count: int) -> None:
    acls = [acl("a~", Op.READ), acl("*", Op.WRITE, DENY), acl("b", Op.READ, who="User:bob"), acl("a", Op.READ, resource=R.GROUP)]
    assert sum(chosen.selects(one) for one in acls) == count


@pytest.mark.parametrize(
    "wrong",
    [
        acl("a", Op.CLUSTER_ACTION), acl("a", Op.WRITE, resource=R.GROUP), acl("", Op.READ), acl("a", Op.READ, who="alice"),
        acl("a", Op.READ, host="somewhere"), acl("a", Op.ANY), acl("a", Op.READ, Permission.ANY),
        acl("a", Op.ALTER, resource=R.CLUSTER),
        acl("a", Op.READ, resource=R.ANY), acl("a", Op.READ, resource=R.GATE),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused(wrong: Acl) -> None:
    assert fault(wrong) is not None
    with pytest.raises(InvalidError):
        AddAcls([wrong]).check(Manifest())


def _user(name: str, *, superuser: bool = False, password: str = "p") -> User:
    return User(name=name, superuser=superuser, verifiers=scram.verifiers(password, lambda size: bytes(range(1, size + 1))))


def test_the_last_administrator_stays() -> None:
    manifest = Manifest()
    manifest.apply([PutUser(_user("root", superuser=True)), PutUser(_user("alice"))])
    for edit in (DeleteUser("root"), PutUser(_user("root"))):
        with raises(InvalidError, Reason.POLICY_VIOLATION):
            edit.check(manifest)
    PutUser(_user("root", superuser=True, password="q")).check(manifest)
    with pytest.raises(InvalidError, match="must keep it"):  # by AlterUserScramCredentials
        PutUser(User(name="root", superuser=True)).check(manifest)
    manifest.apply([PutUser(User(name="by-certificate", superuser=True))])
    with pytest.raises(InvalidError, match="last administrator"):
        DeleteUser("root").check(manifest)
    DeleteUser("by-certificate").check(manifest)
    manifest.apply([PutUser(_user("second", superuser=True))])
    DeleteUser("root").check(manifest)
    with raises(InvalidError, Reason.UNKNOWN_USER):
        DeleteUser("nobody").check(manifest)
    with raises(InvalidError, Reason.USER_EXISTS):
        PutUser(_user("alice"), new=True).check(manifest)


def test_users_and_rules_survive_edits_and_snapshots_and_hold_no_password() -> None:
    edits = [PutUser(_user("alice", password="hunter2")), AddAcls([acl("a~", Op.READ)])]
    data = encode_edits(edits)
    manifest = Manifest()
    manifest.apply(decode_edits(data))
    again = decode_snapshot(encode_snapshot(manifest))
    assert again.access.users == manifest.access.users and again.access.acls.all == manifest.access.acls.all
    assert again.access.acls.allows(("User:alice",), "h", Op.READ, R.TOPIC, "abc")
    assert b"hunter2" not in data + encode_snapshot(manifest)
