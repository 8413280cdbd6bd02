"""The ignored names collected on the way; bounds compared with min and max."""

from collections.abc import Mapping

import pydantic

from gearworks.server.api_error import APIError
from gearworks.server.protocol import complaint, refuse_unwritable


def validate_request(body, kind, limits):
    ignored = []
    if not isinstance(body, Mapping):
        raise APIError(400, "not an object", code="invalid_type")
    for name in body:
        refuse_unwritable(name, body[name])
        if body[name] is not None and name not in kind.model_fields:
            ignored.append(name)
    try:
        request = kind(**{name: value for name, value in body.items()
                          if name in kind.model_fields})
    except pydantic.ValidationError as error:
        raise complaint(error, body) from None
    if request.model is not None and not any(request.model == each for each in limits.models):
        raise APIError(404, f"no such model: {request.model}", "model", "model_not_found")
    for name, value, least, most in request.bounded(limits):
        if max(least, min(value, most)) != value:
            raise APIError(400, f"{name}: {value}", name, "invalid_value")
    ignored.sort()
    return request, ignored
