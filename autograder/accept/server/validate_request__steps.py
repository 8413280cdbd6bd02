"""One small function for each kind of mistake."""

from collections.abc import Mapping

from pydantic import ValidationError

from gearworks.server.api_error import APIError
from gearworks.server.protocol import complaint, refuse_unwritable


def require_object(body):
    if not isinstance(body, Mapping):
        raise APIError(400, "This is no object.", None, "invalid_type")
    for pair in body.items():
        refuse_unwritable(*pair)


def parsed(body, kind):
    error = None
    try:
        return kind.model_validate(body)
    except ValidationError as caught:
        error = complaint(caught, body)
    raise error


def require_model(request, limits):
    if request.model is None or request.model in limits.models:
        return
    raise APIError(404, f"There is no model {request.model}.", param="model",
                   code="model_not_found")


def validate_request(body, kind, limits):
    require_object(body)
    request = parsed(body, kind)
    require_model(request, limits)
    for name, value, least, most in request.bounded(limits):
        if value < least or value > most:
            raise APIError(400, f"{name} has to be from {least} to {most}.", name,
                           "invalid_value")
    given = {name for name in body if body[name] is not None}
    return request, sorted(given - kind.model_fields.keys())
