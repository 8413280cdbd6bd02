"""The pieces of one delta as a list; the stream is a chain of them."""

from itertools import chain

from gearworks.server.protocol import chat_chunk, chunk


def pieces_of(delta, answer):
    ended = delta.finish_reason is not None
    pieces = [*answer.text.push(delta.text), *(answer.text.finish() if ended else ())]
    logprobs = answer.chat_logprobs(delta)
    if logprobs and not pieces:
        pieces.append({"content": ""})
    return [(piece, logprobs if place == 0 else None) for place, piece in enumerate(pieces)]


def chunks_of(delta, reply):
    answer = reply.take(delta)
    made = []
    if answer.deltas <= 1:
        made.append(chat_chunk(reply, answer.number, {"role": "assistant", "content": ""}))
    made += [chat_chunk(reply, answer.number, piece, logprobs)
             for piece, logprobs in pieces_of(delta, answer)]
    reason = delta.finish_reason
    if reason:
        reason = "tool_calls" if reason == "stop" and answer.text.calls else reason
        made.append(chat_chunk(reply, answer.number, {}, None, reason))
    return made


def usage(reply):
    if reply.request.include_usage and reply.done:
        last = chunk(reply, "chat.completion.chunk", [])
        last["usage"] = reply.usage()
        yield last


def chat_chunks(deltas, reply):
    return chain(chain.from_iterable(chunks_of(delta, reply) for delta in deltas),
                 usage(reply))
