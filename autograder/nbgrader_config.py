"""The configuration of nbgrader for this course, which it finds when it is run in this folder.

A course of your own, in another folder, starts with `autograder course FOLDER`, which loads
this file.
"""

import os
import sys
from pathlib import Path

from nbconvert.preprocessors import ClearMetadataPreprocessor
from nbgrader.preprocessors import (
    AssignLatePenalties, CheckCellMetadata, ClearHiddenTests, ClearMarkScheme, ClearOutput,
    ComputeChecksums, DeduplicateIds, IgnorePattern, LimitOutput, LockCells, OverwriteCells,
    OverwriteKernelspec, SaveCells)

from autograder.classes.nbgrader_export import PointsExport
from autograder.classes.nbgrader_preprocessors import (DropNamelessCells, JudgeChecks,
                                                       RestoreStubs, SaveJudgedGrades)

# nbgrader starts `alembic` by its name, which is on the path of an activated environment only.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent),
                                      os.environ.get("PATH", os.defpath)])

c = get_config()                                            # noqa: F821 (nbgrader defines it)
c.CourseDirectory.course_id = "gearworks"

c.GenerateAssignment.preprocessors = [LockCells, RestoreStubs, ClearOutput, CheckCellMetadata,
                                      ComputeChecksums, SaveCells, ClearHiddenTests,
                                      ClearMarkScheme, ComputeChecksums, CheckCellMetadata]

c.Autograde.sanitize_preprocessors = [ClearOutput, DropNamelessCells, DeduplicateIds,
                                      DropNamelessCells, OverwriteKernelspec, OverwriteCells,
                                      CheckCellMetadata]
c.OverwriteCells.add_missing_cells = True
c.Autograde.autograde_preprocessors = [JudgeChecks, IgnorePattern, ClearMetadataPreprocessor,
                                       LimitOutput, SaveJudgedGrades, AssignLatePenalties,
                                       CheckCellMetadata]

# Collected files are STUDENT_NN_name.ipynb, with or without what a platform puts in between.
c.FileNameCollectorPlugin.named_regexp = (
    r".*[/\\](?P<student_id>[^/\\]+?)_(?P<file_id>\d\d_[A-Za-z]\w*)\.ipynb")

c.ExportApp.plugin_class = PointsExport
