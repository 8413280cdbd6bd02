"""A for loop whose `else` is the limit,
and a tuple that is rebuilt instead of a list that grows."""

from gearworks.pipeline import Completion


def run_request(prompt, *, encode, forward, choose, decode, eos_ids, max_tokens, on_token=None):
    stops = frozenset(int(id) for id in eos_ids)
    prompt_ids = list(encode(prompt))
    generated = ()
    for step in range(max_tokens):
        token = int(choose(forward(prompt_ids if step == 0 else [generated[-1]])))
        if token in stops:
            finish_reason = "stop"
            break
        generated = (*generated, token)
        if on_token is not None and on_token(token):
            finish_reason = "stop"
            break
    else:
        finish_reason = "length"
    ids = list(generated)
    return Completion(prompt_ids, ids, decode(ids), finish_reason)
