"""By way of a TypeAdapter, nulls left out first; the first number that does not fit by next."""

from pydantic import TypeAdapter, ValidationError

from gearworks.server.api_error import APIError
from gearworks.server.protocol import complaint, refuse_unwritable


def validate_request(body, kind, limits):
    try:
        items = [*body.items()]
    except AttributeError:
        raise APIError(400, "Send an object.", code="invalid_type") from None
    for name, value in items:
        refuse_unwritable(name, value)
    given = {name: value for name, value in items if value is not None}
    try:
        request = TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        raise complaint(error, body) from error
    if request.model not in (None, *limits.models):
        raise APIError(404, f"model: {request.model} is not served", "model",
                       "model_not_found")
    beyond = next((bound for bound in request.bounded(limits)
                   if bound[1] not in range(bound[2], bound[3] + 1)), None)
    if beyond is not None:
        raise APIError(400, f"{beyond[0]}: {beyond[1]} is beyond {beyond[2:]}", beyond[0],
                       "invalid_value")
    return request, [name for name in sorted(given) if name not in kind.model_fields]
