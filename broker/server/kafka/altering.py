"""What AlterConfigs and IncrementalAlterConfigs share: each resource of a request is altered alone, and has its own result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.broker.server.kafka.context import Context
from headgate.broker.server.kafka.errors import error_code, error_message
from headgate.broker.server.kafka.requests import repeated


class Resource(Protocol):
    """A topic, a broker, a consumer group or client metrics, as a request names it."""

    resource_type: int
    resource_name: str


class Result(Protocol):
    """The result of one resource in a response."""

    error_code: int
    error_message: str | None


R = TypeVar("R", bound=Resource)


async def alter_each(
    resources: Sequence[R], add_result: Callable[[R], Result], alter: Callable[[R], Awaitable[None]], context: Context
) -> None:
    """Alter the resources of a request. One that occurs twice is altered never, and its only result says so.

    Args:
        add_result: adds a result without error for a resource to the response, and returns it.
        alter: changes one resource. Raises HeadgateError.
    """
    twice = await repeated(context, ((resource.resource_type, resource.resource_name) for resource in resources))
    named = {(resource.resource_type, resource.resource_name): resource async for resource in context.turn.each(resources)}
    async for key, resource in context.turn.each(named.items()):
        result = add_result(resource)
        try:
            if key in twice:
                raise InvalidError(Reason.INVALID_REQUEST, "resource is in the request more than once")
            await alter(resource)
        except HeadgateError as error:
            result.error_code = error_code(error)
            result.error_message = error_message(error)
