"""Log-probabilities in OpenAI's two forms: of chats and, older, of completions.

JSON knows no infinity: a token that is ruled out has -9999.0, as at OpenAI.
"""

from collections.abc import Sequence
from typing import Any

from gearworks.sampling import TokenLogprob
from gearworks.tokenizer import Tokenizer

LEAST = -9999.0


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """{"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...], "refusal": None}.

    A token that is not whole characters reads U+FFFD; its bytes are exact.
    """
    def described(id: int, logprob: float) -> dict[str, Any]:
        return {"token": _text(id, tokenizer), "logprob": max(logprob, LEAST),
                "bytes": list(tokenizer.decode_bytes([id]))}
    return {"content": [described(entry.id, entry.logprob)
                        | {"top_logprobs": [described(*each) for each in entry.top]}
                        for entry in entries], "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob | None], ids: Sequence[int],
                        offsets: Sequence[int], tokenizer: Tokenizer) -> dict[str, list]:
    """{"tokens", "token_logprobs", "top_logprobs", "text_offset"}, each with one entry a token.

    entries: None for a prompt's first token, which nothing predicts. ids: of the tokens.
    offsets: where each begins, in characters. The chosen token is always among the top ones. Of
    two tokens that read the same, the likelier one counts.
    """
    tops: list[dict[str, float] | None] = []
    for entry in entries:
        top: dict[str, float] = {}
        for id, logprob in () if entry is None else (*entry.top, (entry.id, entry.logprob)):
            top.setdefault(_text(id, tokenizer), max(logprob, LEAST))
        tops.append(None if entry is None else top)
    return {"tokens": [_text(id, tokenizer) for id in ids],
            "token_logprobs": [None if entry is None else max(entry.logprob, LEAST)
                               for entry in entries],
            "top_logprobs": tops, "text_offset": list(offsets)}


def _text(id: int, tokenizer: Tokenizer) -> str:
    """What a token reads within a text: where it begins one, its space may be dropped."""
    return tokenizer.decode_bytes([id]).decode("utf-8", errors="replace")
