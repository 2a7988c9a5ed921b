"""Few-shot prompts from a file, scratchpads, and the majority of several answers."""

import pytest

from training.data.records import DataError
from training.generation.prompting import MajorityVote, few_shot, final_answer, majority, read_shots
from training.generation.text import Answerer


def test_shots_are_read_and_stand_before_the_text(tmp_path):
    file = tmp_path / "shots.tsv"
    file.write_text("dog\tdogs\n\nbox\tboxes\n", encoding="utf-8")
    shots = read_shots(file)
    assert few_shot(shots, "cat") == "dog\tdogs\nbox\tboxes\ncat\t"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog\tdogs\nbox", r"shots\.tsv:2: expected source TAB target, got 'box'"),
        ("dog\tdogs\tpuppies", r"shots\.tsv:1: expected source TAB target"),
        ("\tdogs", r"shots\.tsv:1: expected source TAB target"),
        ("\n \n", r"^--shots: expected lines of source TAB target, got none in "),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, text, message):
    file = tmp_path / "shots.tsv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_shots(file)


def test_a_missing_file_and_text_of_several_lines_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"^--shots: cannot read .*none\.tsv: No such file"):
        read_shots(tmp_path / "none.tsv")
    with pytest.raises(DataError, match=r"^--shots: cannot read "):
        read_shots(tmp_path)
    with pytest.raises(DataError, match=r"^--shots: expected prompts of one line without TAB, got 'a\\nb'"):
        few_shot("a\tb\n", "a\nb")


@pytest.mark.parametrize(
    ("text", "after", "answer"),
    [
        (" 81 \n", None, "81"),
        ("so 3+8=11; = 81\nnext: = 5", "= ", "5"),
        ("answer: 81\nmore", "answer:", "81"),
        ("nothing of the kind", "answer:", None),
        ("answer:", "answer:", ""),
    ],
)
def test_the_answer_stands_behind_the_last_marker(text, after, answer):
    assert final_answer(text, after) == answer


def test_most_votes_win_and_ties_go_to_the_first():
    texts = [{"text": text} for text in ("x = 3", "= 5", "y = 5", "none", "= 3", "z = 5 \n")]
    assert majority(texts, "=") == {"text": "5", "votes": 3, "voters": 5, "scratchpad": "= 5"}
    assert majority(texts[:2], "=")["text"] == "3"
    assert majority(texts[3:4], "=") == {"text": "", "votes": 0, "voters": 0, "scratchpad": "none"}


class Answering(Answerer):
    """Answers with the same texts always."""

    takes_lines = False
    streams = True

    def __init__(self, *texts):
        self.n, self._texts = len(texts), texts

    def answers(self, texts, *, first=1):
        return [[{"text": answer} for answer in self._texts] for _ in texts]


def test_an_answerer_whose_answers_vote():
    voted = MajorityVote(Answering("4", "5", "5"))
    assert [answer["text"] for (answer,) in voted.answers(["2+3=", "1+4="])] == ["5", "5"]
    assert not voted.streams
    assert not voted.takes_lines
    assert voted.n == 3
    with pytest.raises(DataError, match=r"^--vote: expected several answers to vote, got 1; give --n 15"):
        MajorityVote(Answering("4"))
