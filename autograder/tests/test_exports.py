"""Grades for other systems: nobody gets a number who has none, and nobody another one's."""

import csv
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.classes.class_report import class_report
from autograder.classes.exports import (write_canvas, write_csv, write_gradescope,
                                        write_moodle)
from autograder.classes.feedback import feedback
from autograder.classes.record import CheckRecord, ExerciseRecord, Record, Records, Status
from autograder.classes.roster import read_roster
from autograder.classes.submitted import contents_of, find_submissions
from autograder.classes.table import Row, priced, with_missing
from autograder.chapters.outline import outline
from gearworks.errors import GearworksError, UsageError

NBGRADER = "id,first_name,last_name,email\nada,Ada,Lovelace,ada@example.org\nben,Ben,Nye,\n"
CANVAS = ('Student,ID,SIS User ID,SIS Login ID,Section,"Chapter 4 (1234)","Chapter 14 (9)"\n'
          '"    Points Possible",,,,,100,100\n'
          '"Lovelace, Ada",31337,S1,ada,Main,,\n"Nye, Ben",31338,S2,ben,Main,55,\n')
MOODLE = ("Identifier,Full name,Email address,Status,Grade,Maximum Grade,"
          "Feedback comments\n"
          "Participant 2718,Ada Lovelace,ada@example.org,Submitted,,20.00,\n"
          "Participant 2719,Ben Nye,ben@example.org,No submission,,20.00,\n")


def roster_of(tmp_path, text):
    path = tmp_path / "roster.csv"
    path.write_text(text, encoding="utf-8")
    return read_roster(path)


def row(student, status=Status.GRADED, points=None, **more):
    plain = Row(student, "ch04", "04_transformer", status, required_max=100.0, **more)
    return plain if points is None else priced(plain, points, 0.0, 0.0)


def table_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- who is who -------------------------------------------------------------------------------


@pytest.mark.parametrize("text, path", [
    (NBGRADER, "ada/ch04/04_transformer.ipynb"),
    (NBGRADER, "ada_04_transformer.ipynb"),
    (NBGRADER, "lovelaceada_31337_777_04_transformer.ipynb"),
    (CANVAS, "lovelaceada_31337_777_04_transformer.ipynb"),
    (CANVAS, "lovelaceada_LATE_31337_777_04_transformer-3.ipynb"),
    (CANVAS, "ada/04_transformer.ipynb"),
    (MOODLE, "Ada Lovelace_2718_assignsubmission_file_/04_transformer.ipynb"),
    (MOODLE, "Ada Lovelace_2718_assignsubmission_file_04_transformer.ipynb")])
def test_platforms_file_names_find_their_students(tmp_path, text, path):
    roster = roster_of(tmp_path, text)
    file = tmp_path / "downloaded" / path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"{}")
    [submission] = find_submissions(tmp_path / "downloaded", outline(), roster=roster)
    assert submission.student == roster.students[0].id and submission.notes == ()
    assert submission.name == "Ada Lovelace" and submission.assignment == "ch04"
    assert submission.is_late == ("LATE" in path)


def test_two_students_of_one_name_are_told_apart_by_their_numbers(tmp_path):
    roster = roster_of(tmp_path, "Student,ID,SIS Login ID\n\"Nye, Ben\",31,ben1\n"
                                 "\"Nye, Ben\",32,ben2\n")
    for number in ("31", "32"):
        (tmp_path / f"nyeben_{number}_900_04_transformer.ipynb").write_bytes(b"{}")
    (tmp_path / "roster.csv").unlink()
    found = find_submissions(tmp_path, outline(), roster=roster)
    assert [each.student for each in found] == ["ben1", "ben2"]
    assert roster.find("Ben Nye") is None


def test_who_is_not_in_the_table_is_graded_and_noted(tmp_path):
    roster = roster_of(tmp_path, NBGRADER)
    path = tmp_path / "downloaded" / "eve_04_transformer.ipynb"
    path.parent.mkdir()
    path.write_bytes(b"{}")
    [submission] = find_submissions(path.parent, outline(), roster=roster)
    assert submission.student == "eve" and "not in the class's table" in submission.notes[0]


def test_a_folder_around_all_of_them_is_no_student(tmp_path):
    for path in ("assignment_7_export/submission_99/04_transformer.ipynb",
                 "assignment_7_export/submission_98/homework.ipynb"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"{}")
    (tmp_path / "assignment_7_export" / "submission_metadata.yml").write_text(
        "submission_99:\n  :submitters:\n  - :sid: ada\nsubmission_98:\n  :submitters:\n"
        "  - :email: ben@example.org\n", encoding="utf-8")
    found = find_submissions(tmp_path, outline())
    assert [each.student for each in found] == ["ada", "ben@example.org"]


def test_of_several_attempts_the_last_comes_first(tmp_path):
    for number, text in (("9", b"old"), ("10", b"new")):
        (tmp_path / f"ada_31_90{number}_04_transformer-{number}.ipynb").write_bytes(text)
    [submission] = find_submissions(tmp_path, outline())
    assert contents_of(submission) == [("04_transformer.ipynb", b"new"),
                                       ("04_transformer.ipynb", b"old")]


def test_the_list_of_an_archive_is_read_once_however_many_are_in_it(tmp_path, monkeypatch):
    place = tmp_path / "submissions.zip"
    with zipfile.ZipFile(place, "w") as archive:
        for number in range(30):
            archive.writestr(f"student{number}_{100 + number}_{900 + number}_01_overview.ipynb",
                             f"content {number}")
    opened = []
    read_list = zipfile.ZipFile._RealGetContents
    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", lambda archive: (
        opened.append(archive), read_list(archive))[1])
    found = find_submissions(place, outline())
    assert {each.student: contents_of(each) for each in found} == {
        f"student{number}": [("01_overview.ipynb", f"content {number}".encode())]
        for number in range(30)}
    assert len(opened) == 1


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "id\nada\nada\n"])
def test_what_is_no_table_of_students_is_refused(tmp_path, text):
    with pytest.raises(GearworksError):
        roster_of(tmp_path, text)


# --- exports ----------------------------------------------------------------------------------


def test_canvas_gets_its_own_table_back(tmp_path):
    roster = roster_of(tmp_path, CANVAS)
    rows = with_missing([row("ada", points=87.5)], roster)
    write_canvas(rows, roster, tmp_path / "canvas.csv", "ch04")
    points, ada, ben = table_of(tmp_path / "canvas.csv")
    assert [*points] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section",
                         "Chapter 4 (1234)"]
    assert points["Chapter 4 (1234)"] == "100" and ada["ID"] == "31337"
    assert ada["Chapter 4 (1234)"] == "87.5" and ben["Chapter 4 (1234)"] == ""
    with pytest.raises(UsageError):
        write_canvas(rows, roster, tmp_path / "x.csv", "ch05")
    with pytest.raises(UsageError):
        write_canvas(rows, roster_of(tmp_path, NBGRADER), tmp_path / "x.csv", "ch04")


def test_moodle_gets_its_own_worksheet_back_on_its_own_scale(tmp_path):
    roster = roster_of(tmp_path, MOODLE)
    rows = with_missing([row(roster.students[0].id, points=50.0)], roster)
    write_moodle(rows, roster, tmp_path / "moodle.csv", "ch04")
    ada, ben = table_of(tmp_path / "moodle.csv")
    assert ada["Grade"] == "10" and ada["Feedback comments"] == "graded"
    assert ben["Grade"] == "" and ben["Feedback comments"] == "not submitted"
    assert ada["Identifier"] == "Participant 2718"


def a_record(points=3.0, text="<script>alert(1)</script>"):
    checks = (CheckRecord("shown", "Shows.", 2, 2, True, "passed"),
              CheckRecord("fails", "Fails.", 2, 0, True, "failed", expected=text, found=text),
              CheckRecord("hides", "Hides.", 1, 1, False, "passed"))
    exercise = ExerciseRecord("layers.softmax", "check-layers-softmax", False, True, points,
                              5.0, problem=text, notes=(text,), flags=("opens files",),
                              checks=checks)
    return Record("04_transformer", Status.GRADED, (text,), (exercise,))


def test_gradescope_gets_results_that_hide_what_is_hidden(tmp_path):
    records = Records(tmp_path / "records")
    record = records.put("aa" * 32, a_record())
    rows = [row("../ada", points=3.0, key=record.key), row("ben", Status.UNREADABLE)]
    [path] = write_gradescope(rows, records, tmp_path / "gradescope")
    assert path.is_relative_to(tmp_path / "gradescope") and ".." not in path.parts
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["score"] == 3.0
    assert [test["visibility"] for test in told["tests"]][:3] == ["visible", "visible",
                                                                  "after_published"]


def test_no_cell_is_a_formula(tmp_path):
    write_csv([row("=cmd|' /C calc'!A0", points=1.0, name="+1", notes=("@x", "-x"))],
              tmp_path / "grades.csv")
    [told] = table_of(tmp_path / "grades.csv")
    assert told["student_id"].startswith("'=") and told["name"].startswith("'+")
    assert told["notes"].startswith("'@") and told["total"] == "1"


NUMBERS = st.floats(0, 100, allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from(Status), NUMBERS), min_size=1, max_size=8))
def test_no_silent_zero(tmp_path_factory, results):
    """A number is there exactly where the status goes with one, in every file."""
    folder = tmp_path_factory.mktemp("exports")
    rows = [row(f"s{number}", status, points if status.has_points else None)
            for number, (status, points) in enumerate(results)]
    head = "Student,ID,SIS Login ID,Chapter 4 (1)\n"
    canvas = roster_of(folder, head + "".join(f"S{at},{at},s{at},77\n"
                                              for at in range(len(rows))))
    write_csv(rows, folder / "grades.csv")
    write_canvas(rows, canvas, folder / "canvas.csv", "ch04")
    plain, filled = table_of(folder / "grades.csv"), table_of(folder / "canvas.csv")
    for each, told, line in zip(rows, plain, filled):
        numbers = {told["required"], told["bonus"], told["late_penalty"], told["total"],
                   line["Chapter 4 (1)"]}
        assert ("" in numbers) == (not each.status.has_points)
        assert each.status.has_points or numbers == {""}
        page = feedback(each, a_record())
        assert ("No points yet" in page) == (not each.status.has_points)
        assert each.status.has_points or "0 of" not in page


# --- pages ------------------------------------------------------------------------------------


def test_learners_texts_are_escaped_and_flags_are_not_theirs():
    text = feedback(row("ada", points=3.0, notes=("<script>",), flags=("opens files",)),
                    a_record())
    assert "<script" not in text and text.count("&lt;script&gt;") >= 4
    assert "opens files" not in text and "(hidden)" in text


def big_class(tmp_path, students=5000):
    """Results of a large class, as far as a report goes through them."""
    records = Records(tmp_path / "records")
    kept = [records.put(f"{number:02x}" * 32, a_record(float(number)))
            for number in range(6)]
    rows = [row(f"student-{number:05}", points=float(number % 101),
                key=kept[number % 6].key, name=f"Student {number}",
                notes=("called x.ipynb",) if number % 7 == 0 else ())
            for number in range(students - 100)]
    rows += [row(f"absent-{number:03}", Status.NOT_SUBMITTED) for number in range(100)]
    return rows, records


def test_the_report_about_5000_opens_at_once_and_reads_well(tmp_path, browser):
    from datetime import datetime

    rows, records = big_class(tmp_path)
    path = tmp_path / "report.html"
    path.write_text(class_report(rows, records, datetime(2026, 3, 1)), encoding="utf-8")
    assert path.stat().st_size < 4 * 2**20
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    clock = page.context.new_cdp_session(page)
    clock.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(Path(path).as_uri())
    spent = {each["name"]: each["value"]
             for each in clock.send("Performance.getMetrics")["metrics"]}["TaskDuration"]
    assert 0 < spent < 2            # seconds of the page's thread, not of the wall clock
    assert page.locator("h1").count() == 1 and page.locator("main").count() == 1
    assert page.get_by_text("Who is missing: 100").is_visible()
    assert asked == [Path(path).as_uri()]                    # nothing else is loaded
    unnamed = page.evaluate("""[...document.querySelectorAll('table')].filter(
        table => !table.caption || !table.querySelector('th[scope]')).length""")
    assert unnamed == 0
    for scheme, dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in color[4:-1].split(",")) < 200) == dark
    page.close()
