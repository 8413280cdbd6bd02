"""Sphinx extension: takes off the pages the scripts that are there twice or serve nothing here.

`sphinx_thebe`, which Jupyter Book always loads, writes its settings into every page twice, so
that the second one fails; and it would fetch a script from another host. Live kernels are
switched off in this book.
"""

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict:
    # after those who add them
    app.connect("html-page-context", keep_needed_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def keep_needed_scripts(app: Sphinx, pagename: str, templatename: str, context: dict,
                        doctree: object) -> None:
    """Leave each script once, and none of Thebe's."""
    kept = []
    for script in context.get("script_files", []):
        text = (f"{getattr(script, 'filename', script)} "
                f"{getattr(script, 'attributes', {}).get('body')}")
        if "thebe" not in text.lower() and text not in [seen for seen, _ in kept]:
            kept.append((text, script))
    context["script_files"] = [script for _, script in kept]
