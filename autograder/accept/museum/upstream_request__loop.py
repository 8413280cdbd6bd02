"""Parameter by parameter."""

from gearworks.errors import ModelError


def upstream_request(request, models):
    sent = {}
    for name, value in request.items():
        if value is None or name == "gateway":
            continue
        if name == "model":
            if value not in models:
                raise ModelError("no such model", f"{value} is unknown", "ask for another one")
            value = models[value]
        sent[name] = value
    if "model" not in sent:
        raise ModelError("no model", "the request names none", "name one")
    return sent
