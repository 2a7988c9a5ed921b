"""TF-IDF features and logistic regression, to compare a text classifier with."""

from collections.abc import Sequence

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from training.data.records import DataError


def predict(train: Sequence[tuple[str, str]], texts: Sequence[str]) -> list[str]:
    """Train on (text, label) pairs, and return the labels predicted. Raises DataError if they have no words."""
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    try:
        model.fit([text for text, _ in train], [label for _, label in train])
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        raise DataError("the training texts have no words of two letters or more") from None
    return [str(label) for label in model.predict(list(texts))]
