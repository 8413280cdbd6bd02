"""A deep copy, of which what must not go on is removed."""

import copy

from gearworks.errors import ModelError


def upstream_request(request, models):
    try:
        model = models[request["model"]]
    except KeyError:
        raise ModelError("no such model", "the gateway does not have it", "list them") from None
    sent = copy.deepcopy(dict(request))
    sent["model"] = model
    sent.pop("gateway", None)
    for name in [name for name in sent if sent[name] is None]:
        del sent[name]
    return sent
