"""What goes wrong, as OpenAI's clients want to hear it.

Source: OpenAI's API reference, "Error codes"; the classes of its Python client by HTTP status.
"""

from typing import Any

from gearworks.errors import GearworksError

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class APIError(Exception):
    """A request that gets no answer, or no whole one.

    status: of HTTP. message: what happened, why, and what to try. param: the parameter that
    caused it, such as "messages[0].content". code: a word that programs compare. headers: what
    the response needs besides, as Retry-After.
    """

    def __init__(self, status: int, message: str, param: str | None = None,
                 code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = TYPES.get(status, "invalid_request_error" if status < 500
                              else "server_error")
        self.headers = headers or {}

    @classmethod
    def of(cls, error: GearworksError, status: int = 400, param: str | None = None,
           code: str | None = None) -> "APIError":
        """An engine's error in this form."""
        return cls(status, f"{error.what}: {error.why}. Try this: {error.hint}", param, code)

    def body(self) -> dict[str, Any]:
        """The response's JSON: {"error": {"message", "type", "param", "code"}}."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param,
                          "code": self.code}}
