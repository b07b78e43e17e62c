"""What a person does at the page: logs in and out, and sends forms.

Each form is one act, and each act one or more calls in this person's name, which the registry judges and the audit log notes
(`grpc/inner.py`). Here stands no rule of who may do what.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.http.guard import refusal
from headgate.broker.server.http.hands.access import AccessPages
from headgate.broker.server.http.hands.capacity import CapacityPages
from headgate.broker.server.http.hands.entrance import Who, local_path
from headgate.broker.server.http.hands.groups import GroupPages
from headgate.broker.server.http.hands.messages import MessagePages
from headgate.broker.server.http.hands.reading import Pace
from headgate.broker.server.http.hands.room import Hand, Room, sentence
from headgate.broker.server.http.hands.topics import TopicPages

Act = Callable[[Hand, dict[str, str]], Awaitable[Response]]


class Hands:
    """All answers that show messages or change something."""

    def __init__(self, room: Room, pace: Pace) -> None:
        self._room = room
        self.messages, self.groups, self.topics = MessagePages(room, pace), GroupPages(room), TopicPages(room)
        self.capacity, self.access = CapacityPages(room), AccessPages(room)
        self._acts: dict[str, Act] = {
            "positions": self.groups.set_positions,
            "forget-topic": self.groups.forget_topic,
            "delete-group": self.groups.delete,
            "create-topic": self.topics.create,
            "setting": self.topics.set_setting,
            "default": self.topics.unset_setting,
            "partitions": self.topics.add_partitions,
            "delete-topic": self.topics.delete,
            "release-gate": self.capacity.release_gate,
            "reserve": self.capacity.reserve,
            "give-back": self.capacity.give_back,
            "drain": self.capacity.drain,
            "create-user": self.access.create_user,
            "set-password": self.access.set_password,
            "delete-user": self.access.delete_user,
            "add-rules": self.access.add_rules,
            "remove-rule": self.access.remove_rule,
        }

    async def login(self, request: Request) -> Response:
        """The form to log in."""
        if self._room.entrance.security is None or not self._room.entrance.is_on:
            return RedirectResponse("/", 303)
        return await self._form(local_path(request.query_params.get("next", "/")))

    async def log_in(self, request: Request) -> Response:
        """Judge the form, and open a session."""
        entrance = self._room.entrance
        fields = await entrance.form(request, None)
        after, user = local_path(fields.get("next", "/")), fields.get("user", "")
        try:
            cookie = await entrance.log_in(request, user, fields.get("password", ""))
        except HeadgateError as error:
            return await self._form(after, sentence(error), user[:250], refusal(error).status_code)
        response = RedirectResponse(after, 303)
        entrance.give(response, cookie)
        return response

    async def _form(self, after: str, trouble: str = "", user: str = "", status: int = 200) -> Response:
        return await self._room.page("login", Who(), status, next=after, trouble=trouble, user=user)

    async def act(self, request: Request) -> Response:
        """One form."""
        name, entrance = request.path_params["act"], self._room.entrance
        if name == "log-out":
            await entrance.form(request, await entrance.visitor(request))
            response: Response = RedirectResponse("/", 303)
            entrance.log_out(request, response)
            return response
        act = self._acts.get(name)
        if act is None:
            raise InvalidError(Reason.NOT_FOUND, f"there is no such act. act=`{name[:50]}`")
        hand = await self._room.hand(request)
        return await act(hand, await entrance.form(request, hand.visitor))
