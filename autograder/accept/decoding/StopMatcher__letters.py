"""Letter by letter: a queue of letters that may still belong to a stop string."""

from gearworks.errors import ModelError


class StopMatcher:
    def __init__(self, stops):
        self.stops = list(stops)
        if "" in self.stops:
            raise ModelError("a stop string is empty", "it would end every text",
                             "give it a letter")
        self.found = None
        self.queue = ""

    def push(self, text):
        ready = ""
        for letter in text:
            if self.found is not None:
                break
            self.queue += letter
            complete = [stop for stop in self.stops if self.queue.endswith(stop)]
            if complete:
                self.found = max(complete, key=len)
                ready, self.queue = ready + self.queue[:-len(self.found)], ""
                break
            while self.queue and not any(stop.startswith(self.queue) for stop in self.stops):
                ready, self.queue = ready + self.queue[0], self.queue[1:]
        return ready

    def flush(self):
        rest = self.queue
        self.queue = ""
        return rest
