"""Settings of Sphinx. Warnings are errors (docs_site/build.py)."""

import os
import tomllib
from pathlib import Path

_TOP = Path(os.environ["DOCS_TOP"])

project = "Lamplighter"
version = release = tomllib.loads((_TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
html_title = f"{project} {version}"
language = "en"

extensions = ["myst_parser"]
myst_heading_anchors = 6
myst_enable_extensions: list[str] = []
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # outputs that are shortened, and JSON with "..."
highlight_language = "text"
smartquotes = False  # `--delay` in a heading is an option

html_theme = "furo"
html_favicon = str(_TOP / "gateway" / "page" / "source" / "icon.svg")
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
templates_path = [str(Path(__file__).parent / "templates")]
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html"),
        *("web_page.html", "sidebar/scroll-end.html"),
    ]
}
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
html_use_index = html_domain_indices = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
