"""Keys of `lastword serve`, from a file and from the environment."""

from lastword.cli.serve import KEY, _read_keys


def test_read_keys_of_a_file_and_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, "first")
    file = tmp_path / "keys"
    file.write_text("second\n\n  third \n", encoding="utf-8-sig")  # with a mark, as some editors do
    assert _read_keys(file) == ["first", "second", "third"]
