"""A learner's first minutes, in real JupyterLab in a real browser:
open a chapter, run it, go wrong, go right.

The notebook lies alone in a folder, without the repository around it. About 40 s.
"""

import re
import shutil
from pathlib import Path

import pytest

IDLE = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
ROOT = Path(__file__).resolve().parents[2]
LAB_CONFIG = ROOT / "autograder" / "learner_lab"        # as `course.py lab` has it
CHAPTER = ROOT / "chapters" / "01_overview.ipynb"

# A right loop but for the classic slip: the token that ends the answer becomes part of it.
WRONG = '''def run_request(prompt, *, encode, forward, choose, decode, eos_ids, max_tokens,
                on_token=None):
    prompt_ids = encode(prompt)
    ids, unseen, reason = [], prompt_ids, "length"
    while len(ids) < max_tokens:
        token = choose(forward(unseen))
        ids.append(token)
        if token in eos_ids or (on_token is not None and on_token(token)):
            reason = "stop"
            break
        unseen = [token]
    return Completion(prompt_ids, ids, decode(ids), reason)'''
RIGHT = WRONG.replace('''        ids.append(token)
        if token in eos_ids or''', '''        if token in eos_ids:
            reason = "stop"
            break
        ids.append(token)
        if''').replace("if (on_token is not None and on_token(token)):",
              "if on_token is not None and on_token(token):")


@pytest.fixture
def lab(tmp_path, jupyterlab):
    """The address of a JupyterLab whose folder holds one chapter and nothing else."""
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(CHAPTER, work)
    with jupyterlab(work, JUPYTER_CONFIG_PATH=str(LAB_CONFIG)) as address:
        yield f"{address}/lab/tree/{CHAPTER.name}"


def test_a_chapter_is_opened_solved_wrongly_and_then_rightly(browser, lab):
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(120_000)
    page.goto(lab)
    notebook = page.locator(".jp-Notebook")
    notebook.wait_for()
    page.locator(IDLE).wait_for()
    menus = page.locator(".lm-MenuBar-itemLabel").all_inner_texts()
    assert "Kernel" in menus and "Nbgrader" not in menus            # it is an instructor's
    assert page.get_by_text("Jupyter news").count() == 0

    def cell_with(text):
        return notebook.locator(".jp-CodeCell").filter(has=page.locator(".cm-content",
                                                                        has_text=text)).first

    def edit(cell):
        cell.locator(".cm-content").click()
        cell.locator(".cm-editor.cm-focused").wait_for()

    def run(cell):
        """Run one cell and wait until its output is there, as somebody does who watches."""
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.text_content()
        edit(cell)
        page.keyboard.press("Control+Enter")
        for second in range(120):
            page.wait_for_timeout(1000 if second else 200)
            now = prompt.text_content()
            if now != before and re.search(r"\[\d+\]", now):
                page.locator(IDLE).wait_for()
                return "\n".join(cell.locator(".jp-OutputArea-output").all_inner_texts())
            # nothing started: the kernel was not yet listening
            if now == before and second % 10 == 9:
                page.keyboard.press("Control+Enter")
        raise AssertionError(f"the cell did not end: {before} {now}")

    def write(cell, source):
        edit(cell)
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(source)

    for text in ("find_spec(\"gearworks\")", "llm = LanguageModel.load"):
        assert "Error" not in run(cell_with(text))
    assert "Paris" in run(cell_with("What is the capital of France?"))

    exercise = notebook.locator(".jp-CodeCell").filter(has=page.locator(
        ".cm-content", has_text="def run_request")).first
    check = cell_with('check("pipeline.run_request"')
    # not inner_text: what is off the screen has none
    stub = exercise.locator(".cm-content").text_content()
    assert "raise NotImplementedError" in stub and "max_tokens" in stub

    run(exercise)
    assert "not attempted" in run(check)

    write(exercise, WRONG)
    assert run(exercise).strip() == ""
    report = run(check)
    assert re.search(
        r"\bfailed\b",
        report) and "Expected" in report and "Found" in report and "Try" in report, report
    score = float(re.findall(r"^[\d.]+$", report.strip(), re.MULTILINE)[-1])

    write(exercise, RIGHT)
    run(exercise)
    report = run(check)
    assert "failed" not in report and "passed" in report, report
    best = float(re.findall(r"^[\d.]+$", report.strip(), re.MULTILINE)[-1])
    assert 0 < score < best
    page.context.close()
