"""Each token is a call: the answer is a token and the rest of the answer."""

from gearworks.pipeline import Completion


def run_request(prompt, *, encode, forward, choose, decode, eos_ids, max_tokens, on_token=None):
    def rest(unseen, room):
        if room == 0:
            return [], "length"
        token = choose(forward(unseen))
        if any(token == eos for eos in eos_ids):
            return [], "stop"
        if on_token is not None and on_token(token):
            return [token], "stop"
        ids, reason = rest([token], room - 1)
        return [token, *ids], reason

    prompt_ids = encode(prompt)
    ids, reason = rest(prompt_ids, max_tokens)
    return Completion(prompt_ids, ids, decode(ids), reason)
