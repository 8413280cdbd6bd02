"""The text in a list of pieces, joined at the end."""

from gearworks.server.tools import AFTER_CALL, OPENER, calls_at


def parse_tool_calls(text, names):
    pieces, calls, place = [], [], 0
    while True:
        opener = OPENER.search(text, place)
        if opener is None:
            pieces.append(text[place:])
            return "".join(pieces), calls
        found, end = calls_at(text, opener.end(), names)
        if found:
            calls.extend(found)
            pieces.append(text[place:opener.start()].rstrip())
            place = AFTER_CALL.match(text, end).end()
            continue
        after = opener.end() or 1                        # nothing is the longest way to go
        pieces.append(text[place:after])
        place = after
