"""Users and rules in a person's hands: list, create and delete users, set passwords, add and remove rules."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headgate.broker.access_requests import ABOUT, ACCESS, check_created, creations, described, verifiers
from headgate.broker.cluster.acl import VALID, Acl, Operation, Pattern, Permission, Resource, from_words, spelled
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.http.hands.room import Hand, Room
from headgate.broker.wire.grpc.headgate.v1 import access_pb2
from headgate.broker.wire.kafka.carried import first
from headgate.broker.wire.kafka.messages.create_acls import CreateAclsResponse
from headgate.broker.wire.kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from headgate.broker.wire.kafka.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

ROWS_MAX = 500
"""Users, and rules, that are listed: a search finds others."""
TEXT_CHARS_MAX = 250
OPERATIONS = [operation.name.lower() for operation in Operation if operation is not Operation.ANY]
WORDS = ("resource", "name", "pattern", "principal", "host", "operation", "permission")
"""The parts of a rule, as fields of a form."""
SENTENCES = {
    "created": "The user is created. Unless it may do everything, it may do nothing until a rule allows it.",
    "password": "The password is changed. Connections that exist stay logged in.",
    "deleted": "The user is deleted. Rules about it stay until they are removed.",
    "added": "The rules are in force.",
    "removed": "The rule is removed.",
}


class AccessPages:
    """The answers of ``/access``, and the acts on users and rules."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def access(self, request: Request) -> Response:
        """Users and rules, all or those that a search finds; with `user` in the address, what can be done to that user."""
        hand, values = await self._room.hand(request), request.query_params
        search, chosen = values.get("search", "").strip()[:TEXT_CHARS_MAX], values.get("user", "")
        listed: access_pb2.ListUsersResponse = await hand.inner.call(
            ACCESS["ListUsers"], access_pb2.ListUsersRequest(), hand.visitor.client
        )
        if chosen and all(user.name != chosen for user in listed.users):
            raise InvalidError(Reason.UNKNOWN_USER, f"there is no such user. user=`{chosen[:TEXT_CHARS_MAX]}`")
        users = [user for user in listed.users if search in user.name]
        known = await _rules(hand, f"User:{chosen}" if chosen else None)
        rules = [rule for rule in known if search in f"{rule.principal} {rule.name}"]
        return await self._room.page(
            "access",
            self._room.entrance.known(hand.visitor),
            search=search,
            chosen=chosen,
            users=[(user, _day(user.created_ms)) for user in users[:ROWS_MAX]],
            users_total=len(users),
            rules=[(rule, _words(rule)) for rule in rules[:ROWS_MAX]],
            rules_total=len(rules),
            resources=[resource.name.lower() for resource in VALID],
            operations=OPERATIONS,
            is_in_force=hand.inner.engine.settings.authorization != "none",
            done=SENTENCES.get(values.get("done", ""), ""),
        )

    # -- acts

    async def create_user(self, hand: Hand, fields: dict[str, str]) -> Response:
        name = fields.get("name", "")
        request = access_pb2.CreateUserRequest(
            name=name, verifiers=await verifiers(fields.get("password", "")), superuser="superuser" in fields
        )
        await hand.inner.call(ACCESS["CreateUser"], request, hand.visitor.client)
        return _back("created", name)

    async def set_password(self, hand: Hand, fields: dict[str, str]) -> Response:
        name = fields.get("user", "")
        request = access_pb2.SetPasswordRequest(name=name, verifiers=await verifiers(fields.get("password", "")))
        await hand.inner.call(ACCESS["SetPassword"], request, hand.visitor.client)
        return _back("password", name)

    async def delete_user(self, hand: Hand, fields: dict[str, str]) -> Response:
        name = fields.get("user", "")
        if fields.get("confirm", "") != name:
            raise InvalidError(Reason.INVALID_REQUEST, "to delete the user, write its name into the field")
        await hand.inner.call(ACCESS["DeleteUser"], access_pb2.DeleteUserRequest(name=name), hand.visitor.client)
        return _back("deleted")

    async def add_rules(self, hand: Hand, fields: dict[str, str]) -> Response:
        """Add one rule for each operation."""
        words = {word: fields.get(word, "").strip() for word in WORDS}
        words["name"], words["pattern"] = spelled(words["resource"], words["name"])
        operations = [operation for operation in words["operation"].split(",") if operation.strip()]
        if not operations:
            raise InvalidError(Reason.INVALID_REQUEST, "write an operation, such as read, or several with commas between them")
        rules = [from_words(**{**words, "operation": operation}) for operation in operations]
        await hand.ask(creations(rules), CreateAclsResponse, check_created)
        return _back("added")

    async def remove_rule(self, hand: Hand, fields: dict[str, str]) -> Response:
        rule = from_words(**{word: fields.get(word, "") for word in WORDS})
        exactly = DeleteAclsFilter(
            resource_type_filter=rule.resource,
            resource_name_filter=rule.name,
            pattern_type_filter=rule.pattern,
            principal_filter=rule.principal,
            host_filter=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        request = DeleteAclsRequest(filters=[exactly])
        if not (await hand.ask(request, DeleteAclsResponse, first("filter_results", ABOUT))).matching_acls:
            raise InvalidError(Reason.NOT_FOUND, "the rule is not there any more: load the page again")
        return _back("removed")


def _back(done: str, user: str = "") -> Response:
    return RedirectResponse("/access?" + urlencode({"done": done, **({"user": user} if user else {})}), 303)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d") if ms else ""


async def _rules(hand: Hand, principal: str | None) -> list[Acl]:
    """The rules of a principal; None: all."""
    request = DescribeAclsRequest(
        resource_type_filter=Resource.ANY,
        resource_name_filter=None,
        pattern_type_filter=Pattern.ANY,
        principal_filter=principal,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    return sorted(await hand.ask(request, DescribeAclsResponse, described), key=lambda rule: (rule.principal, rule))


def _words(rule: Acl) -> dict[str, str]:
    """The fields of a form that is about a rule."""
    values = {word: getattr(rule, word) for word in WORDS}
    return {word: value if isinstance(value, str) else value.name.lower() for word, value in values.items()}
