from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.html_table import html_table, shown_keys, shown_time
from millrace.model.key_range import KEY_SPACE, KeyRange


class _Read(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@given(st.lists(st.text("<>&\"'script/ =", min_size=1), min_size=2, max_size=2))
def test_a_text_stays_a_text(texts: list[str]) -> None:
    read = _Read(html_table(texts[0], ["<b>"], [[texts[1]]]))

    assert read.tags == {"table", "caption", "tr", "th", "td"}
    assert "".join(read.texts).replace("\n", "") == texts[0] + "<b>" + texts[1]


def test_times_and_keys_are_for_people() -> None:
    assert shown_time(1_769_882_400_500_000) == "2026-01-31 18:00:00Z"
    assert shown_time(1 << 62) == str(1 << 62)
    assert shown_keys(KeyRange(0, KEY_SPACE // 3)) == "0 to 0.3333"
