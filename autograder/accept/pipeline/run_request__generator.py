"""The tokens as a generator, the limit as a slice of it."""

from itertools import islice

from gearworks.pipeline import Completion


def _tokens(prompt_ids, forward, choose):
    logits = forward(prompt_ids)
    while True:
        token = choose(logits)
        yield token
        logits = forward([token])


def run_request(prompt, *, encode, forward, choose, decode, eos_ids, max_tokens, on_token=None):
    prompt_ids = encode(prompt)
    ids, reason = [], "length"
    for token in islice(_tokens(prompt_ids, forward, choose), max_tokens):
        if token in eos_ids:
            reason = "stop"
            break
        ids.append(token)
        if on_token and on_token(token):
            reason = "stop"
            break
    return Completion(prompt_ids=prompt_ids, ids=ids, text=decode(ids), finish_reason=reason)
