"""Metadata that setup.cfg cannot express: the README with links that work on PyPI, too."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "https://github.com/fedrecsk/fedrecsk"
# Links and pictures of Markdown and HTML that name a file of the repository.
PICTURE = re.compile(r'(!\[[^\]]*\]\(|<img [^>]*src=")(?!https?:|#|data:)')
LINK = re.compile(
    r'((?<!!)\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\(|<a [^>]*href=")(?!https?:|#|mailto:)'
)


def for_pypi(readme):
    """The README with absolute links."""
    readme = PICTURE.sub(rf"\1{REPOSITORY}/raw/main/", readme)
    return LINK.sub(rf"\1{REPOSITORY}/blob/main/", readme)


setup(long_description=for_pypi(Path(__file__).with_name("README.md").read_text(encoding="utf-8")))
