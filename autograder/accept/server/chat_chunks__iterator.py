"""An iterator with a queue of what is ready."""

from collections import deque

from gearworks.server.protocol import chat_chunk, chunk


class Chunks:
    def __init__(self, deltas, reply):
        self.deltas, self.reply, self.ready = iter(deltas), reply, deque()
        self.over = False

    def __iter__(self):
        return self

    def __next__(self):
        while not self.ready:
            if self.over:
                raise StopIteration
            try:
                self.enqueue(next(self.deltas))
            except StopIteration:
                self.over = True
                if self.reply.done and self.reply.request.include_usage:
                    self.ready.append({**chunk(self.reply, "chat.completion.chunk", []),
                                       "usage": self.reply.usage()})
        return self.ready.popleft()

    def enqueue(self, delta):
        answer = self.reply.take(delta)

        def send(piece, **more):
            self.ready.append(chat_chunk(self.reply, answer.number, piece, **more))
        if answer.deltas == 1:
            send({"role": "assistant", "content": ""})
        pieces = answer.text.push(delta.text)
        if delta.finish_reason is not None:
            pieces = pieces + answer.text.finish()
        logprobs = answer.chat_logprobs(delta)
        if logprobs is not None:
            send(pieces.pop(0) if pieces else {"content": ""}, logprobs=logprobs)
        for piece in pieces:
            send(piece)
        if delta.finish_reason is not None:
            reason = delta.finish_reason
            if reason == "stop" and answer.text.calls:
                reason = "tool_calls"
            send({}, finish_reason=reason)


def chat_chunks(deltas, reply):
    return Chunks(deltas, reply)
