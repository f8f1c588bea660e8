"""The site: strict, complete, and nothing of it from elsewhere."""

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlparse

import pytest
from typer.main import get_command

import lastword
from benchmarks import parts
from lastword.cli import COMMANDS, app
from lastword.cli.errors import INTERRUPTED, READER_GONE, REFUSED, UNEXPECTED

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
COMMAND_LINE = (DOCS / "commands" / "index.md").read_text()


def module(name: str):
    """A file of docs/site, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "site" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


pages = module("pages")


# ---- what is in it ----


def documented() -> list[str]:
    """What the reference shows, by its path in the code."""
    texts = [page.read_text() for page in sorted((DOCS / "reference").glob("*.md"))]
    return [name for text in texts for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]


def test_the_reference_shows_every_public_name_once():
    public = {
        f"{value.__module__}.{value.__qualname__}"
        for name in lastword.__all__
        if inspect.isclass(value := getattr(lastword, name)) or inspect.isfunction(value)
    }
    assert sorted(documented()) == sorted(public)


def test_the_parts_are_those_of_the_code():
    """`python -m benchmarks.parts` writes the page."""
    assert parts.PAGE.read_text() == parts.written()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_page_with_an_example(command):
    page = (DOCS / "commands" / f"{command}.md").read_text()
    assert page.startswith(f"# lastword {command}\n")
    assert re.search(rf"^(echo .* \| )?lastword {command}\b", page, re.MULTILINE)
    ending = f"## Options\n\n`lastword {command} --help` lists all options.\n\n<!-- options: {command} -->\n"
    assert page.endswith(f"\n\n{ending}")
    assert f"[`{command}`]({command}.md)" in COMMAND_LINE


def test_every_exit_code_is_listed():
    for code in (REFUSED, UNEXPECTED, INTERRUPTED, READER_GONE):
        assert f"| {code} |" in COMMAND_LINE


# ---- options of commands ----


@pytest.mark.parametrize("command", COMMANDS)
def test_the_tables_have_every_option(command):
    rows = [row for row in pages.options_tables(command).splitlines() if row.startswith("| `")]
    parameters = get_command(app).commands[command].params
    assert len(rows) == len(parameters)
    for parameter in parameters:
        names = [*parameter.opts, *parameter.secondary_opts] if parameter.opts[0].startswith("-") else []
        written = ", ".join(f"`{name}`" for name in names or [parameter.name.upper()])
        assert any(row.startswith(f"| {written} |") for row in rows), written


def test_the_tables_have_values_defaults_and_descriptions():
    table = pages.options_tables("serve")
    assert re.search(r"^\| `--port` \| `INTEGER` \| `8000` \| [A-Z].+ \|$", table, re.MULTILINE)
    assert re.search(r"^\| `--timeout` \| `NUMBER` \| `600` \| [A-Z].+ \|$", table, re.MULTILINE)
    table = pages.options_tables("batch")
    assert re.search(r"^\| `PROMPTS` \|  \| required \| .+ \|$", table, re.MULTILINE)
    assert re.search(r"^\| `--out` \| `PATH` \| required \| .+ \|$", table, re.MULTILINE)
    assert re.search(r"^\| `--in-order`, `--as-they-come` \|  \| `--in-order` \| .+ \|$", table, re.MULTILINE)
    assert re.search(r"^\| `--limit` \| `INTEGER` \| all \| .+ \|$", table, re.MULTILINE)  # from the help text
    assert "Default:" not in table


def test_a_page_of_the_site_has_tables_in_place_of_markers(tmp_path):
    class Page:
        class file:
            src_uri = "page.md"

    class Config:
        docs_dir = str(tmp_path)

    made = pages.on_page_markdown("# A\n\n<!-- options: models -->\n<!-- not run: x -->\n", Page, Config)
    assert made == f"# A\n\n{pages.options_tables('models')}"


# ---- navigation ----


def test_a_pattern_is_its_pages_in_the_order_of_the_index(tmp_path):
    for name in ("a", "b", "c", "index"):
        (tmp_path / "use").mkdir(exist_ok=True)
        (tmp_path / "use" / f"{name}.md").write_text(f"# {name}\n")
    (tmp_path / "use" / "index.md").write_text("# Use\n\n[c](c.md), [a](a.md), [z](z.md)\n")
    (tmp_path / "own.md").write_text("# own\n")
    nav = [{"Use": "use/*.md"}, {"None": "none/*.md"}, {"Rest": ["own.md", "*.md"]}, "use/b.md"]
    assert pages.expanded(nav, tmp_path) == [
        {"Use": ["use/index.md", "use/c.md", "use/a.md"]},
        {"Rest": ["own.md"]},
        "use/b.md",
    ]


def test_links_out_of_the_docs_become_words(tmp_path):
    docs, code = tmp_path / "docs", tmp_path / "examples"
    for folder in (docs, code):
        folder.mkdir()
    (code / "first.py").touch()
    (docs / "other.md").touch()
    text = "[one](../examples/first.py) [two](other.md#x) [`examples/first.py`](../examples/first.py)"
    text += " [gone](../gone.py) [web](https://a.b/c)\n```text\n[code](../examples/first.py)\n```\n"
    assert pages.without_outer_links(text, docs / "page.md", docs) == (
        "one (`examples/first.py`) [two](other.md#x) `examples/first.py`"
        " [gone](../gone.py) [web](https://a.b/c)\n```text\n[code](../examples/first.py)\n```\n"
    )


def test_docstrings_are_shown_with_their_examples_and_comments():
    shown = module("docstrings")
    assert shown.fenced("Text.\n\n>>> 1 + 1\n2\n\nMore.") == ("Text.\n\n```python\n>>> 1 + 1\n2\n```\n\nMore.")
    lines = {"horizon": "    horizon: int  # slots planned", "cost": "    cost: Work"}
    assert shown.fields_table(lines) == "\n\n| field | |\n|---|---|\n| `horizon` | Slots planned |\n"
    assert shown.fields_table({"cost": "    cost: Work"}) == ""


# ---- as it is built ----


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("material", reason="needs the package mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


class Loaded(HTMLParser):
    """Whatever a browser fetches with a page by itself; where a reader may click is no matter."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        fetched = [given.get("src"), given.get("srcset"), given.get("poster"), given.get("data")]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            fetched.append(given.get("href"))
        self.found += [address for address in fetched if address]
        self.found += re.findall(r"url\(([^)]+)\)", given.get("style") or "")


def elsewhere(address: str) -> bool:
    """Does it lead to another host?"""
    return bool(urlparse(address.strip(" '\"")).netloc)


def test_what_is_loaded_is_told_from_what_is_linked():
    loaded = Loaded(
        '<a href="https://a.b"></a><script src="//c.d/e.js"></script><img src="f.png">'
        '<link rel="stylesheet" href="https://g.h/i.css"><link rel="canonical" href="https://j.k">'
    )
    assert [address for address in loaded.found if elsewhere(address)] == ["//c.d/e.js", "https://g.h/i.css"]


@pytest.mark.full
def test_nothing_is_loaded_from_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not [address for address in Loaded(text).found if elsewhere(address)], page
        assert "fonts.g" not in text, page
    for sheet in site.rglob("*.css"):
        found = re.findall(r"url\(([^)]+)\)|@import\s+([^;]+)", sheet.read_text())
        assert not [a or b for a, b in found if elsewhere(a or b)], sheet


@pytest.mark.full
def test_every_page_is_in_the_site(site):
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists(), page


@pytest.mark.full
def test_search_works_from_a_folder(site):
    """No server, no network: the file is opened as it lies on the disk."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
    pytest.importorskip("selenium.webdriver.support.ui")
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("needs the program chromium: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    service = webdriver.chrome.service.Service(programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    wait = webdriver.support.ui.WebDriverWait
    try:
        driver.set_window_size(1280, 900)  # wide enough for the field to stand in the header
        driver.get((site / "index.html").as_uri())
        field = driver.find_element("css selector", "input.md-search__input")
        wait(driver, 30).until(lambda _: field.is_displayed())
        field.send_keys("horizon")
        found = wait(driver, 30).until(
            lambda _: driver.find_elements("css selector", "a.md-search-result__link"), "nothing was found"
        )
        assert all(link.get_attribute("href").startswith("file:") for link in found)
    finally:
        driver.quit()
