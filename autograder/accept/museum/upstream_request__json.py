"""By way of JSON, as the request will travel."""

import json

from gearworks.errors import ModelError


def upstream_request(request, models):
    name = request.get("model")
    if name is None or name not in models.keys():
        raise ModelError("cannot route", f"{name!r} has no server", "see /v1/models")
    whole = json.loads(json.dumps(request))
    parts = filter(lambda item: item[1] is not None and item[0] != "gateway", whole.items())
    return {**dict(parts), "model": models[name]}
