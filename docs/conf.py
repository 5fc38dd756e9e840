"""How the documentation is built: `sphinx-build -W docs OUT`. Nothing is fetched and no notebook is run."""

import shutil
import sys
from pathlib import Path


HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _api  # noqa: E402
import _pictures  # noqa: E402

import clairjax  # noqa: E402


project = "clairjax"
author = "the clairjax authors"
copyright = author
version = release = clairjax.__version__

extensions = ["myst_nb"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks are rendered with the output they hold; CI runs them apart
nb_merge_streams = True

html_theme = "furo"
html_title = f"clairjax {release}"
html_copy_source = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries = False
add_module_names = False
highlight_language = "text"

# What the build makes, in folders that git ignores: reference, pictures, notebooks where Sphinx looks for them.
_api.write(HERE / "api")
_pictures.write(HERE / "pictures")
skip = shutil.ignore_patterns(".ipynb_checkpoints")
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", ignore=skip, dirs_exist_ok=True)


def setup(app):
    """Pages link to the notebooks where the repository has them; the build has them one folder below."""

    def nearer(app, page, source):
        source[0] = source[0].replace("../notebooks/", "notebooks/")

    app.connect("source-read", nearer)
