"""Draw the README's picture from a real conversation.

Run it with `python solutions/benchmarks/chat_picture.py`. It asks `gearworks chat` two
questions, and writes what a terminal shows as book/_static/chat.svg.
"""

import html
import subprocess
import sys
import textwrap
from pathlib import Path

QUESTIONS = ["What is the capital of France?", "What can one see there?"]
TARGET = Path(__file__).resolve().parents[2] / "book" / "_static" / "chat.svg"
COLUMNS, FONT_SIZE, LINE_HEIGHT, MARGIN = 98, 15, 22, 24
COLOURS = {"prompt": "#8ad4ff", "answer": "#f0eee9", "report": "#a5a39b"}


def conversation() -> list[tuple[str, str]]:
    """The lines of a real chat, each with the kind of line that it is."""
    command = [sys.executable, "-u", "-m", "gearworks", "chat",
               "--temperature", "0", "--max-tokens", "90"]
    chat = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, encoding="utf-8")
    lines = [("prompt", "$ python course.py chat"), ("report", chat.stdout.readline().rstrip())]
    for question in QUESTIONS:
        lines.append(("prompt", f"> {question}"))
        print(question, file=chat.stdin, flush=True)
        while not (line := chat.stdout.readline().rstrip()).startswith("["):
            lines += [("answer", part) for part in textwrap.wrap(line, COLUMNS) or [""]]
        lines.append(("report", line))
    chat.stdin.close()
    if chat.wait() != 0:
        sys.exit(f"gearworks chat ended with code {chat.returncode}")
    return lines


def draw(lines: list[tuple[str, str]]) -> str:
    """An SVG of a dark terminal window; it needs no font of its own and no script."""
    width = round(COLUMNS * FONT_SIZE * 0.602) + 2 * MARGIN
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    said = html.escape(" ".join(text for _, text in lines))
    rows = "\n".join(f'<text x="{MARGIN}" y="{MARGIN + 16 + row * LINE_HEIGHT}" '
                     f'fill="{COLOURS[kind]}" xml:space="preserve">'
                     f"{html.escape(text)}</text>" for row, (kind, text) in enumerate(lines))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" role="img" font-family="ui-monospace, SFMono-Regular, Menlo, '
            f'Consolas, monospace" font-size="{FONT_SIZE}">\n'
            f"<title>A conversation in a terminal: {said}</title>\n"
            f'<rect width="100%" height="100%" rx="10" fill="#20242b"/>\n{rows}\n</svg>\n')


if __name__ == "__main__":
    TARGET.write_text(draw(conversation()), encoding="utf-8")
    print(TARGET)
