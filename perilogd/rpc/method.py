"""The table of methods: what a name stands for, who may call it, with what.

The shape of an entry lives here, and how an entry describes itself. The methods themselves do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

from perilogd.errors import Refusal
from perilogd.rpc.params import Argument, Arguments, Later, bind

if TYPE_CHECKING:
    from perilogd.rpc.connection import Connection

#: What a uid may be to the broker. Whoever is not an administrator or a provider is, by `guests` in the
#: configuration, a guest (may submit for himself), an owner (may act on jobs that were submitted for him),
#: or none of these.
Role = Literal["admin", "provider", "guest", "owner", "none"]

EVERYONE: frozenset[Role] = frozenset({"admin", "provider", "guest", "owner", "none"})
USERS: frozenset[Role] = EVERYONE - {"none"}
ADMIN: frozenset[Role] = frozenset({"admin"})


class Call:
    """One request, as its handler sees it.

    Attributes:
        connection: whom it came from.
        method: the method's name.
        then: if set by the handler, called once the reply has been queued for the client: what must come
            after the reply is sent from there. Not called when the request is refused.
    """

    __slots__ = ("connection", "method", "msgid", "then")

    def __init__(self, connection: Connection, method: str, msgid: int | None) -> None:
        self.connection = connection
        self.method = method
        self.msgid = msgid  # None: a notification, which nobody waits for
        self.then: Callable[[], None] | None = None

    @property
    def uid(self) -> int:
        """The uid of the client."""
        return self.connection.credentials.uid

    @property
    def role(self) -> Role:
        """What this uid is to the broker."""
        return self.connection.standing.role

    @property
    def providers(self) -> frozenset[str]:
        """Names of the providers that this uid may speak for."""
        return self.connection.standing.providers


#: Returns the result, or an awaitable of it for what takes time; raises Refusal.
Handler = Callable[..., object]


class Method:
    """An entry of the table.

    Args:
        name: its name on the wire.
        handler: called as `handler(call, **arguments)`. It returns the result, or refuses; it must not block.
            What takes time is an `async def`, or returns a coroutine: that runs beside the other requests of
            its connection, is cancelled when the connection ends, and counts as a request in flight. With too
            many of them it is refused and not begun, so what comes before it must change nothing.
        arguments: what it takes.
        roles: who may call it. Whether he may do so for this job is the handler's business.
        doc: one sentence for people.
        result: what it returns, for people.

    Raises:
        TypeError: the handler's parameters are not the arguments.
    """

    __slots__ = ("arguments", "doc", "handler", "name", "result", "roles")

    def __init__(
        self,
        name: str,
        handler: Handler,
        arguments: Iterable[Argument] = (),
        *,
        roles: frozenset[Role],
        doc: str,
        result: str,
    ) -> None:
        self.name = name
        self.handler = handler
        self.arguments = Arguments(*arguments)
        self.roles = roles
        self.doc = doc
        self.result = result
        self._check_handler()

    def _check_handler(self) -> None:
        signature = inspect.signature(self.handler)
        must = {argument.into: None for argument in self.arguments.arguments if argument.required}
        may = {argument.into: None for argument in self.arguments.arguments}
        for given in (must, may):
            try:
                signature.bind(None, **given)
            except TypeError as error:
                raise TypeError(f"the handler of {self.name} does not fit its arguments: {error}") from error

    def invoke(self, call: Call, params: list[Any]) -> object:
        """Run the handler.

        Raises:
            Refusal: EPERM by role, EINVAL by the arguments, or whatever the handler says.
        """
        if call.role not in self.roles:
            allowed = ", ".join(sorted(self.roles))
            raise Refusal("EPERM", f"{self.name} is for {allowed}; uid {call.uid} is {call.role}")
        try:
            arguments = bind(self.name, self.arguments, params)
        except Later:
            return self._invoke_later(call, params)
        return self.handler(call, **arguments)

    async def _invoke_later(self, call: Call, params: list[Any]) -> object:
        """Run the handler after its arguments were checked in a worker thread."""
        arguments = await call.connection.slowly(bind, self.name, self.arguments, params)
        result = self.handler(call, **arguments)
        return await result if isinstance(result, CoroutineType) else result

    def describe(self) -> dict[str, object]:
        """Return it for `broker.methods`."""
        return {
            "name": self.name,
            "arguments": [argument.describe() for argument in self.arguments.arguments],
            "roles": sorted(self.roles),
            "doc": self.doc,
            "result": self.result,
        }


def table(*methods: Method) -> Mapping[str, Method]:
    """Return the methods by name.

    Raises:
        ValueError: two have the same name.
    """
    by_name: dict[str, Method] = {}
    for method in methods:
        if method.name in by_name:
            raise ValueError(f"two methods are named {method.name}")
        by_name[method.name] = method
    return by_name
