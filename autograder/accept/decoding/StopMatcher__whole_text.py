"""Keeps the whole text, and how much of it has been shown."""

from gearworks.errors import ModelError


class StopMatcher:
    def __init__(self, stops):
        for stop in stops:
            if len(stop) == 0:
                raise ModelError("cannot use this stop string", "it is empty", "remove it")
        self.stops, self.text, self.shown, self.found = stops, "", 0, None

    def push(self, text):
        if self.found is not None:
            return ""
        self.text += text
        best = None
        for stop in self.stops:
            start = self.text.find(stop)
            if start != -1:
                end = start + len(stop)
                if best is None or (end, -len(stop)) < (best[0], -len(best[1])):
                    best = (end, stop)
        if best is not None:
            self.found = best[1]
            safe = best[0] - len(best[1])
            new, self.shown, self.text = self.text[self.shown:safe], safe, self.text[:safe]
            return new
        safe = len(self.text)
        for stop in self.stops:
            for length in range(1, len(stop)):
                if self.text.endswith(stop[:length]):
                    safe = min(safe, len(self.text) - length)
        new, self.shown = self.text[self.shown:safe], safe
        return new

    def flush(self):
        new, self.shown = self.text[self.shown:], len(self.text)
        return new
