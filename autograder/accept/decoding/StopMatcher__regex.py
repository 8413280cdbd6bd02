"""All beginnings of all stop strings as one regular expression, anchored at the end."""

import re

from gearworks.errors import ModelError


class StopMatcher:
    def __init__(self, stops):
        if not all(stops):
            raise ModelError("cannot stop", "an empty stop string", "leave it out")
        beginnings = sorted({stop[:end] for stop in stops for end in range(1, len(stop))},
                            key=len, reverse=True)
        self._stops = sorted(stops, key=len, reverse=True)
        self._tail = (re.compile(f"(?:{'|'.join(map(re.escape, beginnings))})\\Z") if beginnings
                      else None)
        self._rest = ""
        self.found = None

    def push(self, text):
        if self.found is None:
            text, self._rest = self._rest + text, ""
            ends = {stop: text.index(stop) + len(stop) for stop in self._stops if stop in text}
            if ends:
                self.found = min(ends, key=ends.get)     # the longest comes first of equal ones
                return text[:ends[self.found] - len(self.found)]
            tail = self._tail.search(text) if self._tail else None
            cut = tail.start() if tail else len(text)
            self._rest = text[cut:]
            return text[:cut]
        return ""

    def flush(self):
        rest, self._rest = self._rest, ""
        return rest
