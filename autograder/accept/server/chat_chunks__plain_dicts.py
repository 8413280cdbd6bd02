"""Chunks written out, without the helpers."""


def chat_chunks(deltas, reply):
    def made(number, piece, logprobs, reason):
        one = dict(reply.head, object="chat.completion.chunk",
                   choices=[{"index": number, "delta": piece, "logprobs": logprobs,
                             "finish_reason": reason}])
        if reply.request.include_usage:
            one["usage"] = None
        return one

    for delta in deltas:
        answer = reply.take(delta)
        number = answer.number
        if answer.deltas == 1:
            yield made(number, {"content": "", "role": "assistant"}, None, None)
        pieces = list(answer.text.push(delta.text))
        if delta.finish_reason:
            pieces.extend(answer.text.finish())
        logprobs = answer.chat_logprobs(delta)
        if pieces:
            first, *rest = pieces
            yield made(number, first, logprobs, None)
            for piece in rest:
                yield made(number, piece, None, None)
        elif logprobs is not None:
            yield made(number, {"content": ""}, logprobs, None)
        if delta.finish_reason == "stop" and answer.text.calls > 0:
            yield made(number, {}, None, "tool_calls")
        elif delta.finish_reason:
            yield made(number, {}, None, delta.finish_reason)
    if reply.done and reply.request.include_usage:
        yield {**reply.head, "object": "chat.completion.chunk", "choices": [],
               "usage": reply.usage()}
